//! The inherited and the attach socket of a run: processes attach through them, and the far pages of
//! an ended process are freed.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use venice_memory::paged::attach::{self, Address, Served, Supervisor};
use venice_memory::paged::loss::{self, Loss};
use venice_memory::paged::run_block::{Fate, Process, RunBlockMap};
use venice_memory::paged::{InheritedSocket, Lifeline, SharedRequest, slots};
use venice_ports::shm::SlabFile;
use venice_recipient::Holding;
use venice_recipient::runs::{RunFile, RunsDir};

use super::core_dumps::{self, CorePlace};
use super::meeting_place::MeetingPlace;
use super::shared_memory::SharedMemory;
use super::unmanaged::UnmanagedView;
use venice_cli::terminal::remark;

/// Interval between two checks of the processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval between two updates of the run file (`venice status`), and between two looks at the
/// directories of the processes.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Both sockets, and their thread.
pub struct Attending {
    place: MeetingPlace,
    inherited: Arc<InheritedSocket>,
    block: Arc<RunBlockMap>,
    shared: Arc<SharedMemory>,
    lifeline: Arc<Lifeline>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attending {
    /// Starts to listen. The program has `descriptor_limit` as its soft limit on descriptors.
    pub fn start(
        block_fd: OwnedFd,
        (holding, unmanaged): (Arc<Holding>, UnmanagedView),
        program: &str,
        descriptor_limit: u64,
    ) -> anyhow::Result<Attending> {
        let place = MeetingPlace::new()?;
        let inherited =
            InheritedSocket::new(descriptor_limit).context("making the run's inherited socket")?;
        let inherited = Arc::new(inherited);
        let entrances = Entrances { listener: place.listen()?, inherited: inherited.clone() };
        let lifeline = Arc::new(Lifeline::new().context("making a pipe to the processes")?);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, block) = (stop.clone(), holding.block().clone());
        let mut file = RunsDir::locate().and_then(|dir| RunFile::new(&dir, program));
        let processes_end = lifeline.clone();
        let shared = Arc::new(SharedMemory::new(holding.clone()));
        let run = ForProcesses { holding, unmanaged, shared: shared.clone() };
        let thread = std::thread::spawn(move || {
            attend(&entrances, &run, (&block_fd, &processes_end), &stopped, &mut file);
        });
        Ok(Attending { place, inherited, block, shared, lifeline, stop, thread: Some(thread) })
    }

    /// Returns the ways to attach, for the environment of the program.
    pub fn address(&self) -> anyhow::Result<Address> {
        let name = self.inherited.name().context("naming the run's inherited socket")?;
        Ok(Address::new(name, self.place.socket()))
    }

    /// Returns the descriptor that the program inherits.
    pub fn inherited(&self) -> BorrowedFd<'_> {
        self.inherited.program_end()
    }

    /// The memory that the run's processes share.
    pub fn shared(&self) -> Arc<SharedMemory> {
        self.shared.clone()
    }

    /// Waits for processes that the program left behind (a daemon's): their memory is held by this
    /// process. `meanwhile` is called with their ids now and then. Processes without memory here
    /// continue on their own.
    pub fn wait_for_the_rest(&self, mut meanwhile: impl FnMut(&[u32])) {
        loop {
            let left = pids(&self.block);
            if left.is_empty() && !self.shared.is_in_use() {
                self.shared.end();
                return self.lifeline.release();
            }
            meanwhile(&left);
            std::thread::sleep(LOOK_EVERY);
        }
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

/// The places where processes ask to attach.
struct Entrances {
    listener: OwnedFd,
    inherited: Arc<InheritedSocket>,
}

impl Entrances {
    /// Accepts what has come. A process that has gone meanwhile is passed over.
    fn accept(&self, [at_socket, at_inherited]: [bool; 2]) -> impl Iterator<Item = Connection> {
        let accept = || rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC).ok();
        let by_socket = at_socket.then(accept).flatten();
        let by_inherited = at_inherited.then(|| self.inherited.accept().ok()).flatten();
        by_socket
            .into_iter()
            .chain(by_inherited)
            .map(|socket| Connection { socket, attached: None })
    }
}

/// The supervisor's services for its processes.
struct ForProcesses {
    holding: Arc<Holding>,
    unmanaged: UnmanagedView,
    shared: Arc<SharedMemory>,
}

impl Supervisor for ForProcesses {
    fn slab(&self, replica: usize) -> Option<SlabFile> {
        self.holding.slab(replica)
    }

    fn before_end(&self, end: OwnedFd) {
        self.unmanaged.look_before(end);
    }

    fn shared(&self, request: SharedRequest, with: Option<OwnedFd>) -> (u64, Option<OwnedFd>) {
        self.shared.serve(request, with)
    }
}

