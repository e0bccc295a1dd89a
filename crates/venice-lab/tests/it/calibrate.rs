//! `venice sim calibrate` from end to end: the profile it writes, and experiments with it. Never a time.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use venice_warehouse::host::profile::Profile;

/// An experiment that sweeps over a preset and a profile.
const KERNELS: &str = r#"
name = "kernels"
base = "incast-1g"

[[sweep]]
key = "server.kernel.preset"
values = ["linux-2.6.39", "./host.toml"]

[[figure]]
name = "kernels"
title = "Goodput by kernel"
x = "servers"
y = "goodput"
series = ["preset"]
at = { rto = "1ms", client = "pthread" }

[[finding]]
claim = "A host is no old kernel."
holds = "goodput{rto=1ms,servers=1,preset=./host.toml} > 0"
"#;

fn sim(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_venice-lab"));
    command.arg("sim").args(words).current_dir(folder).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes a profile as it would be measured on a host with costs of 1 GHz.
fn write_profile(folder: &Path, name: &str, more: &str) {
    let text = format!("[profile]\nclock = '1GHz'\n[kernel]\npreset = 'linux-3.5.7'\n{more}\n");
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn quick_calibration_makes_profile() {
    let folder = tempfile::tempdir().unwrap();
    let output = sim(&["calibrate", "--quick", "--json", "--output", "host.toml"], folder.path());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("server.kernel.preset=host.toml"), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let profile = Profile::read(&folder.path().join("host.toml")).unwrap();
    let head = &profile.profile;
    assert!(head.clock.0 > 0 && !head.host.is_empty() && !head.date.is_empty(), "{head:?}");
    assert!(head.kernel.starts_with("Linux "), "{head:?}");
    for key in ["system-call", "tcp-send", "udp-receive", "epoll-wait", "accept", "futex"] {
        let left_out = head.left_out.iter().find(|line| line.starts_with(&format!("{key}:")));
        assert!(profile.measured.contains_key(key) && left_out.is_none(), "{key}: {left_out:?}");
        assert_eq!(json["profile"]["measured"][key]["how"], profile.measured[key].how);
    }
    assert!(head.left_out.iter().any(|line| line.starts_with("interrupt:")), "{head:?}");
    let run = sim(
        &[
            "run",
            "incast-1g",
            "--quick",
            "--points",
            "servers=1,rto=1ms",
            "--json",
            "--set",
            "server.kernel.preset=host.toml",
            "--set",
            "server.frequency=2GHz",
            "--out",
            "out",
        ],
        folder.path(),
    );
    assert!(run.status.success(), "{}", stderr(&run));
}

#[test]
fn profiles_are_swept_like_presets() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path(), "host.toml", "tcp-receive = 700");
    std::fs::write(folder.path().join("kernels.toml"), KERNELS).unwrap();
    let words = ["run", "kernels.toml", "--quick", "--json", "--out", "out", "--points"];
    let run = sim(&[&words[..], &["servers=1,rto=1ms"]].concat(), folder.path());
    assert!(run.status.success(), "{}", stderr(&run));
    let results: Value = serde_json::from_slice(&run.stdout).unwrap();
    let points = results["points"].as_array().unwrap();
    let done: Vec<&Value> = points.iter().filter(|point| point["state"] == "done").collect();
    assert_eq!(done.len(), 2);
    assert_ne!(done[0]["outcome"]["trace_hash"], done[1]["outcome"]["trace_hash"]);
}

#[test]
fn bad_profiles_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path(), "bad.toml", "sytem-call = 1");
    let run = |file: &str| {
        let set = format!("server.kernel.preset={file}");
        sim(&["run", "incast-1g", "--quick", "--set", &set, "--out", "out"], folder.path())
    };
    for (file, wanted) in [
        ("bad.toml", "unknown key kernel.sytem-call: the nearest is kernel.system-call"),
        ("none.toml", "cannot read none.toml"),
        ("linux-9", "or a file of `venice sim calibrate`"),
    ] {
        let output = run(file);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    }
    let output = sim(&["calibrate", "--quick", "--output", "host.json"], folder.path());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
