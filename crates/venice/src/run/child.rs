//! The program itself: started with the shim, its signals passed on, its end reported.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::signal::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use venice_memory::paged::attach::SOCKET_VARIABLE;

/// Signals that are passed on when somebody sends them to this process. What the terminal sends
/// goes to the program too, being in the same process group.
const PASSED_ON: [i32; 9] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH];

/// The program, running.
pub struct Child {
    process: std::process::Child,
    /// It has a process group of its own: signals are for all of that.
    leads_group: bool,
    signals: SignalsInfo<WithOrigin>,
}

/// How it ended.
pub struct Ended(ExitStatus);

impl Child {
    /// Starts `program` as `start` says, under the name and with the arguments of `command`.
    pub fn start(
        mut start: Command,
        program: &Path,
        command: &[OsString],
    ) -> anyhow::Result<Child> {
        let watched = PASSED_ON.iter().copied().chain([SIGCHLD]);
        let signals = SignalsInfo::<WithOrigin>::new(watched).context("catching signals")?;
        start.arg0(&command[0]).args(&command[1..]);
        let process =
            start.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        Ok(Child { process, leads_group: false, signals })
    }

    /// The same in a process group of its own, which every signal goes to; not where a terminal is
    /// in control, whose own signals go to one group at a time. The program is killed when the
    /// thread that starts it ends.
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

    /// Ends what is left of its group.
    pub fn kill_group(&self) {
        if self.leads_group {
            self.signaller()(Signal::KILL);
        }
    }

    /// What sends it signals, from any thread.
    pub fn signaller(&self) -> impl Fn(Signal) + Send + use<> {
        let (leads_group, pid) = (self.leads_group, self.process.id());
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // It may just have ended; then there is nobody to tell.
        move |signal| match pid {
            Some(pid) if leads_group => drop(kill_process_group(pid, signal)),
            Some(pid) => drop(kill_process(pid, signal)),
            None => {}
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for its end, passing signals on.
    pub fn wait(&mut self) -> anyhow::Result<Ended> {
        loop {
            if let Some(status) = self.process.try_wait().context("waiting for the program")? {
                return Ok(Ended(status));
            }
            for origin in self.signals.wait() {
                let sender = origin.process.map(|process| process.pid);
                let sent_by_somebody = sender.is_some_and(|pid| pid > 0);
                if origin.signal != SIGCHLD && (sent_by_somebody || self.leads_group) {
                    self.pass_on(origin.signal);
                }
            }
        }
    }

    fn pass_on(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signaller()(signal);
        }
    }
}

/// A command for `program` with the shim. The shim ends it when this process is gone: without its
/// supervisor its memory would be taken away.
pub fn with_shim(program: &Path, shim: &Path, socket: PathBuf) -> Command {
    let mut start = Command::new(program);
    start.env("LD_PRELOAD", preload(shim)).env(SOCKET_VARIABLE, socket);
    start
}

/// The shim before whatever else is to be preloaded.
fn preload(shim: &Path) -> OsString {
    let mut list = shim.as_os_str().to_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|text| !text.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

impl Ended {
    /// The program's exit code; if a signal ended it, the same signal ends this process.
    pub fn pass_on(&self) -> i32 {
        const SHELLS_BASE: i32 = 128;
        let Some(signal) = self.0.signal() else { return self.0.code().unwrap_or(1) };
        no_core_dump();
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        SHELLS_BASE + signal
    }
}

/// The program's core, if it left one, is the one of interest.
fn no_core_dump() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