fn attend(
    entrances: &Entrances,
    run: &ForProcesses,
    (block_fd, lifeline): (&OwnedFd, &Lifeline),
    stop: &AtomicBool,
    file: &mut Option<RunFile>,
) {
    let ForProcesses { holding, shared, .. } = run;
    let block = holding.block();
    let mut watched = BTreeMap::new();
    // Connections stay open as long as their processes live: a closed connection tells a process
    // that its supervisor has ended.
    let mut connections: Vec<Connection> = Vec::new();
    let mut told = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let ready = wait(entrances, &connections);
        let has_come = [ready.first() == Some(&true), ready.get(1) == Some(&true)];
        let mut ready = ready.into_iter().skip(has_come.len());
        // Closed connections before new ones: a process that execs ends one and opens another.
        let (ready, quiet): (Vec<_>, Vec<_>) =
            connections.into_iter().partition(|_| ready.next() == Some(true));
        let (mut known, mut new): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(|connection| connection.attached.is_some());
        known.retain(|connection| connection.goes_on(run));
        // A process that is killed half way is found dead below.
        let end = block.is_window().then(|| lifeline.for_processes());
        new.retain_mut(|connection| connection.welcome(block, block_fd.as_fd(), end));
        connections = quiet.into_iter().chain(known).chain(new).collect();
        connections.extend(entrances.accept(has_come));
        watch(run, &mut watched);
        if watched.values().all(|process| process.completing.is_none()) {
            shared.tidy();
        }
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            watched.iter_mut().for_each(|(pid, process)| process.core_place.refresh(*pid));
            if let Some(file) = file {
                file.update(holding.copies());
            }
        }
    }
    // The event that ended the program may have arrived since the last check.
    watch(run, &mut watched);
}

/// A process of the run, watched until it ends.
struct WatchedProcess {
    pidfd: OwnedFd,
    core_place: CorePlace,
    /// The thread that completes its core.
    completing: Option<JoinHandle<()>>,
}

impl WatchedProcess {
    fn new(pid: u32) -> Option<WatchedProcess> {
        let pidfd = open(pid)?;
        Some(WatchedProcess { pidfd, core_place: CorePlace::of(pid), completing: None })
    }

    /// True once the process has ended and its core, if it left one, is complete.
    fn is_over(&mut self, pid: u32, run: &ForProcesses) -> bool {
        if !is_ready(&self.pidfd, Duration::ZERO) {
            return false;
        }
        if self.completing.is_none() {
            let header = image_of(run.holding.block(), pid);
            let place = &self.core_place;
            self.completing = header.and_then(|header| {
                let far = (&run.holding, &run.shared);
                core_dumps::begin(far, pid, header, self.pidfd.as_fd(), place)
            });
        }
        self.completing.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// Returns the address of the header of a process's page table, if a pager serves it.
fn image_of(block: &RunBlockMap, pid: u32) -> Option<u64> {
    let mut processes = block.live_processes().map(|(_, process)| process);
    let process = processes.find(|it| it.pid.load(Ordering::Acquire) == pid)?;
    Some(process.image_address.load(Ordering::Acquire)).filter(|header| *header != 0)
}

/// The connection of a process.
struct Connection {
    socket: OwnedFd,
    /// The process, once it is attached.
    attached: Option<Attached>,
}

/// An attached process.
struct Attached {
    /// Its index in the run block; none where the block has no room for it.
    place: Option<usize>,
}

impl Connection {
    /// Attaches the process, which has sent its first message; `false` if it cannot be attached.
    fn welcome(
        &mut self,
        block: &RunBlockMap,
        block_fd: BorrowedFd<'_>,
        lifeline: Option<BorrowedFd<'_>>,
    ) -> bool {
        let welcomed = attach::welcome(self.socket.as_fd(), block, block_fd, lifeline);
        self.attached = welcomed.ok().map(|pid| Attached { place: place_of(block, pid) });
        self.attached.is_some()
    }

    /// Answers the process's message; `false` at the end of the connection.
    fn goes_on(&self, run: &ForProcesses) -> bool {
        let block = run.holding.block();
        if attach::serve_request(self.socket.as_fd(), block, run) == Served::Request {
            return true;
        }
        let place = self.attached.as_ref().and_then(|attached| attached.place);
        if let Some(place) = place.filter(|_| block.is_window()) {
            block.processes[place].end_window();
        }
        false
    }
}

/// Ids of the processes that page now.
fn pids(block: &RunBlockMap) -> Vec<u32> {
    block.live_processes().map(|(_, process)| process.pid.load(Ordering::Acquire)).collect()
}

fn place_of(block: &RunBlockMap, pid: u32) -> Option<usize> {
    let mut processes = block.live_processes();
    processes.find(|(_, it)| it.pid.load(Ordering::Acquire) == pid).map(|(place, _)| place)
}

/// Waits until a descriptor is readable. The result is true for each that is: the listener, the
/// inherited socket, then the connections.
fn wait(entrances: &Entrances, connections: &[Connection]) -> Vec<bool> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    let entrances = [entrances.listener.as_fd(), entrances.inherited.as_fd()];
    let all = entrances.into_iter().chain(connections.iter().map(|it| it.socket.as_fd()));
    let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Finds ended processes, whoever their parent is, and reports lost pages and the messages with
/// which processes end.
fn watch(run: &ForProcesses, watched: &mut BTreeMap<u32, WatchedProcess>) {
    let block = run.holding.block();
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
    let pids = pids(block);
    watched.retain(|pid, _| pids.contains(pid));
    for pid in pids {
        let is_over = match watched.get_mut(&pid) {
            Some(process) => process.is_over(pid, run),
            None => match WatchedProcess::new(pid) {
                Some(process) => {
                    watched.insert(pid, process);
                    false
                }
                None => true,
            },
        };
        if is_over {
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
        Some(Fate::NotAdmitted) => {
            format!("node {name} does not admit this program any more, and has {copy}")
        }
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
