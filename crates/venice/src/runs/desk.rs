//! The desk of a run: a socket in the run directory, and the thread that answers there.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::{Deserialize, Serialize};
use venice_memory::paged::run_block::FaultTimes;

use super::budget;
use super::registry;
use super::row::{Compressed, RunRow};
use crate::conversation::{self, hear, tell};
use crate::rack::RunDir;
use crate::terminal::remark;

/// How often the faults are counted.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Rates and times of faults are of so many of the latest samples: see `venice ps --help`.
const SAMPLES: usize = 5;

/// What a desk can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// How the run is.
    Row,
    /// To give it this local budget, in bytes.
    Limit(u64),
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// How the run is.
    Row(Box<RunRow>),
    /// It is not done; why.
    Refused(String),
}

/// A run, whoever moves its pages.
pub trait Watched: Send {
    /// `paged`, `window` or `swap`.
    fn mode(&self) -> &'static str;
    /// How it is.
    fn look(&self) -> Look;
    /// Its faults so far.
    fn sample(&self) -> Sample;
    /// Gives it another budget; why not.
    fn limit(&self, local_bytes: u64) -> Result<(), String>;
}

/// How a run is: what [`RunRow`] has of it.
pub struct Look {
    pub local_bytes: u64,
    pub resident_bytes: u64,
    pub remote_bytes: u64,
    pub borrowed_bytes: u64,
    /// In so many copies, or coded.
    pub kept: String,
    /// Slabs that lack a copy, or a fragment.
    pub short_slabs: u64,
    /// What of them is missing and what is done about it; `None`: nothing is.
    pub missing: Option<String>,
    pub donors: Vec<String>,
    pub lost_donors: Vec<String>,
    /// Those that want their memory back.
    pub leaving_donors: Vec<String>,
    pub in_thread_faults: u64,
    pub compressed: Option<Compressed>,
    /// Times of requests, p50 and p99 in microseconds, where faults are not timed.
    pub request_us: Option<(Option<f64>, Option<f64>)>,
    pub processes: Vec<u32>,
}

/// The faults up to one moment.
pub struct Sample {
    pub faults: u64,
    /// How long they took, where that is known of each.
    pub times: Option<FaultTimes>,
}

/// What a desk knows of its run besides.
pub struct About {
    /// The program's process.
    pub pid: u32,
    /// The program and its arguments.
    pub command: String,
    /// How the donors are reached.
    pub port: String,
}

/// A desk that is open; dropped, it is closed.
pub struct Desk {
    path: PathBuf,
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Desk {
    /// Opens one. Nobody depends on it: where it cannot be had, `venice ps` does not show the run,
    /// and that is said.
    pub fn open(about: About, run: impl Watched + 'static) -> Option<Desk> {
        let opened = Desk::try_open(about, run);
        let refused = |error| remark(format!("venice: `venice ps` will not show this: {error:#}"));
        opened.map_err(refused).ok()
    }

    fn try_open(about: About, run: impl Watched + 'static) -> anyhow::Result<Desk> {
        let dir = RunDir::locate()?;
        dir.create_runs_dir()?;
        let path = registry::desk_path(&dir, std::process::id());
        let listener = conversation::listen(&path)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC).context("making an eventfd")?;
        let ends = end.try_clone().context("doubling a descriptor")?;
        let mut clerk = Clerk {
            about,
            run,
            began: Instant::now(),
            samples: VecDeque::with_capacity(SAMPLES + 1),
        };
        let thread = std::thread::Builder::new().name("desk".into());
        let thread = thread.spawn(move || clerk.work(&listener, &ends));
        let thread = Some(thread.context("starting a thread")?);
        Ok(Desk { path, end, thread })
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
        // The last one's turn.
        let _ = self.path.parent().map(std::fs::remove_dir);
    }
}

/// Who answers.
struct Clerk<W> {
    about: About,
    run: W,
    began: Instant,
    samples: VecDeque<(Instant, Sample)>,
}

impl<W: Watched> Clerk<W> {
    fn work(&mut self, listener: &UnixListener, end: &OwnedFd) {
        loop {
            let is_due = |(at, _): &(Instant, Sample)| at.elapsed() >= SAMPLE_EVERY;
            if self.samples.back().is_none_or(is_due) {
                self.samples.push_back((Instant::now(), self.run.sample()));
                if self.samples.len() > SAMPLES + 1 {
                    self.samples.pop_front();
                }
            }
            let [somebody_asks, ends] = wait(listener, end);
            if ends {
                return;
            }
            if somebody_asks && let Ok((stream, _)) = listener.accept() {
                self.answer(&stream);
            }
        }
    }

    fn answer(&self, stream: &UnixStream) {
        let answer = match hear(stream) {
            _ if !may_ask(stream) => Answer::Refused(registry::ANOTHER_USERS.to_owned()),
            Some(Question::Row) => Answer::Row(Box::new(self.row())),
            Some(Question::Limit(local_bytes)) => match self.limit(local_bytes) {
                Ok(()) => Answer::Row(Box::new(self.row())),
                Err(why) => Answer::Refused(why),
            },
            None => return,
        };
        tell(stream, &answer);
    }

    fn limit(&self, local_bytes: u64) -> Result<(), String> {
        budget::check(local_bytes).map_err(|error| format!("{error:#}"))??;
        self.run.limit(local_bytes)
    }

