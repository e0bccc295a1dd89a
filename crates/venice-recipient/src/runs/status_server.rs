//! The status server of a run: a socket in the run directory, and the thread that answers there.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::{Deserialize, Serialize};

use super::conversation::{self, ConversationError, hear, tell};
use super::far_pages::{self, CoreView};
use super::look::{Look, Sample};
use super::process::cpu_s;
use super::refaults::RunTime;
use super::row::{RunDevices, RunRow};
use super::runs_dir::{DirError, RunsDir};
use super::{ANOTHER_USERS, budget};

/// Interval between two samples of the fault counters.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Samples over which rates and times of faults are taken: see `venice ps --help`.
const SAMPLES: usize = 5;
/// Attempts to open the socket while other runs end.
const LISTEN_TRIES: u32 = 100;

/// A request to a status server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// For the state of the run.
    Row,
    /// To set this local budget, in bytes.
    Limit(u64),
    /// For the far pages of this process of the run. Requests for them follow on the connection.
    Core(u32),
}

/// The answer of a status server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The state of the run.
    Row(Box<RunRow>),
    /// The address of the header of a pager's tables, if there is one; pages follow on request.
    Core(Option<u64>),
    /// A refusal, with its reason.
    Refused(String),
}

/// A run, in whichever mode.
pub trait Watched: Send {
    /// Returns `paged`, `window`, `swap`, `library` or `devices`.
    fn mode(&self) -> &'static str;
    /// Returns its state.
    fn look(&self) -> Look;
    /// Returns its faults so far.
    fn sample(&self) -> Sample;
    /// Sets another budget.
    ///
    /// # Errors
    /// The reason of a refusal, for users.
    fn limit(&self, local_bytes: u64) -> Result<(), String>;
    /// Returns a process of it, for `venice core`.
    ///
    /// # Errors
    /// The reason of a refusal, for users.
    fn core(&self, pid: u32) -> Result<CoreView, String>;
    /// Called about once a second, the first time before any request.
    fn each_second(&mut self) {}
}

/// The identity of a run.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The program's process.
    pub pid: u32,
    /// The program and its arguments.
    pub command: String,
    /// The devices granted to it.
    pub devices: RunDevices,
    /// Address of the Monitor Node that granted them.
    pub monitor: String,
}

