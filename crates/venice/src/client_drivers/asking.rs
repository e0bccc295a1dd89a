//! The drivers of a run's programs, and what they answer to moves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType};
use rustix::process::{Pid, test_kill_process};
use venice_service::moves::{FromDriver, Lines, Move, ToDriver, send};
use venice_sockets::refuse_descriptors;
use venice_wire::GrantId;

use crate::run::listen_alone;

/// Most programs with drivers: each has a thread here.
const MAX_DRIVERS: usize = 256;
/// Time after which the user is told that a move waits.
const SLOW: Duration = Duration::from_secs(5);
/// Interval of looks for drivers whose processes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The drivers that have connected.
#[derive(Debug)]
pub(super) struct Drivers {
    path: PathBuf,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    connected: BTreeMap<u64, Driver>,
    /// Moves that are over, by the grant that programs began with.
    over: BTreeMap<GrantId, Move>,
    /// Moves that drivers are asked for.
    asked: BTreeMap<GrantId, Asked>,
    is_closed: bool,
}

/// A driver in a process.
#[derive(Debug)]
struct Driver {
    socket: UnixStream,
    /// Its process; `None`: one of another PID namespace.
    process: Option<Pid>,
}

impl Driver {
    /// True if its process has ended. A child that inherited the socket keeps it open.
    fn has_ended(&self) -> bool {
        self.process.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }
}

#[derive(Debug)]
struct Asked {
    step: Move,
    moved: BTreeSet<u64>,
    kept: BTreeMap<u64, String>,
}

/// Answer of the drivers to a move.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// All have moved.
    Moved,
    /// No driver uses the device at present.
    Unused,
    /// Some have not, for this reason; true if others have.
    Kept(String, bool),
    /// The program has ended; true if some have moved.
    Ended(bool),
}

