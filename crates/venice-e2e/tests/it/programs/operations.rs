//! Acts of operators on a rack under running programs.

use std::fs;
use std::time::Duration;

use venice_e2e::programs::{Busy, MIB, Port, Rack, kill_now, paged_mode_is_missing, wait_for};

const LEND_MIB: u64 = 128;
/// Time limit of a lease and the donors' next heartbeats.
const LIMIT: Duration = Duration::from_secs(30);

fn expect_success(rack: &Rack, words: &[&str]) {
    let output = rack.venice(words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "venice {words:?}: {err}");
}

/// Waits until no grant is left, and every lent byte is free.
fn wait_until_free(rack: &Rack) {
    wait_for("all slabs to be free again", LIMIT, || {
        (rack.grant_ids().is_empty() && rack.granted_bytes() == 0).then_some(())
    });
}

/// One program ends after the backup, another one starts: the restored Monitor Node learns both.
fn restored_monitor_knows_all_grants(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, LEND_MIB);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let backup = folder.path().join("rack.backup").display().to_string();
    let ended = Busy::start(&rack, "96MiB", 1);
    expect_success(&rack, &["backup", &backup]);
    let mut busy = Busy::start(&rack, "96MiB", 1);
    ended.stop();
    wait_for("only the second program's grants", LIMIT, || {
        (rack.granted_bytes() == 96 * MIB).then_some(())
    });
    let granted = rack.grant_ids();
    kill_now(rack.monitor_pid());
    fs::remove_dir_all(rack.run_dir().join("monitor/state")).expect("it was there");

    expect_success(&rack, &["restore", &backup]);
    expect_success(&rack, &["up"]);
    wait_for("the restored Monitor Node to know the grants", LIMIT, || {
        (rack.grant_ids() == granted).then_some(())
    });
    busy.expect_running();
    // New grants have other numbers than those made since the backup.
    let next = Busy::start(&rack, "96MiB", 1);
    busy.stop();
    next.stop();
    wait_until_free(&rack);
}

#[test]
fn restored_monitor_knows_grants_shm() {
    restored_monitor_knows_all_grants("restored_monitor_knows_grants_shm", Port::Shm);
}

#[test]
fn restored_monitor_knows_grants_udp() {
    restored_monitor_knows_all_grants("restored_monitor_knows_grants_udp", Port::Udp);
}

/// Programs from before the rotation go on through its begin, programs since through its end.
#[test]
fn programs_outlive_rotated_authority() {
    if paged_mode_is_missing("programs_outlive_rotated_authority") {
        return;
    }
    let rack = Rack::start(Port::Udp, LEND_MIB);
    let mut before = Busy::start(&rack, "96MiB", 1);
    expect_success(&rack, &["identity", "rotate"]);
    wait_for("all nodes to renew", LIMIT, || {
        let output = rack.venice(&["identity", "--json"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("\"not_renewed\": []").then_some(())
    });
    // Longer than a lease: it is renewed at nodes with certificates of the new authority.
    before.expect_running_for(Duration::from_secs(15));
    let mut since = Busy::start(&rack, "96MiB", 1);
    before.stop();
    expect_success(&rack, &["identity", "rotate", "--finish", "--force"]);
    since.expect_running_for(Duration::from_secs(15));
    let next = Busy::start(&rack, "96MiB", 1);
    since.stop();
    next.stop();
    wait_until_free(&rack);
}
