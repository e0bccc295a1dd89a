//! Clock jumps: nobody loses a grant, a lease or membership. Jumps of some minutes do no harm; with
//! a clock an hour off, certificates are refused until the clock is corrected.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{self, Daemon, Place, exists, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use venice_testkit::process::ChildGuard;

/// From Debian's package `faketime`.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The wall clock of one daemon.
struct Clock(PathBuf);

impl Clock {
    fn new(place: &Place, name: &str) -> Clock {
        let clock = Clock(place.file(&format!("{name}-clock")));
        clock.jump(0);
        clock
    }

    /// Sets the clock to this many seconds ahead of the machine's.
    fn jump(&self, ahead_s: i64) {
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{ahead_s:+}\n")).unwrap();
        fs::rename(new, &self.0).unwrap();
    }

    fn set(&self, command: &mut Command) {
        command.env("LD_PRELOAD", LIBRARY).env("FAKETIME_TIMESTAMP_FILE", &self.0);
        // A clock that is set changes the time of day alone.
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.env("DONT_FAKE_MONOTONIC", "1");
    }
}

/// Less than the backdating of certificates.
const MINUTES_S: i64 = 300;
const HOUR_S: i64 = 3600;

struct Rack<'a> {
    place: &'a Place,
    addr: String,
    monitor_clock: Clock,
    donor_clock: Clock,
}

impl Rack<'_> {
    fn start_daemon(&self, name: &str, clock: &Clock, words: &[&str]) -> Daemon {
        let log = fs::File::create(self.place.file(&format!("{name}.log"))).unwrap();
        let mut command = self.place.command(words);
        clock.set(&mut command);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Daemon(ChildGuard(command.spawn().unwrap()))
    }

    fn start_monitor(&self) -> Daemon {
        let ready = self.place.file("ready");
        let _ = fs::remove_file(&ready);
        let (state, ready_file) = (self.file("state"), ready.display().to_string());
        let words = ["monitor", "--listen", &self.addr, "--state-dir", &state];
        let words = [&words[..], &["--ready-file", &ready_file]].concat();
        let daemon = self.start_daemon("monitor", &self.monitor_clock, &words);
        wait_until("the Monitor Node serves", || exists(&ready));
        daemon
    }

    fn file(&self, name: &str) -> String {
        self.place.file(name).display().to_string()
    }

    fn start_donor(&self, identity: &str) -> Daemon {
        let words = ["agent", "--name", "donor", "--lend", "64MiB", "--monitor", &self.addr];
        let words = [&words[..], &["--identity", identity, "--local-socket", "none"]].concat();
        self.start_daemon("donor", &self.donor_clock, &words)
    }

    /// A table without volatile fields; `None` if no Monitor Node answers.
    fn rows(&self, what: &str) -> Option<Vec<Value>> {
        let said = self.place.venice(&[what, "--json", "--monitor", &self.addr]);
        if said.code() != 0 {
            return None;
        }
        let mut rows = said.json().as_array().unwrap().clone();
        let changes = |key: &str| key.starts_with("age") || key.contains("heartbeat");
        for row in &mut rows {
            row.as_object_mut().unwrap().retain(|key, _| !changes(key));
        }
        Some(rows)
    }

    /// True if another program gets memory.
    fn lends(&self) -> bool {
        let words = ["run", "--monitor", &self.addr, "--local", "16MiB", "--remote", "16MiB"];
        let said = self.place.venice(&[&words[..], &["--copies", "1", "--", "true"]].concat());
        print!("{}", said.err);
        said.code() == 0
    }

    fn donor_is_up(&self) -> bool {
        let rows = self.rows("nodes");
        rows.is_some_and(|rows| rows.len() == 1 && rows[0]["state"] == "up")
    }
}

#[test]
fn clock_jumps_lose_no_grant() {
    assert!(exists(LIBRARY.as_ref()), "`make setup` installs faketime");
    let place = Place::new();
    let rack = Rack {
        place: &place,
        addr: format!("127.0.0.1:{}", common::port_of_its_own()),
        monitor_clock: Clock::new(&place, "monitor"),
        donor_clock: Clock::new(&place, "donor"),
    };
    place.venice(&["init", "--state-dir", &rack.file("state")]).expect(0);
    let mut monitor = rack.start_monitor();
    let identity = place.join("donor", &rack.addr);
    let mut donor = rack.start_donor(&identity);
    wait_until("the donor is up", || rack.donor_is_up());
    let words = ["run", "--monitor", &rack.addr, "--local", "16MiB", "--remote", "32MiB"];
    let words = [&words[..], &["--copies", "1", "--", "sleep", "600"]].concat();
    let mut program = Daemon::start_named(&place, "program", &words);
    wait_until("the program has its memory", || {
        rack.rows("grants").is_some_and(|rows| !rows.is_empty())
    });
    let before = rack.rows("grants").unwrap();
    let is_as_before = || rack.donor_is_up() && rack.rows("grants").as_ref() == Some(&before);

    for clock in [&rack.monitor_clock, &rack.donor_clock] {
        for ahead_s in [HOUR_S, -HOUR_S, 0, MINUTES_S, -MINUTES_S, 0] {
            clock.jump(ahead_s);
            // With a clock an hour off, a certificate may not be valid yet for others.
            assert!(ahead_s.abs() == HOUR_S || rack.lends(), "with a clock {ahead_s} s off");
            wait_until("the program has what it had", is_as_before);
        }
    }
    for ahead_s in [MINUTES_S, -MINUTES_S, HOUR_S, 0] {
        rack.monitor_clock.jump(ahead_s);
        monitor.stop(Signal::KILL);
        monitor = rack.start_monitor();
        if ahead_s != HOUR_S {
            wait_until("the program has what it had", is_as_before);
            assert!(rack.lends(), "started with a clock {ahead_s} s off");
        }
    }
    assert!(program.0.try_wait().unwrap().is_none(), "the program has ended");
    program.stop(Signal::TERM);
    wait_until("its memory is given back", || rack.rows("grants").is_some_and(|it| it.is_empty()));
    assert_eq!((donor.stop(Signal::TERM), monitor.stop(Signal::TERM)), (Some(0), Some(0)));
}