/// The reason why a status server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StatusServerError {
    /// Its directory is missing.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// Its socket could not be created.
    #[error(transparent)]
    Socket(#[from] ConversationError),
    /// The kernel refused another step.
    #[error("{doing}")]
    Kernel {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// A running status server; dropping it stops it.
#[derive(Debug)]
pub struct StatusServer {
    path: PathBuf,
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl StatusServer {
    /// Starts this process's server, and removes the sockets of killed processes. It is optional:
    /// without it, `venice ps` does not show the run.
    ///
    /// # Errors
    /// [`StatusServerError`].
    pub fn open(
        dir: &RunsDir,
        about: About,
        run: impl Watched + 'static,
    ) -> Result<StatusServer, StatusServerError> {
        let kernel = |doing| move |source: io::Error| StatusServerError::Kernel { doing, source };
        let path = dir.socket_path(std::process::id());
        let end = eventfd(0, EventfdFlags::CLOEXEC);
        let end = end.map_err(|errno| kernel("making an eventfd")(errno.into()))?;
        let ends = end.try_clone().map_err(kernel("doubling a descriptor"))?;
        let listener = listen_in(dir, &path)?;
        let mut server = Server {
            about,
            run,
            began: Instant::now(),
            samples: VecDeque::with_capacity(SAMPLES + 1),
        };
        let thread = std::thread::Builder::new().name("venice-status".into());
        let thread = thread.spawn(move || server.work(&listener, &ends)).map_err(|error| {
            let _ = std::fs::remove_file(&path);
            kernel("starting a thread")(error)
        })?;
        Ok(StatusServer { path, end, thread: Some(thread) })
    }
}

/// Opens the socket. The last server to end removes the directory, perhaps between its being made
/// and its being used.
fn listen_in(dir: &RunsDir, path: &Path) -> Result<UnixListener, StatusServerError> {
    let mut tries = 1..=LISTEN_TRIES;
    loop {
        dir.create()?;
        super::sweep(dir);
        match conversation::listen(path) {
            Err(ConversationError::Listen { source, .. })
                if source.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {}
            opened => return Ok(opened?),
        }
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
        // The last server removes the directory.
        let _ = self.path.parent().map(std::fs::remove_dir);
    }
}

/// The state of the server's thread.
struct Server<W> {
    about: About,
    run: W,
    began: Instant,
    samples: VecDeque<(Instant, Sample)>,
}

impl<W: Watched> Server<W> {
    fn work(&mut self, listener: &UnixListener, end: &OwnedFd) {
        loop {
            let is_due = |(at, _): &(Instant, Sample)| at.elapsed() >= SAMPLE_EVERY;
            if self.samples.back().is_none_or(is_due) {
                self.run.each_second();
                self.samples.push_back((Instant::now(), self.run.sample()));
                if self.samples.len() > SAMPLES + 1 {
                    self.samples.pop_front();
                }
            }
            let [is_called, ends] = wait(listener, end);
            if ends {
                return;
            }
            if is_called && let Ok((stream, _)) = listener.accept() {
                self.answer(&stream);
            }
        }
    }

    fn answer(&self, stream: &UnixStream) {
        let answer = match hear(stream) {
            _ if !is_allowed(stream) => Answer::Refused(ANOTHER_USERS.to_owned()),
            Some(Question::Row) => Answer::Row(Box::new(self.row())),
            Some(Question::Limit(local_bytes)) => match self.limit(local_bytes) {
                Ok(()) => Answer::Row(Box::new(self.row())),
                Err(why) => Answer::Refused(why),
            },
            Some(Question::Core(pid)) => return self.show_core(stream, pid),
            None => return,
        };
        tell(stream, &answer);
    }

    /// Answers `venice core`, and leaves the connection to a thread of its own.
    fn show_core(&self, stream: &UnixStream, pid: u32) {
        let CoreView { image, pages } = match self.run.core(pid) {
            Ok(view) => view,
            Err(why) => return tell(stream, &Answer::Refused(why)),
        };
        tell(stream, &Answer::Core(image));
        if let (Some(pages), Ok(stream)) = (pages, stream.try_clone()) {
            // Without a thread the connection ends, and `venice core` reports that.
            let _ = far_pages::serve(stream, pages);
        }
    }

    fn limit(&self, local_bytes: u64) -> Result<(), String> {
        budget::check(local_bytes).map_err(|error| error.to_string())??;
        self.run.limit(local_bytes)
    }

    fn row(&self) -> RunRow {
        let look = self.run.look();
        let lately = self.lately();
        let (fault_p50_us, fault_p99_us) = look.request_us.unwrap_or(lately.us);
        let wall_s = self.began.elapsed().as_secs_f64();
        let cpu_s = look.processes.iter().map(|pid| cpu_s(*pid)).sum();
        RunRow {
            run: std::process::id(),
            user: String::new(),
            pid: self.about.pid,
            command: self.about.command.clone(),
            mode: self.run.mode().to_owned(),
            mode_reason: look.mode_reason,
            port: look.port,
            age_s: wall_s,
            processes: look.processes,
            local_bytes: look.local_bytes,
            resident_bytes: look.resident_bytes,
            unmanaged: look.unmanaged,
            remote_bytes: look.remote_bytes,
            borrowed_bytes: look.borrowed_bytes,
            faults: lately.faults,
            refaults: look.refaults.refaults,
            refault_wait_s: look.refaults.wait_s,
            refault_bound: look.refaults.bound(RunTime { wall_s, cpu_s }),
            in_thread_faults: look.in_thread_faults,
            faults_per_s: lately.faults_per_s,
            fault_p50_us,
            fault_p99_us,
            replicas: look.replicas,
            short_slabs: look.short_slabs,
            lost_slabs: look.lost_slabs,
            missing: look.missing,
            donors: look.donors,
            lost_donors: look.lost_donors,
            transferred_donors: look.transferred_donors,
            leaving_donors: look.leaving_donors,
            devices: self.about.devices.rows(),
            monitor: self.about.monitor.clone(),
        }
    }

    /// Returns the faults from the oldest sample until now.
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

/// True for the run's own user, and root.
fn is_allowed(stream: &UnixStream) -> bool {
    let asker = getsockopt(stream, PeerCredentials).map(|peer| peer.uid());
    asker.is_ok_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
}

/// Waits for a request, the end of the run, or the next sample; returns which of the first two
/// came.
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
                processes: vec![9],
                ..Look::default()
            }
        }

        fn sample(&self) -> Sample {
            Sample { faults: self.faults.fetch_add(1000, Ordering::Relaxed), times: None }
        }

        fn limit(&self, local_bytes: u64) -> Result<(), String> {
            self.limits.lock().unwrap().push(local_bytes);
            Ok(())
        }

        fn core(&self, pid: u32) -> Result<CoreView, String> {
            let view = CoreView { image: Some(0x7000), pages: None };
            if pid == 9 { Ok(view) } else { Err("no such process".into()) }
        }
    }

    #[test]
    fn server_answers_limits_and_refuses() {
        let about = About { pid: 8, command: "x -y".into(), ..About::default() };
        let run = Busy::default();
        let samples = VecDeque::from([(Instant::now(), run.sample())]);
        let server = Server { about, run, began: Instant::now(), samples };
        let ask = |question: Question| -> Answer {
            let (asker, server_end) = UnixStream::pair().unwrap();
            let asking =
                std::thread::spawn(move || conversation::ask(asker, &question, None).unwrap());
            server.answer(&server_end);
            drop(server_end);
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
        assert_eq!(server.run.limits.lock().unwrap().len(), 1);
        assert_eq!(ask(Question::Core(9)), Answer::Core(Some(0x7000)));
        assert!(matches!(ask(Question::Core(8)), Answer::Refused(_)));
    }
}
