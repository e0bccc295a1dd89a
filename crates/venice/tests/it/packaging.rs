//! The packaged units allow the system calls that the daemons need, and the installation is complete.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Expands a set of system calls recursively, as defined by systemd.
fn expand(set: &str, into: &mut BTreeSet<String>) {
    if !set.starts_with('@') {
        into.insert(set.to_string());
        return;
    }
    let out = Command::new("systemd-analyze").args(["syscall-filter", set]).output();
    let out = out.expect("systemd-analyze runs");
    assert!(out.status.success(), "systemd knows no {set}");
    let text = String::from_utf8(out.stdout).expect("text");
    let members = text.lines().skip(1).map(str::trim);
    members.filter(|it| !it.is_empty() && !it.starts_with('#')).for_each(|it| expand(it, into));
}

/// System calls that a unit allows, applying its lines in order as systemd does.
fn allowed(unit: &str) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (takes_away, sets) = match line.strip_prefix('~') {
            Some(sets) => (true, sets),
            None => (false, line),
        };
        for set in sets.split_whitespace() {
            let mut calls = BTreeSet::new();
            expand(set, &mut calls);
            match takes_away {
                true => allowed.retain(|call| !calls.contains(call)),
                false => allowed.extend(calls),
            }
        }
    }
    allowed
}

#[test]
fn units_allow_socket_group_setup() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let test = "units_allow_socket_group_setup";
        println!("SKIPPED: {test}: no systemd-analyze");
        return;
    }
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let group = fs::read_to_string(packaging.join("sysusers.d/venice.conf")).unwrap();
    assert!(group.lines().any(|line| line == "g venice -"), "{group}");
    for name in ["venice-monitor.service", "venice-agent.service"] {
        let unit = fs::read_to_string(packaging.join("systemd").join(name)).unwrap();
        assert!(unit.lines().any(|line| line == "SupplementaryGroups=venice"), "{name}");
        let allowed = allowed(&unit);
        // System calls for a daemon's socket and identity.
        for call in ["bind", "chmod", "fchmod", "chown", "fchownat", "fchown", "rename", "fsync"] {
            assert!(allowed.contains(call), "{name} kills its daemon at {call}");
        }
        assert!(!allowed.contains("reboot") && !allowed.contains("mount"), "{name}");
    }
}

#[test]
fn drop_in_lets_hosts_confine_themselves() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let test = "drop_in_lets_hosts_confine_themselves";
        println!("SKIPPED: {test}: no systemd-analyze");
        return;
    }
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |file: &str| fs::read_to_string(packaging.join(file)).unwrap();
    let unit = read("systemd/venice-agent.service");
    let both = unit.clone() + &read("examples/agent-service-hosts.conf");
    let (without, with) = (allowed(&unit), allowed(&both));
    for call in ["mount", "umount2", "pivot_root", "mount_setattr", "sethostname", "seccomp"] {
        assert!(with.contains(call) && !without.contains(call), "{call}");
    }
    for call in ["unshare", "pidfd_open", "landlock_restrict_self", "capset"] {
        assert!(with.contains(call), "{call}");
    }
}

/// Runs `scripts/install.sh WORDS` in `folder`, with stand-ins for what is built.
fn install(folder: &Path, words: &[&str]) -> Output {
    let built = folder.join("built");
    fs::create_dir_all(&built).unwrap();
    let libraries = [
        "libvenice_preload.so",
        "libvenice_opencl.so",
        "libvenice_cuda.so",
        "libvenice.so",
        "libvenice.a",
    ];
    for name in ["venice"].into_iter().chain(libraries) {
        fs::copy("/bin/true", built.join(name)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new(script);
    command.args(words).current_dir(folder).env("BUILT", &built).env_remove("DESTDIR");
    command.output().expect("a shell")
}

/// Returns all files under `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns the targets of a page's relative links, without anchors.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let images = text.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let targets = targets.chain(images).filter_map(|target| target.split('#').next());
    targets.filter(|it| !it.is_empty() && !it.contains("://") && !it.contains(' ')).collect()
}

#[test]
fn installed_documents_are_complete() {
    let temp = tempfile::tempdir().unwrap();
    // A relative prefix starts where the caller is.
    let out = install(temp.path(), &["install", "prefix"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let prefix = temp.path().join("prefix");
    for file in ["prometheus/venice.rules.yml", "grafana/venice.json"] {
        assert!(prefix.join("share/venice").join(file).exists(), "{file}");
    }
    let pages = files(&prefix.join("share/doc/venice"));
    let pages: Vec<_> =
        pages.iter().filter(|page| page.extension() == Some("md".as_ref())).collect();
    assert!(pages.len() > 50, "{pages:?}");
    for page in pages {
        let text = fs::read_to_string(page).unwrap();
        for link in links(&text) {
            assert!(page.with_file_name(link).exists(), "{}: {link}", page.display());
        }
    }
    assert!(install(temp.path(), &["uninstall", "prefix"]).status.success());
    assert_eq!(files(&prefix), Vec::<PathBuf>::new());
    assert!(!prefix.join("lib/sysusers.d").exists() && !prefix.join("share/doc").exists());
    assert_eq!(install(temp.path(), &["install"]).status.code(), Some(2));
}
