//! The packaged units allow the system calls that the daemons need.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

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
