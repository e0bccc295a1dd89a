//! The program's process: started with the shim; forwards signals and reports its end.

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

/// Signals forwarded when another process sends them to this one. Signals of the terminal reach the
/// program directly: it is in the same process group.
const PASSED_ON: [i32; 9] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH];

/// The running program.
pub struct Child {
    process: std::process::Child,
    /// True if the program leads a process group of its own; signals then go to the group.
    leads_group: bool,
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
        let watched = PASSED_ON.iter().copied().chain([SIGCHLD]);
        let signals = SignalsInfo::<WithOrigin>::new(watched).context("catching signals")?;
        start.arg0(&command[0]).args(&command[1..]);
        let process = start.spawn().with_context(|| format!("starting {}", program.display()))?;
        Ok(Child { process, leads_group: false, signals })
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

    /// Waits for the program's end and forwards signals meanwhile.
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

/// Returns a command for `program` with the shim preloaded. The shim ends the program when this
/// process is gone: without its supervisor its memory would be revoked.
pub fn with_shim(program: &Path, shim: &Path, socket: PathBuf) -> Command {
    let mut start = Command::new(program);
    start.env("LD_PRELOAD", preload(shim)).env(SOCKET_VARIABLE, socket);
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
