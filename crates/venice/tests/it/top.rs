//! `venice top` on a terminal, and without one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use venice_testkit::process::ChildGuard;

use crate::common::{Daemon, Place, wait, wait_until};

/// A terminal with a program on it.
struct Screen {
    master: File,
    slave: OwnedFd,
    child: ChildGuard,
    terminal: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    fn start(place: &Place, words: &[&str]) -> Screen {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 40, ws_col: 140, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let mut command = place.command(words);
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio()).env("TERM", "xterm");
        let child = ChildGuard(command.spawn().unwrap());
        let terminal = vt100::Parser::new(size.ws_row, size.ws_col, 0);
        let (master, terminal) = (File::from(master), Arc::new(Mutex::new(terminal)));
        let (mut reader, sink) = (master.try_clone().unwrap(), Arc::clone(&terminal));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                sink.lock().unwrap().process(&bytes[..count]);
            }
        });
        Screen { master, slave, child, terminal }
    }

    fn shows(&self, text: &str) -> bool {
        self.terminal.lock().unwrap().screen().contents().contains(text)
    }

    /// True while the program has a screen of its own.
    fn is_alternate(&self) -> bool {
        self.terminal.lock().unwrap().screen().alternate_screen()
    }

    fn press(&mut self, key: &str) {
        self.master.write_all(key.as_bytes()).unwrap();
    }

    /// True if the terminal echoes what is typed, as before the program.
    fn echoes(&self) -> bool {
        tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ECHO)
    }
}

#[test]
fn live_screen_follows_the_rack() {
    let place = Place::new();
    place.up(2);
    let mut screen = Screen::start(&place, &["top", "--interval", "0.1"]);
    wait_until("nodes and events are shown", || {
        screen.shows("2 up of 2") && screen.shows("node2") && screen.shows("node-joined")
    });
    assert!(screen.is_alternate() && !screen.echoes(), "raw mode");
    let words = ["get", "memory=16MiB", "--for", "numbers", "--", "sleep", "600"];
    let _holder = Daemon::start_named(&place, "holder", &words);
    wait_until("the grant is shown", || screen.shows("numbers"));
    screen.press("h");
    wait_until("the help is shown", || screen.shows("this help"));
    screen.press("q");
    let status = wait(&mut screen.child, &["top"]);
    assert_eq!(status.code(), Some(0));
    wait_until("the terminal is as before", || screen.echoes() && !screen.is_alternate());
}

#[test]
fn frame_without_terminal_is_plain() {
    let place = Place::new();
    place.up(2);
    let said = place.venice(&["top"]).expect(0);
    assert!(said.out.contains("NODES\nNAME") && said.out.contains("node2"), "{}", said.out);
    assert!(!said.out.contains('\u{1b}'), "{}", said.out);
    let json = place.venice(&["top", "--json"]).expect(0).json();
    assert_eq!(json["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(json["events"][0]["kind"], "monitor-started");
    assert!(json["grants"].is_array() && json["queue"].is_array() && json["programs"].is_array());
    let wrong = place.venice(&["top", "--interval", "0"]).expect(2);
    assert!(wrong.err.contains("between 0.1 and 3600"), "{}", wrong.err);
    place.venice(&["top", "--monitor", "127.0.0.1:1"]).expect(1);
}
