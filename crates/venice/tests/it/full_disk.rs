//! A full disk under the Monitor Node's store: it grants nothing, loses nothing, and continues by
//! itself once there is room.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{self, Daemon, Place, exists, is_root, skipped, wait_until};
use crate::metrics::get;
use rustix::process::Signal;

/// A small file system.
struct Disk(PathBuf);

impl Disk {
    fn new(at: PathBuf) -> Disk {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(&at);
        assert!(mount.status().unwrap().success());
        Disk(at)
    }

    fn fill(&self) {
        let mut filler = File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

struct Monitor<'a> {
    place: &'a Place,
    state: &'a Path,
    addr: String,
}

impl Monitor<'_> {
    fn start(&self) -> Daemon {
        let ready = self.place.file("ready");
        let _ = fs::remove_file(&ready);
        let (state, ready_file) = (self.state.display().to_string(), ready.display().to_string());
        let words = ["monitor", "--listen", &self.addr, "--state-dir", &state];
        let metrics = ["--metrics", "127.0.0.1:0", "--ready-file", &ready_file];
        let words = [&words[..], &metrics].concat();
        let daemon = Daemon::start_named(self.place, "monitor", &words);
        wait_until("the Monitor Node serves", || exists(&ready));
        daemon
    }

    /// Returns the status and the text of `/readyz`.
    fn readiness(&self) -> (u16, String) {
        let ready = fs::read(self.place.file("ready")).unwrap();
        let ready: serde_json::Value = serde_json::from_slice(&ready).unwrap();
        get(ready["metrics_addr"].as_str().unwrap(), "/readyz")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.file("monitor.log")).unwrap()
    }

    /// Sets quotas of users of that name until the disk is full; returns how many were set. The call
    /// that fills the disk is told, and completed once there is room.
    fn set_until_full(&self, name: &str) -> u64 {
        for number in 0.. {
            let user = format!("{name}{number}{}", "x".repeat(50));
            let words = ["quota", "set", &user, "memory=1GiB", "--monitor", &self.addr];
            let said = self.place.venice(&words);
            if said.code() != 0 {
                let why = said.complaint();
                assert!(why.contains("no room for the store"), "{why}");
                assert!(why.contains("completed once there is room"), "{why}");
                return number;
            }
        }
        unreachable!("numbers do not end");
    }

    /// Counts the users of that name with a quota.
    fn quotas(&self, name: &str) -> u64 {
        let said = self.place.venice(&["quota", "list", "--json", "--monitor", &self.addr]);
        let said = said.expect(0).out;
        said.matches(&format!("\"{name}")).count() as u64
    }
}

#[test]
fn full_disk_blocks_changes_only() {
    if !is_root() {
        return skipped("full_disk_blocks_changes_only", "needs root");
    }
    let place = Place::new();
    let disk = Disk::new(place.file("disk"));
    let addr = format!("127.0.0.1:{}", common::port_of_its_own());
    let monitor = Monitor { place: &place, state: &disk.0, addr };
    place.venice(&["init", "--state-dir", &disk.0.display().to_string()]).expect(0);
    let mut daemon = monitor.start();

    disk.fill();
    let set = monitor.set_until_full("first");
    assert!(daemon.0.try_wait().unwrap().is_none(), "it ended");
    // Meanwhile reads are answered, and changes report the problem.
    assert!(monitor.quotas("first") >= set);
    let words = ["quota", "set", "another", "memory=1GiB", "--monitor", &monitor.addr];
    let said = place.venice(&words).expect(1).err;
    assert!(said.contains("no room for the store") && said.contains("make room"), "{said}");
    let (status, why) = monitor.readiness();
    assert!(status == 503 && why.contains("no room for the store"), "{why}");
    disk.make_room();
    wait_until("it goes on", || monitor.log().contains("the store has room again"));
    wait_until("it is ready", || monitor.readiness().0 == 200);
    assert_eq!(monitor.quotas("first"), set + 1);

    // Acknowledged changes survive a kill; a Monitor Node that waits for room ends on request.
    disk.fill();
    let more = monitor.set_until_full("second");
    assert_eq!(daemon.stop(Signal::TERM), Some(0));
    disk.make_room();
    let mut daemon = monitor.start();
    assert_eq!(monitor.quotas("first"), set + 1);
    assert!(monitor.quotas("second") >= more);
    assert_eq!(daemon.stop(Signal::TERM), Some(0));
}
