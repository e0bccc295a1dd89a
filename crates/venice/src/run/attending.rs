//! The attach socket of a run: processes attach through it, and the far pages of an ended process
//! are freed.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use venice_memory::paged::Lifeline;
use venice_memory::paged::attach::{self, Served};
use venice_memory::paged::loss::{self, Loss};
use venice_memory::paged::run_block::{Fate, Process, RunBlockMap};
use venice_memory::paged::slots;
use venice_recipient::Holding;
use venice_recipient::runs::{RunFile, RunsDir};

use super::meeting_place::MeetingPlace;
use venice_cli::terminal::remark;

/// Interval between two checks of the processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval between two updates of the run file (`venice status`).
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The attach socket and its thread.
pub struct Attending {
    place: MeetingPlace,
    block: Arc<RunBlockMap>,
    lifeline: Arc<Lifeline>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attending {
    /// Starts to listen.
    pub fn start(
        block_fd: OwnedFd,
        holding: Arc<Holding>,
        program: &str,
    ) -> anyhow::Result<Attending> {
        let place = MeetingPlace::new()?;
        let listener = place.listen()?;
        let lifeline = Arc::new(Lifeline::new().context("making a pipe to the processes")?);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, block) = (stop.clone(), holding.block().clone());
        let mut file = RunsDir::locate().and_then(|dir| RunFile::new(&dir, program));
        let processes_end = lifeline.clone();
        let thread = std::thread::spawn(move || {
            attend(&listener, &holding, (&block_fd, &processes_end), &stopped, &mut file);
        });
        Ok(Attending { place, block, lifeline, stop, thread: Some(thread) })
    }

    /// Returns the path of the attach socket.
    pub fn socket(&self) -> PathBuf {
        self.place.socket()
    }

    /// Waits for processes that the program left behind (a daemon's): their memory is held by this
    /// process. Processes without memory here continue on their own.
    pub fn wait_for_the_rest(&self) {
        while self.block.live_processes().next().is_some() {
            std::thread::sleep(LOOK_EVERY);
        }
        self.lifeline.release();
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn attend(
    listener: &OwnedFd,
    holding: &Holding,
    (block_fd, lifeline): (&OwnedFd, &Lifeline),
    stop: &AtomicBool,
    file: &mut Option<RunFile>,
) {
    let block = holding.block();
    let mut watched = BTreeMap::new();
    // Connections stay open as long as their processes live: a closed connection tells a process
    // that its supervisor has ended.
    let mut connections: Vec<Connection> = Vec::new();
    let mut told = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let ready = wait(listener, &connections);
        let has_come = ready.first() == Some(&true);
        let mut ready = ready.into_iter().skip(1);
        // Handled before new connections: a process that execs ends one connection and opens
        // another.
        connections.retain(|connection| ready.next() != Some(true) || connection.goes_on(holding));
        if has_come && let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            // A process that is killed half way is found dead below.
            let end = block.is_window().then(|| lifeline.for_processes());
            if let Ok(pid) = attach::welcome(socket.as_fd(), block, block_fd.as_fd(), end) {
                connections.push(Connection { socket, place: place_of(block, pid) });
            }
        }
        watch(block, &mut watched);
        if let Some(file) = file
            && told.elapsed() > TELL_EVERY
        {
            told = Instant::now();
            file.update(holding.copies());
        }
    }
    // The event that ended the program may have arrived since the last check.
    watch(block, &mut watched);
}

/// The connection of an attached process.
struct Connection {
    socket: OwnedFd,
    /// Index of the process in the run block.
    place: Option<usize>,
}

impl Connection {
    /// Answers the process's message; `false` at the end of the connection.
    fn goes_on(&self, holding: &Holding) -> bool {
        if attach::serve_request(self.socket.as_fd(), |replica| holding.slab(replica))
            == Served::Request
        {
            return true;
        }
        let block = holding.block();
        if let Some(place) = self.place.filter(|_| block.is_window()) {
            block.processes[place].end_window();
        }
        false
    }
}

fn place_of(block: &RunBlockMap, pid: u32) -> Option<usize> {
    let mut processes = block.live_processes();
    processes.find(|(_, it)| it.pid.load(Ordering::Acquire) == pid).map(|(place, _)| place)
}

/// Waits until a descriptor is readable. The result says for the listener, then for each
/// connection, whether it is.
fn wait(listener: &OwnedFd, connections: &[Connection]) -> Vec<bool> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    let all = std::iter::once(listener).chain(connections.iter().map(|it| &it.socket));
    let mut fds: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Finds ended processes, whoever their parent is, and reports lost pages and the messages with
/// which processes end.
fn watch(block: &RunBlockMap, watched: &mut BTreeMap<u32, OwnedFd>) {
    for (pid, text) in block.take_end_messages() {
        remark(format!("venice: {text} (process {pid}: SIGKILL)"));
    }
    for lost in loss::take(block) {
        remark(format!(
            "venice: {} of a page of this program: region {:#x}-{:#x}, address {:#x}, process {}: \
             SIGBUS",
            who_had_it(&lost),
            lost.region.start,
            lost.region.end,
            lost.address,
            lost.pid
        ));
    }
    for (place, forker) in block.forking() {
        if open(forker).is_none() {
            slots::leave(block, place, Process::FORKING);
        }
    }
    let pids: Vec<u32> =
        block.live_processes().map(|(_, process)| process.pid.load(Ordering::Acquire)).collect();
    watched.retain(|pid, _| pids.contains(pid));
    for pid in pids {
        let ended = match watched.get(&pid) {
            Some(process) => is_ready(process, Duration::ZERO),
            None => match open(pid) {
                Some(process) => {
                    watched.insert(pid, process);
                    false
                }
                None => true,
            },
        };
        if ended {
            attach::leave(block, pid);
            watched.remove(&pid);
        }
    }
}

/// Describes how the copies of a page, or too many of its fragments, were lost.
fn who_had_it(lost: &Loss) -> String {
    let donors: Vec<_> = match lost.is_coded {
        // Living donors hold fragments, but too few of them.
        true => lost.donors.iter().filter(|(_, fate)| fate.is_some()).collect(),
        false => lost.donors.iter().collect(),
    };
    let copy = match (lost.is_coded, donors.len()) {
        (true, _) => "a fragment",
        (false, 1) => "the only copy",
        (false, _) => "a copy",
    };
    let ends = donors.iter().map(|(name, fate)| match fate {
        Some(Fate::Died) => format!("node {name} died with {copy}"),
        Some(Fate::Revoked) => format!("node {name} took back {copy}"),
        Some(Fate::Unresponsive) => format!("node {name} stopped answering with {copy}"),
        None => format!("node {name} has {copy} that missed a write"),
    });
    ends.collect::<Vec<_>>().join(", ")
}

fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn is_ready(fd: &OwnedFd, patience: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
