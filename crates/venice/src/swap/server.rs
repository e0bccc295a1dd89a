//! The server of a swap device: borrows, serves requests, reports its status, and reads everything
//! back at the end.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use venice_control::Standing;
use venice_recipient::runs::{RunFile, RunsDir, conversation};
use venice_recipient::{Copies, News, RemoteMemory, Request};
use venice_swap::backing::Backing;
use venice_swap::cgroup::MemoryCgroup;
use venice_swap::{BlockKind, IoFlusher, Shield, Store, SwapDevice, SwapError};
use venice_wire::PAGE_BYTES;

use super::control::{self, Answer, Question};
use super::plan::{Plan, Size};
use super::session::clear_group;
use super::status::{Status, UP};
use venice_cli::log::start_log;

/// Interval between checks of signals and counters, without questions.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Averaging period of rates.
const RATE_OVER: Duration = Duration::from_secs(1);
/// Interval between detach attempts of a device whose owner has ended.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// Name of the cgroups of `venice run --mode swap`.
pub const RUN_GROUP: &str = "run";

/// `venice swap serve`
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Directory with the plan, for the socket and the log
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
}

/// Serves one device until it is detached.
pub fn execute(args: &ServeArgs) -> anyhow::Result<i32> {
    crate::session::start().context("starting a session")?;
    let asked_to_end = catch_signals()?;
    start_log()?;
    let plan = Plan::load(&args.folder)?;
    crate::run::raise_descriptor_limit();
    // Before the first thread: thread stacks are locked when they are created.
    let shield = Shield::raise()?;
    let mut server = Server::start(plan, &args.folder, shield, &asked_to_end)?;
    server.run(&asked_to_end);
    Ok(0)
}

/// The server must outlive the terminal.
fn catch_signals() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked)).context("catching signals")?;
    }
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, ignored).context("catching signals")?;
    Ok(asked)
}

struct Server {
    plan: Plan,
    folder: PathBuf,
    listener: UnixListener,
    device: Attached,
    path: PathBuf,
    kind: BlockKind,
    store: Store,
    /// Process that the device serves.
    owner: Option<OwnedFd>,
    rates: Rates,
    told_failed: u64,
    shield: Shield,
    /// Returned when the device is gone.
    memory: Option<RemoteMemory>,
    /// Run file for `venice status`.
    file: Option<RunFile>,
}

/// State of the device.
enum Attached {
    Serving(SwapDevice),
    /// A thread reads everything back; these connections wait for the outcome.
    Leaving(JoinHandle<(SwapDevice, Result<(), SwapError>)>, Vec<UnixStream>),
    Gone,
}

impl Server {
    fn start(
        plan: Plan,
        folder: &Path,
        shield: Shield,
        asked_to_end: &AtomicBool,
    ) -> anyhow::Result<Self> {
        let owner = plan.owner_pid.map(open_process).transpose()?;
        // The threads that renew leases and repair copies must not wait for memory either.
        let flagged = IoFlusher::begin()?;
        let is_over =
            || asked_to_end.load(Ordering::Relaxed) || owner.as_ref().is_some_and(has_ended);
        let memory = borrow(&plan, is_over)?;
        drop(flagged);
        let len_bytes = match plan.size {
            Size::Exactly(bytes) => bytes.min(memory.len_bytes()),
            Size::UpTo(_) => memory.len_bytes(),
        };
        let len_bytes = len_bytes / PAGE_BYTES * PAGE_BYTES;
        let backings = (0..plan.queues).map(|_| {
            let lane = memory.lane().context("reaching the donors")?;
            Ok(Box::new(lane) as Box<dyn Backing>)
        });
        let backings = backings.collect::<anyhow::Result<Vec<_>>>()?;
        memory.memory().map_all();
        let kind = plan.device.map_or_else(BlockKind::best, |device| device.0);
        let device = SwapDevice::attach(len_bytes, backings, plan.priority, kind)?;
        let (path, store) = (device.path().to_owned(), device.store().clone());
        let rates = Rates::new(&store);
        let size = venice_cli::terminal::bytes(len_bytes);
        tracing::info!("{}: {size} on {} by {}", plan.name, path.display(), kind.name());
        let file = folder.parent().and_then(|dir| RunFile::new(&RunsDir::of(dir), &plan.purpose));
        let server = Self {
            plan,
            folder: folder.to_owned(),
            // From here on it answers questions, which signals readiness.
            listener: control::listen(folder)?,
            device: Attached::Serving(device),
            path,
            kind,
            store,
            owner,
            rates,
            told_failed: 0,
            shield,
            file,
            memory: Some(memory),
        };
        let text = serde_json::to_string_pretty(&server.status())?;
        let ready = folder.join("ready.json");
        std::fs::write(&ready, text).with_context(|| format!("writing {}", ready.display()))?;
        Ok(server)
    }

