//! A browser without a screen: a broker, zygotes that fork, processes that confine themselves by
//! namespaces and filters of system calls, and two allocators of its own.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

use tempfile::TempDir;
use venice_e2e::programs::compare::{PROGRAM_LIMIT, check_went_far, copy};
use venice_e2e::programs::{Outcome, Port, Rack, Running, paged_mode_is_missing};

/// Debian's user and group that own nothing.
const NOBODY: u32 = 65534;

/// Computes on a large heap of objects and a large array, then adds paragraphs.
const PAGE: &str = include_str!("../../data/page.html");

/// A home with the page; its owner is the user that the browser runs as.
struct Home(TempDir);

impl Home {
    fn new(owner: u32) -> Home {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("page.html"), PAGE).expect("a file");
        chown(dir.path(), Some(owner), Some(owner)).expect("root may");
        Home(dir)
    }

    /// Returns the command of a browser that prints the page as its scripts have left it.
    fn browser(&self, before: &[&str], options: &[&str]) -> Command {
        let home = self.0.path().display();
        let words = before.iter().copied().chain(["chromium"]).collect::<Vec<_>>();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(options).arg(format!("--user-data-dir={home}/profile"));
        command.args(["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.arg("--dump-dom").arg(format!("file://{home}/page.html"));
        command.env("HOME", self.0.path()).current_dir("/");
        command
    }
}

/// Runs the browser plainly and under Venice, each with a fresh profile; the page must be the same.
fn renders_same(owner: u32, before: &[&str], options: &[&str]) -> Outcome {
    let run = |start: &dyn Fn(&Command) -> Running| -> Outcome {
        let outcome = start(&Home::new(owner).browser(before, options)).finish(PROGRAM_LIMIT);
        outcome.expect_code(0);
        outcome
    };
    let plain = run(&|command| Running::spawn(copy(command), false));
    let said = String::from_utf8_lossy(&plain.stdout);
    assert!(said.contains("done: ") && said.contains("row 1999"), "{said}{}", plain.stderr);
    let local = ["--local", "32MiB", "--remote", "800MiB", "--stats"];
    let venice = run(&|command| Rack::shared(Port::Shm).run(&local, command));
    assert_eq!(said, String::from_utf8_lossy(&venice.stdout), "{}", venice.stderr);
    venice
}

#[test]
fn browser_without_sandbox() {
    if paged_mode_is_missing("browser_without_sandbox") {
        return;
    }
    let venice = renders_same(0, &[], &["--no-sandbox"]);
    check_went_far("chromium", &venice);
}

/// Root may not use the sandbox. Its processes are made by a bare `clone`: they stay here, and the
/// run says so.
#[test]
fn browser_with_sandbox() {
    if paged_mode_is_missing("browser_with_sandbox") {
        return;
    }
    let before = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let venice = renders_same(NOBODY, &before, &[]);
    assert!(venice.stderr.contains("not managed: "), "{}", venice.stderr);
}
