//! The test binary itself, started again for one of its tests.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Returns the path of a test in its binary for `--exact`: `modules::name` for `name`. `name` may
/// begin with modules if it alone names several tests.
///
/// # Panics
/// When this program is not a test binary, or has none or several of that name.
pub fn path_of(name: &str) -> String {
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    let paths = PATHS.get_or_init(paths);
    let is_it = |path: &&String| {
        path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with("::"))
    };
    let found: Vec<&String> = paths.iter().filter(is_it).collect();
    match found[..] {
        [path] => path.clone(),
        [] => panic!("there is no test called {name}"),
        _ => panic!("several tests are called {name}: {found:?}"),
    }
}

/// Returns a command of this program for one test.
///
/// # Panics
/// The same as [`path_of`].
pub fn this_program(test: &str) -> Command {
    let mut command = itself();
    command.args(["--exact", &path_of(test), "--nocapture", "--test-threads=1"]);
    command
}

fn itself() -> Command {
    Command::new(std::env::current_exe().expect("Linux knows the path of a program"))
}

/// Lists the paths of all tests of this program.
fn paths() -> Vec<String> {
    let listed = itself().arg("--list").stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let listed = listed.expect("this program starts again");
    let lines = String::from_utf8_lossy(&listed.stdout).into_owned();
    lines.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_test_by_its_name() {
        let path = "own_test::tests::finds_a_test_by_its_name";
        assert_eq!(path_of("finds_a_test_by_its_name"), path);
        assert_eq!(path_of("tests::finds_a_test_by_its_name"), path);
        assert_eq!(path_of(path), path);
    }

    #[test]
    #[should_panic(expected = "there is no test called a_test_by_its_name")]
    fn ends_of_names_are_not_found() {
        path_of("a_test_by_its_name");
    }
}