    fn run(&mut self, asked_to_end: &AtomicBool) {
        let mut next_try = Instant::now();
        while !matches!(self.device, Attached::Gone) {
            wait_readable(&self.listener, LOOK_EVERY);
            while let Ok((stream, _)) = self.listener.accept() {
                match conversation::hear(&stream) {
                    Some(Question::Status) => {
                        conversation::tell(&stream, &Answer::Status(Box::new(self.status())));
                    }
                    Some(Question::Detach) => self.leave(Some(stream)),
                    None => {}
                }
            }
            if asked_to_end.swap(false, Ordering::Relaxed) {
                tracing::info!("{}: asked to end", self.plan.name);
                self.leave(None);
            }
            if self.owner.as_ref().is_some_and(has_ended) && Instant::now() >= next_try {
                next_try = Instant::now() + RETRY_EVERY;
                // The owner's pages on the device belong to no other program.
                MemoryCgroup::clear_leftovers(RUN_GROUP);
                clear_group(&self.folder);
                self.leave(None);
            }
            self.map_what_came();
            self.rates.sample(&self.store);
            self.tell_failures();
            if let (Some(file), Some(memory)) = (&mut self.file, &self.memory) {
                file.update(memory.copies());
            }
            self.finish_leaving();
        }
    }

    /// Maps repaired copies before a queue writes to them: mapping allocates.
    fn map_what_came(&self) {
        if let (Some(memory), Ok(_flagged)) = (&self.memory, IoFlusher::begin()) {
            memory.memory().map_all();
        }
    }

    /// Starts a thread that reads everything back; `stream` receives the outcome.
    fn leave(&mut self, stream: Option<UnixStream>) {
        self.device = match std::mem::replace(&mut self.device, Attached::Gone) {
            Attached::Serving(mut device) => {
                let body = move || {
                    let outcome = device.detach();
                    (device, outcome)
                };
                Attached::Leaving(std::thread::spawn(body), stream.into_iter().collect())
            }
            Attached::Leaving(thread, mut streams) => {
                streams.extend(stream);
                Attached::Leaving(thread, streams)
            }
            Attached::Gone => Attached::Gone,
        };
    }