impl Drivers {
    /// Waits for drivers at a path.
    ///
    /// # Errors
    /// The errors of the socket.
    pub(super) fn listen(path: PathBuf) -> io::Result<Self> {
        let listener =
            UnixListener::from(listen_alone(&path, SocketType::STREAM, SocketFlags::CLOEXEC)?);
        refuse_descriptors(&listener)?;
        let shared = Arc::new(Shared::default());
        let accepting = std::thread::Builder::new().name("venice-moves".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept_all(&listener)
        })?;
        Ok(Self { path, shared, accepting: Some(accepting) })
    }

    /// Returns the path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Asks all drivers for a move, but those that have moved already, and waits at most so long for
    /// their answers. Calls `slow` once, if a driver has not answered after five seconds.
    pub(super) fn ask(&self, step: &Move, within: Duration, slow: impl FnOnce()) -> Answer {
        let mut state = self.shared.lock();
        let entry = || Asked { step: step.clone(), moved: BTreeSet::new(), kept: BTreeMap::new() };
        let asked = state.asked.entry(step.grant).or_insert_with(entry);
        if asked.step != *step {
            *asked = entry();
        }
        asked.kept.clear();
        let moved = asked.moved.clone();
        let message = ToDriver::Move(step.clone());
        for socket in state.connected.iter().filter(|(id, _)| !moved.contains(id)) {
            // A driver that is gone is noticed by its thread.
            let _ = send(&socket.1.socket, &message);
        }
        let began = Instant::now();
        let (until, mut slow) = (began + within, Some(slow));
        let is_late = loop {
            if state.unanswered(step.grant) == 0 || state.is_closed {
                break false;
            }
            if began.elapsed() >= SLOW
                && let Some(slow) = slow.take()
            {
                drop(state);
                slow();
                state = self.shared.lock();
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break true;
            }
            let woken = self.shared.changed.wait_timeout(state, left.min(LOOK_EVERY));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.connected.retain(|_, driver| !driver.has_ended());
        };
        let asked = &state.asked[&step.grant];
        let some_moved = !asked.moved.is_empty();
        match asked.kept.values().next() {
            _ if state.is_closed => Answer::Ended(some_moved),
            Some(why) => Answer::Kept(why.clone(), some_moved),
            None if is_late => Answer::Kept("it takes longer".into(), some_moved),
            None if some_moved => Answer::Moved,
            None => Answer::Unused,
        }
    }

    /// Notes that a move is over: programs that start later begin there.
    pub(super) fn note_moved(&self, step: Move) {
        let mut state = self.shared.lock();
        state.asked.remove(&step.grant);
        state.over.insert(step.grant, step);
    }

    /// Notes that a move is given up.
    pub(super) fn give_up(&self, grant: GrantId) {
        self.shared.lock().asked.remove(&grant);
    }

    /// Ends all waiting, now and later.
    pub(super) fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Drivers {
    fn drop(&mut self) {
        self.close();
        // Wakes the thread.
        let _ = UnixStream::connect(&self.path);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl State {
    /// Returns how many drivers have not answered.
    fn unanswered(&self, grant: GrantId) -> usize {
        let Some(asked) = self.asked.get(&grant) else { return 0 };
        let has_answered = |id| asked.moved.contains(id) || asked.kept.contains_key(id);
        self.connected.keys().filter(|id| !has_answered(id)).count()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>, listener: &UnixListener) {
        for socket in listener.incoming() {
            if self.lock().is_closed {
                return;
            }
            // One that fails leaves its program without moves, which its driver tells.
            let _ = socket.and_then(|socket| self.accept(socket));
        }
    }

    fn accept(self: &Arc<Self>, socket: UnixStream) -> io::Result<()> {
        let reader = socket.try_clone()?;
        let peer = getsockopt(&socket, PeerCredentials).ok();
        let process = peer.and_then(|peer| Pid::from_raw(peer.pid()));
        let id = {
            let mut state = self.lock();
            if state.connected.len() >= MAX_DRIVERS {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            send(&socket, &ToDriver::Hello { moved: state.over.values().cloned().collect() })?;
            for asked in state.asked.values() {
                send(&socket, &ToDriver::Move(asked.step.clone()))?;
            }
            state.next += 1;
            let id = state.next;
            state.connected.insert(id, Driver { socket, process });
            id
        };
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("venice-driver".into())
            .spawn(move || shared.hear(id, reader));
        if started.is_err() {
            self.forget(id);
        }
        started.map(drop)
    }

    /// Takes the answers of a driver until it is gone.
    fn hear(&self, id: u64, socket: UnixStream) {
        let mut lines = Lines::new(socket);
        while let Ok(Some(message)) = lines.receive::<FromDriver>(None) {
            let mut state = self.lock();
            match message {
                FromDriver::Moved { grant } => {
                    if let Some(asked) = state.asked.get_mut(&grant) {
                        asked.moved.insert(id);
                    }
                }
                FromDriver::Kept { grant, why } => {
                    if let Some(asked) = state.asked.get_mut(&grant) {
                        asked.kept.insert(id, why);
                    }
                }
            }
            drop(state);
            self.changed.notify_all();
        }
        self.forget(id);
    }

    fn forget(&self, id: u64) {
        self.lock().connected.remove(&id);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::ServiceAccess;

    const LONG: Duration = Duration::from_secs(60);
    const GRANT: GrantId = GrantId(3);

    fn step(grant: u64) -> Move {
        let (service, secret) = ("opencl".to_owned(), [7; 32]);
        let to = ServiceAccess { grant: GrantId(grant), service, secret, endpoints: Vec::new() };
        Move { grant: GRANT, to }
    }

    fn drivers() -> (tempfile::TempDir, Drivers) {
        let dir = tempfile::tempdir().unwrap();
        let drivers = Drivers::listen(dir.path().join("moves.sock")).unwrap();
        (dir, drivers)
    }

    fn connect(drivers: &Drivers) -> (UnixStream, Lines, Vec<Move>) {
        let socket = UnixStream::connect(drivers.path()).unwrap();
        let mut lines = Lines::new(socket.try_clone().unwrap());
        match lines.receive(Some(LONG)).unwrap() {
            Some(ToDriver::Hello { moved }) => (socket, lines, moved),
            other => panic!("{other:?}"),
        }
    }

    fn answer((socket, lines, _): &mut (UnixStream, Lines, Vec<Move>), answer: &FromDriver) {
        assert!(matches!(lines.receive(Some(LONG)).unwrap(), Some(ToDriver::Move(_))));
        send(socket, answer).unwrap();
    }

    #[test]
    fn move_waits_for_all_drivers() {
        let (_dir, drivers) = drivers();
        assert_eq!(drivers.ask(&step(4), LONG, || {}), Answer::Unused);
        drivers.give_up(GRANT);
        let mut both = [connect(&drivers), connect(&drivers)];
        let (moved, kept) = (
            FromDriver::Moved { grant: GRANT },
            FromDriver::Kept { grant: GRANT, why: "a buffer is mapped".into() },
        );
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| drivers.ask(&step(5), LONG, || {}));
            answer(&mut both[0], &moved);
            answer(&mut both[1], &kept);
            let why = "a buffer is mapped".to_owned();
            assert_eq!(asking.join().unwrap(), Answer::Kept(why, true));
            // Only the one that has not moved is asked again.
            let asking = scope.spawn(|| drivers.ask(&step(5), LONG, || {}));
            answer(&mut both[1], &moved);
            assert_eq!(asking.join().unwrap(), Answer::Moved);
        });
        drivers.note_moved(step(5));
        assert_eq!(connect(&drivers).2, [step(5)]);
    }

    #[test]
    fn ended_driver_is_not_awaited() {
        let (_dir, drivers) = drivers();
        let gone = connect(&drivers);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| drivers.ask(&step(5), LONG, || {}));
            drop(gone);
            assert_eq!(asking.join().unwrap(), Answer::Unused);
        });
    }

    #[test]
    fn forked_child_is_not_awaited() {
        let (_dir, drivers) = drivers();
        // Connects, leaves the socket to a child, and ends.
        let program = "import os, socket, sys, time\n\
                       ours = socket.socket(socket.AF_UNIX)\n\
                       ours.connect(sys.argv[1])\n\
                       ours.recv(1)\n\
                       child = os.fork()\n\
                       if child == 0:\n    time.sleep(600)\n\
                       print(child, flush=True)\n";
        let mut python = std::process::Command::new("/usr/bin/python3");
        python.args(["-c", program]).arg(drivers.path());
        let Ok(output) = python.stdout(std::process::Stdio::piped()).spawn() else {
            return println!("SKIPPED: forked_child_is_not_awaited: no Python");
        };
        let mut parent = output;
        let mut said = String::new();
        let mut lines = std::io::BufReader::new(parent.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
        let child = Pid::from_raw(said.trim().parse().unwrap()).unwrap();
        assert!(parent.wait().unwrap().success());
        let answer = drivers.ask(&step(5), LONG, || {});
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        assert_eq!(answer, Answer::Unused);
    }

    #[test]
    fn slow_driver_is_told() {
        let (_dir, drivers) = drivers();
        let mut driver = connect(&drivers);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let asking =
                scope.spawn(|| drivers.ask(&step(5), LONG, move || tell.send(()).unwrap()));
            told.recv_timeout(LONG).unwrap();
            answer(&mut driver, &FromDriver::Moved { grant: GRANT });
            assert_eq!(asking.join().unwrap(), Answer::Moved);
        });
    }

    #[test]
    fn closed_asking_has_ended() {
        let (_dir, drivers) = drivers();
        let _silent = connect(&drivers);
        drivers.close();
        assert_eq!(drivers.ask(&step(5), LONG, || {}), Answer::Ended(false));
    }

    #[test]
    fn silent_driver_keeps_device() {
        let (_dir, drivers) = drivers();
        let _silent = connect(&drivers);
        let answer = drivers.ask(&step(5), Duration::from_millis(20), || {});
        assert_eq!(answer, Answer::Kept("it takes longer".into(), false));
    }
}