    fn row(&self) -> RunRow {
        let look = self.run.look();
        let lately = self.lately();
        let (fault_p50_us, fault_p99_us) = look.request_us.unwrap_or(lately.us);
        RunRow {
            run: std::process::id(),
            pid: self.about.pid,
            command: self.about.command.clone(),
            mode: self.run.mode().to_owned(),
            port: self.about.port.clone(),
            age_s: self.began.elapsed().as_secs_f64(),
            processes: look.processes,
            local_bytes: look.local_bytes,
            resident_bytes: look.resident_bytes,
            remote_bytes: look.remote_bytes,
            borrowed_bytes: look.borrowed_bytes,
            faults: lately.faults,
            in_thread_faults: look.in_thread_faults,
            compressed: look.compressed,
            faults_per_s: lately.faults_per_s,
            fault_p50_us,
            fault_p99_us,
            kept: look.kept,
            short_slabs: look.short_slabs,
            missing: look.missing,
            donors: look.donors,
            lost_donors: look.lost_donors,
            leaving_donors: look.leaving_donors,
        }
    }

    /// The faults from the oldest sample that is kept until now.
    fn lately(&self) -> Lately {
        let now = self.run.sample();
        let Some((since, then)) = self.samples.front() else {
            return Lately { faults: now.faults, faults_per_s: 0.0, us: (None, None) };
        };
        let more = now.faults.saturating_sub(then.faults) as f64;
        let elapsed_s = since.elapsed().as_secs_f64();
        let times = now.times.zip(then.times.as_ref()).map(|(now, then)| now.since(then));
        let us = |quantile| Some(times.as_ref()?.at(quantile)? as f64 / 1000.0);
        Lately {
            faults: now.faults,
            faults_per_s: if elapsed_s > 0.0 { more / elapsed_s } else { 0.0 },
            us: (us(0.5), us(0.99)),
        }
    }
}

struct Lately {
    faults: u64,
    faults_per_s: f64,
    us: (Option<f64>, Option<f64>),
}

/// The run's own user may, and root.
fn may_ask(stream: &UnixStream) -> bool {
    let asker = rustix::net::sockopt::socket_peercred(stream).map(|peer| peer.uid);
    asker.is_ok_and(|uid| uid.is_root() || uid == rustix::process::geteuid())
}

/// Waits until somebody asks, the run ends, or a sample is due; which of the first two it is.
fn wait(listener: &UnixListener, end: &OwnedFd) -> [bool; 2] {
    let timeout = Timespec { tv_sec: SAMPLE_EVERY.as_secs() as i64, tv_nsec: 0 };
    let mut fds =
        [listener.as_fd(), end.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => fds.map(|fd| !fd.revents().is_empty()),
        Err(_) => [false; 2],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A run that faults at each sample.
    #[derive(Default)]
    struct Busy {
        faults: AtomicU64,
        limits: Mutex<Vec<u64>>,
    }

    impl Watched for Busy {
        fn mode(&self) -> &'static str {
            "paged"
        }

        fn look(&self) -> Look {
            Look {
                local_bytes: *self.limits.lock().unwrap().last().unwrap_or(&0),
                resident_bytes: 0,
                remote_bytes: 0,
                borrowed_bytes: 0,
                kept: String::new(),
                short_slabs: 0,
                missing: None,
                donors: Vec::new(),
                lost_donors: Vec::new(),
                leaving_donors: Vec::new(),
                in_thread_faults: 0,
                compressed: None,
                request_us: None,
                processes: vec![9],
            }
        }

        fn sample(&self) -> Sample {
            Sample { faults: self.faults.fetch_add(1000, Ordering::Relaxed), times: None }
        }

        fn limit(&self, local_bytes: u64) -> Result<(), String> {
            self.limits.lock().unwrap().push(local_bytes);
            Ok(())
        }
    }

    #[test]
    fn a_clerk_tells_and_does_and_refuses() {
        let about = About { pid: 8, command: "x -y".into(), port: "shm".into() };
        let run = Busy::default();
        let samples = VecDeque::from([(Instant::now(), run.sample())]);
        let clerk = Clerk { about, run, began: Instant::now(), samples };
        let ask = |question: Question| -> Answer {
            let (asker, clerks) = UnixStream::pair().unwrap();
            let asking =
                std::thread::spawn(move || conversation::ask(asker, &question, None).unwrap());
            clerk.answer(&clerks);
            drop(clerks);
            asking.join().unwrap().unwrap()
        };
        let Answer::Row(row) = ask(Question::Row) else { panic!("no row") };
        assert!(row.has(8) && row.has(9) && row.has(std::process::id()) && !row.has(10));
        assert!(row.faults_per_s > 0.0, "{row:?}");
        let Answer::Row(row) = ask(Question::Limit(64 << 20)) else { panic!("no row") };
        assert_eq!(row.local_bytes, 64 << 20);
        for bytes in [budget::LEAST_LOCAL_BYTES - 1, u64::MAX] {
            assert!(matches!(ask(Question::Limit(bytes)), Answer::Refused(_)), "{bytes}");
        }
        assert_eq!(clerk.run.limits.lock().unwrap().len(), 1);
    }
}