    fn finish_leaving(&mut self) {
        let Attached::Leaving(thread, _) = &self.device else { return };
        if !thread.is_finished() {
            return;
        }
        let leaving = std::mem::replace(&mut self.device, Attached::Gone);
        let Attached::Leaving(thread, streams) = leaving else { return };
        let (device, outcome) = thread.join().expect("detaching does not panic");
        let answer = match outcome {
            Ok(()) => {
                drop(self.memory.take());
                drop(self.file.take());
                tracing::info!("{}: detached", self.plan.name);
                // Before the answer: after it the name is free again.
                let _ = std::fs::remove_dir_all(&self.folder);
                Answer::Detached
            }
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!("{} stays: {why}", self.plan.name);
                self.device = Attached::Serving(device);
                Answer::Refused(why)
            }
        };
        streams.iter().for_each(|stream| conversation::tell(stream, &answer));
    }

    fn tell_failures(&mut self) {
        let failed = self.store.failed();
        if failed > self.told_failed {
            let lost = self.copies().lost_donors.join(", ");
            tracing::error!(
                "{}: {} requests failed: their pages are lost with {lost}; programs that touch \
                 them get SIGBUS",
                self.plan.name,
                failed - self.told_failed
            );
            self.told_failed = failed;
        }
    }

    fn copies(&self) -> Copies {
        self.memory.as_ref().map(RemoteMemory::copies).unwrap_or_default()
    }

    /// Returns the donors in use, without the lost ones.
    fn donors(&self) -> Vec<String> {
        let donors = self.memory.iter().flat_map(|memory| memory.memory().block().donors());
        let live: BTreeSet<String> =
            donors.filter(|donor| !donor.is_gone()).map(|donor| donor.name()).collect();
        live.into_iter().collect()
    }

    fn status(&self) -> Status {
        let counters = self.store.counters();
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let micros = |quantile| counters.request_ns.at(quantile).map(|ns| ns as f64 / 1000.0);
        let shortage = self.memory.as_ref().and_then(RemoteMemory::shortage);
        let state = if matches!(self.device, Attached::Serving(_)) { UP } else { "detaching" };
        Status {
            name: self.plan.name.clone(),
            state: state.into(),
            device: self.path.clone(),
            kind: self.kind.name().into(),
            pid: std::process::id(),
            size_bytes: self.store.len_bytes(),
            used_bytes: venice_swap::used_bytes(&self.path).unwrap_or(0),
            far_bytes: self.store.held_bytes(),
            port: self.plan.port,
            donors: self.donors(),
            is_short: shortage.is_some(),
            unusable_donors: shortage.map(|it| it.unusable.clone()).unwrap_or_default(),
            copies: self.copies(),
            queues: self.plan.queues,
            priority: self.plan.priority,
            read_bytes: get(&counters.read_bytes),
            written_bytes: get(&counters.written_bytes),
            read_bytes_per_s: self.rates.read_bytes_per_s,
            written_bytes_per_s: self.rates.written_bytes_per_s,
            request_p50_us: micros(0.5),
            request_p99_us: micros(0.99),
            zero_pages: get(&counters.zero_pages),
            discarded_pages: get(&counters.discarded_pages),
            gaps: self.shield.gaps().iter().map(|gap| (*gap).to_owned()).collect(),
            failed_requests: self.store.failed(),
        }
    }
}

fn borrow(plan: &Plan, is_over: impl Fn() -> bool) -> anyhow::Result<RemoteMemory> {
    let spec = plan.spec();
    let (port, node) = (plan.port, plan.node.clone());
    let access = plan.access();
    let name = plan.name.clone();
    let tell = move |news: News| match news {
        News::Lost(donor) if donor.lost_slabs > 0 => tracing::error!("{name}: {donor}"),
        News::Rebuilt { .. } | News::GivenBack { .. } => tracing::info!("{name}: {news}"),
        news => tracing::warn!("{name}: {news}"),
    };
    let mut told = |_: Option<&Standing>| match is_over() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let request = Request { access, port, node, spec };
    Ok(RemoteMemory::borrow_in_line(&request, &mut told, tell)?)
}

/// Transfer rates in bytes a second, over the last full second.
struct Rates {
    since: Instant,
    read_bytes: u64,
    written_bytes: u64,
    read_bytes_per_s: u64,
    written_bytes_per_s: u64,
}

impl Rates {
    fn new(store: &Store) -> Self {
        let (read_bytes, written_bytes) = totals(store);
        let since = Instant::now();
        Self { since, read_bytes, written_bytes, read_bytes_per_s: 0, written_bytes_per_s: 0 }
    }

    fn sample(&mut self, store: &Store) {
        let elapsed = self.since.elapsed();
        if elapsed < RATE_OVER {
            return;
        }
        let (read_bytes, written_bytes) = totals(store);
        let rate = |bytes: u64| (bytes as f64 / elapsed.as_secs_f64()) as u64;
        let read_bytes_per_s = rate(read_bytes - self.read_bytes);
        let written_bytes_per_s = rate(written_bytes - self.written_bytes);
        let since = Instant::now();
        *self = Self { since, read_bytes, written_bytes, read_bytes_per_s, written_bytes_per_s };
    }
}

fn totals(store: &Store) -> (u64, u64) {
    let counters = store.counters();
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    (get(&counters.read_bytes), get(&counters.written_bytes))
}

fn open_process(pid: u32) -> anyhow::Result<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.with_context(|| format!("invalid process id {pid}"))?;
    let opened = pidfd_open(number, PidfdFlags::empty());
    opened.with_context(|| format!("watching process {pid}"))
}

fn has_ended(process: &OwnedFd) -> bool {
    wait_readable(process, Duration::ZERO)
}

fn wait_readable(fd: impl std::os::fd::AsFd, patience: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
