//! The program's process: started with the shim; forwards signals and reports its end.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::Context;
use nix::unistd::{getpid, getsid};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use signal_hook::consts::signal::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1,
    SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use venice_memory::paged::attach::{Address, SOCKET_VARIABLE};
use venice_memory::paged::inheritance;

/// Signals forwarded when another process sends them to this one. Signals of the terminal reach the
/// program directly: it is in the same process group. This process stops when the program does.
const PASSED_ON: [i32; 10] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGTSTP, SIGWINCH];

/// Signals of a terminal that goes away: the kernel sends them to the leader of the session alone.
const TO_LEADER: [i32; 2] = [SIGHUP, SIGCONT];

/// The running program.
pub struct Child {
    process: std::process::Child,
    /// True if the program leads a process group of its own; signals then go to the group.
    leads_group: bool,
    /// True if this process leads its session.
    leads_session: bool,
    signals: SignalsInfo<WithOrigin>,
}

/// Exit status of the program.
pub struct Ended(ExitStatus);

impl Child {
    /// Starts `program` by the command `start`, with the name and arguments of `command`.
    pub fn start(
        mut start: Command,
        program: &Path,
        command: &[OsString],
    ) -> anyhow::Result<Child> {
        inheritance::pass_ignored(&mut start, inheritance::ignored_signals());
        let leads_session = getsid(None) == Ok(getpid());
        let watched = PASSED_ON.iter().copied().chain([SIGCHLD]);
        let signals = SignalsInfo::<WithOrigin>::new(watched).context("catching signals")?;
        start.arg0(&command[0]).args(&command[1..]);
        let process = start.spawn().with_context(|| format!("starting {}", program.display()))?;
        Ok(Child { process, leads_group: false, leads_session, signals })
    }

    /// Starts the program in a process group of its own, which receives every signal. With a
    /// controlling terminal it stays in the terminal's group, because the terminal signals one
    /// group at a time. The program is killed when the thread that starts it ends.
    pub fn start_bound(
        mut start: Command,
        program: &Path,
        command: &[OsString],
    ) -> anyhow::Result<Child> {
        let leads_group = std::fs::File::open("/dev/tty").is_err();
        if leads_group {
            start.process_group(0);
        }
        venice_swap::bound::kill_with_starter(&mut start);
        Ok(Child { leads_group, ..Child::start(start, program, command)? })
    }

    /// Kills the remaining processes of its group.
    pub fn kill_group(&self) {
        if self.leads_group {
            self.signaller()(Signal::KILL);
        }
    }

    /// Returns a function that sends signals to the program, from any thread.
    pub fn signaller(&self) -> impl Fn(Signal) + Send + use<> {
        let (leads_group, pid) = (self.leads_group, self.process.id());
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // The program may just have ended: then the signal is dropped.
        move |signal| match pid {
            Some(pid) if leads_group => drop(kill_process_group(pid, signal)),
            Some(pid) => drop(kill_process(pid, signal)),
            None => {}
        }
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the program's end, and forwards signals meanwhile. Where a shell watches its jobs,
    /// this process stops when the program stops; what `hold` returns lives as long as that.
    pub fn wait<T>(&mut self, mut hold: impl FnMut() -> T) -> anyhow::Result<Ended> {
        loop {
            if let Some(status) = self.process.try_wait().context("waiting for the program")? {
                return Ok(Ended(status));
            }
            let came: Vec<Origin> = self.signals.wait().collect();
            for origin in came.iter().filter(|origin| self.is_for_program(origin)) {
                self.pass_on(origin.signal);
            }
            if self.has_stopped() && self.is_job() {
                let _held = hold();
                // To this thread: it returns when the process goes on.
                let _ = signal_hook::low_level::raise(SIGSTOP);
            }
        }
    }

    /// Forwards the signals that have come to the processes `left` by the program, which has ended:
    /// those of the terminal too, which may not be theirs.
    pub fn pass_on_to(&mut self, left: &[u32]) {
        let came: Vec<i32> = self.signals.pending().map(|origin| origin.signal).collect();
        for signal in came {
            let Some(signal) = Signal::from_named_raw(signal).filter(|it| *it != Signal::CHILD)
            else {
                continue;
            };
            for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
                // A process that has just ended gets none.
                let _ = kill_process(pid, signal);
            }
        }
    }

    fn is_for_program(&self, origin: &Origin) -> bool {
        let sender = origin.process.as_ref().map(|process| process.pid);
        let sent_by_somebody = sender.is_some_and(|pid| pid > 0);
        let to_leader = self.leads_session && TO_LEADER.contains(&origin.signal);
        origin.signal != SIGCHLD && (sent_by_somebody || self.leads_group || to_leader)
    }

    /// True if the program has stopped since the last call.
    fn has_stopped(&self) -> bool {
        let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) else {
            return false;
        };
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(pid), options).is_ok_and(|status| status.is_some())
    }

    /// True if a shell may watch this process as a job: it has a terminal, and another process
    /// leads the session.
    fn is_job(&self) -> bool {
        !self.leads_session && std::fs::File::open("/dev/tty").is_ok()
    }

    fn pass_on(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signaller()(signal);
        }
    }
}

/// Returns a command for `program` with the shim preloaded, which attaches at `address`; `inherited`
/// is the socket in it. The shim ends the program when this process is gone: without its
/// supervisor its memory would be revoked.
pub fn with_shim(
    program: &Path,
    shim: &Path,
    address: &Address,
    inherited: BorrowedFd<'_>,
) -> Command {
    let mut start = Command::new(program);
    start.env("LD_PRELOAD", preload(shim)).env(SOCKET_VARIABLE, OsString::from(address));
    inheritance::pass_descriptor(&mut start, inherited);
    inheritance::pass_service(&mut start);
    start
}

/// Returns LD_PRELOAD: the shim first, then the libraries already named there.
fn preload(shim: &Path) -> OsString {
    let mut list = shim.as_os_str().to_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|text| !text.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

impl Ended {
    /// True if the program ended with exit code 0.
    pub fn is_success(&self) -> bool {
        self.0.success()
    }

    /// Returns the program's exit code. If a signal ended the program, the same signal ends this
    /// process.
    pub fn pass_on(&self) -> i32 {
        const SHELLS_BASE: i32 = 128;
        let Some(signal) = self.0.signal() else { return self.0.code().unwrap_or(1) };
        no_core_dump();
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        SHELLS_BASE + signal
    }
}

/// Disables the core dump of this process: only the program's core is of interest.
fn no_core_dump() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
