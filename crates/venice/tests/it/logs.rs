//! The log of real daemons as JSON, and in a journal.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use venice_testkit::process::ChildGuard;

use crate::common::rack::Rack;
use crate::common::{Place, finish, is_root, skipped, wait_until};

#[test]
fn json_log_has_fields() {
    let rack = Rack::start(1, &["--log-format", "json"]);
    rack.place.find_monitor_at(&rack.all());
    rack.place.venice(&["quota", "set", "ada", "memory=1GiB"]).expect(0);
    let path = rack.place.file("monitor0.log");
    wait_until("the act is logged", || {
        let log = fs::read_to_string(&path).unwrap();
        let mut lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.any(|line| {
            line["target"] == "audit"
                && line["fields"]["act"] == "set quota"
                && line["fields"]["message"] == "done"
                && line["fields"]["by"].as_str().is_some_and(|by| by.contains('@'))
        })
    });
}

/// Returns the fields of an entry in the journal's own protocol
/// (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).
fn fields(mut entry: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    while !entry.is_empty() {
        let end = entry.iter().position(|byte| *byte == b'\n').unwrap();
        let line = String::from_utf8_lossy(&entry[..end]).into_owned();
        entry = &entry[end + 1..];
        if let Some((name, value)) = line.split_once('=') {
            fields.push((name.to_owned(), value.to_owned()));
            continue;
        }
        let length = u64::from_le_bytes(entry[..8].try_into().unwrap()) as usize;
        let value = String::from_utf8_lossy(&entry[8..8 + length]).into_owned();
        fields.push((line, value));
        entry = &entry[8 + length + 1..];
    }
    fields
}

/// Starts a Monitor Node in a mount namespace where the journal's socket is the test's. Its stderr is
/// what JOURNAL_STREAM names, as systemd has it.
#[test]
fn journal_gets_fields() {
    if !is_root() {
        return skipped("journal_gets_fields", "no root");
    }
    let place = Place::new();
    let journal = UnixDatagram::bind(place.file("journal")).unwrap();
    journal.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                  touch /run/systemd/journal/socket && \
                  mount --bind \"$1\" /run/systemd/journal/socket && shift && exec \"$@\"";
    let mut command = in_namespace(script);
    command.arg(place.file("journal")).args(monitor(&place));
    let log = File::create(place.file("stderr")).unwrap();
    let found = log.metadata().unwrap();
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let _monitor = ChildGuard(command.spawn().unwrap());
    let mut entry = vec![0; 65536];
    loop {
        let length = journal.recv(&mut entry).expect("the Monitor Node's entry");
        let fields = fields(&entry[..length]);
        let value = |name: &str| fields.iter().find(|(it, _)| it == name).map(|(_, it)| &**it);
        if value("MESSAGE") == Some("the Monitor Node listens") {
            assert_eq!(value("TARGET"), Some("venice_monitor::session"), "{fields:?}");
            assert_eq!(value("SYSLOG_IDENTIFIER"), Some("venice"));
            assert!(value("VENICE_ADDR").is_some_and(|it| it.starts_with("127.0.0.1:")));
            break;
        }
    }
    assert_eq!(fs::read_to_string(place.file("stderr")).unwrap(), "");
}

#[test]
fn missing_journal_is_an_error() {
    if !is_root() {
        return skipped("missing_journal_is_an_error", "no root");
    }
    let place = Place::new();
    let mut command = in_namespace("mount -t tmpfs none /run && exec \"$@\"");
    command.args(monitor(&place)).args(["--log-format", "journald"]);
    let said = finish(command, &["monitor"]).expect(1);
    assert!(said.err.contains("use text or json"), "{}", said.err);
}

/// Returns a command that runs a script in a mount namespace of its own.
fn in_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command
}

/// Returns the command line of a Monitor Node.
fn monitor(place: &Place) -> Vec<String> {
    let state = place.file("state");
    venice_testkit::identity::install(&state);
    let words = ["monitor", "--listen", "127.0.0.1:0", "--local-socket", "none", "--state-dir"];
    let words = [env!("CARGO_BIN_EXE_venice")].into_iter().chain(words).map(str::to_owned);
    words.chain([state.display().to_string()]).collect()
}
