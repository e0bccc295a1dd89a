//! A process that is stopped by `ptrace(2)` while it is looked at.
//!
//! The program's threads stop first, while its pager goes on: a thread that waits in the kernel for
//! a far page stops only once it has the page. Then the pager's own threads stop, which do not wait
//! for others.

use std::io;
use std::time::{Duration, Instant};

use super::DumpError;
use super::notes::REGISTER_BYTES;
use crate::paged::sys::{self, Errno};

const PTRACE: usize = 101;
const WAIT4: usize = 61;
const PTRACE_DETACH: usize = 17;
const PTRACE_GETSIGINFO: usize = 0x4202;
const PTRACE_GETREGSET: usize = 0x4204;
const PTRACE_SEIZE: usize = 0x4206;
const PTRACE_INTERRUPT: usize = 0x4207;
const PTRACE_EVENT_STOP: u32 = 128;
const NT_PRSTATUS: usize = 1;
const NT_FPREGSET: usize = 2;
const NT_X86_XSTATE: usize = 0x202;
const WNOHANG: usize = 1;
const WALL: usize = 0x4000_0000;
/// Longest wait for a thread to stop: longer than a donor is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Room for the extended state of any processor so far (AMX: 11 KiB).
const MOST_STATE_BYTES: usize = 1 << 16;

/// The state of one thread.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Thread id.
    pub id: u32,
    /// The signal that was about to be delivered; 0: none.
    pub signal: u16,
    /// Pending and blocked signals, a bit each.
    pub pending: u64,
    /// Blocked signals.
    pub blocked: u64,
    /// General registers.
    pub registers: Vec<u8>,
    /// Registers of the x87 and SSE units.
    pub floating_point: Vec<u8>,
    /// Extended state (XSAVE); empty where the processor has none.
    pub extended: Vec<u8>,
    /// `siginfo_t` of the stop.
    pub siginfo: Vec<u8>,
}

/// A stopped process; it goes on when this is dropped, or when this process dies.
#[derive(Debug)]
pub struct StoppedProcess {
    pid: u32,
    /// Stopped threads, and the signal that each gets when it goes on.
    stopped: Vec<(u32, u32)>,
}

impl StoppedProcess {
    /// Stops all threads of `pid`, those of its pager (`pagers`) last.
    ///
    /// # Errors
    /// [`DumpError`]; the process goes on then.
    pub fn stop(pid: u32, pagers: &[u32]) -> Result<StoppedProcess, DumpError> {
        let mut process = StoppedProcess { pid, stopped: Vec::new() };
        process.stop_all(|thread| !pagers.contains(&thread))?;
        process.stop_all(|_| true)?;
        Ok(process)
    }

    /// Stops all threads that are chosen, until there are no more of them.
    fn stop_all(&mut self, is_chosen: impl Fn(u32) -> bool) -> Result<(), DumpError> {
        loop {
            let all = threads_of(self.pid).map_err(self.failed("listing its threads"))?;
            let is_new = |thread: &u32| self.stopped.iter().all(|(it, _)| it != thread);
            let new: Vec<u32> = all.into_iter().filter(|it| is_chosen(*it) && is_new(it)).collect();
            let mut seized = Vec::new();
            for thread in new {
                if self.seize(thread)? {
                    seized.push(thread);
                }
            }
            if seized.is_empty() {
                return if self.stopped.is_empty() { Err(self.is_gone()) } else { Ok(()) };
            }
            let until = Instant::now() + PATIENCE;
            for thread in seized {
                if let Some(signal) = wait_for_stop(thread, until)? {
                    self.stopped.push((thread, signal));
                }
            }
        }
    }

    /// Begins to stop a thread; `false`: it has ended.
    fn seize(&self, thread: u32) -> Result<bool, DumpError> {
        match ptrace(PTRACE_SEIZE, thread, 0, 0) {
            Ok(_) => {}
            Err(Errno::ESRCH) => return Ok(false),
            Err(_) if is_dead(self.pid, thread) => return Ok(false),
            Err(errno) => {
                return Err(match tracer_of(self.pid, thread) {
                    Some(tracer) => DumpError::Traced { tracer },
                    None => self.failed("tracing it")(io_error(errno)),
                });
            }
        }
        // Refused if it has just ended.
        Ok(ptrace(PTRACE_INTERRUPT, thread, 0, 0).is_ok())
    }

    /// Reads the state of the threads, but those of `except`; the main thread is the first.
    ///
    /// # Errors
    /// If a thread was killed meanwhile.
    pub fn threads(&self, except: &[u32]) -> Result<Vec<Thread>, DumpError> {
        let shown = self.stopped.iter().filter(|(thread, _)| !except.contains(thread));
        let mut threads = Vec::new();
        for (thread, signal) in shown {
            threads.push(self.thread(*thread, *signal as u16)?);
        }
        threads.sort_by_key(|thread| (thread.id != self.pid, thread.id));
        Ok(threads)
    }

    fn thread(&self, id: u32, signal: u16) -> Result<Thread, DumpError> {
        let state = |kind| register_set(id, kind).map_err(self.failed("reading its registers"));
        let path = format!("/proc/{}/task/{id}/status", self.pid);
        let status = std::fs::read_to_string(path).map_err(self.failed("reading its status"))?;
        let mask = |name| u64::from_str_radix(field(&status, name).unwrap_or("0"), 16).unwrap_or(0);
        let mut siginfo = vec![0u8; 128];
        let _ = ptrace(PTRACE_GETSIGINFO, id, 0, siginfo.as_mut_ptr() as usize);
        let mut registers = state(NT_PRSTATUS)?;
        registers.resize(REGISTER_BYTES, 0);
        Ok(Thread {
            id,
            signal,
            pending: mask("SigPnd"),
            blocked: mask("SigBlk"),
            registers,
            floating_point: state(NT_FPREGSET)?,
            // Without XSAVE there is none.
            extended: register_set(id, NT_X86_XSTATE).unwrap_or_default(),
            siginfo,
        })
    }

    fn failed(&self, doing: &str) -> impl Fn(io::Error) -> DumpError + use<> {
        let doing = format!("process {}: {doing} failed", self.pid);
        move |source| DumpError::Process { doing: doing.clone(), source }
    }

    fn is_gone(&self) -> DumpError {
        self.failed("stopping it")(io_error(Errno::ESRCH))
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        // The pager goes on first: it was stopped last.
        for (thread, signal) in self.stopped.iter().rev() {
            let _ = ptrace(PTRACE_DETACH, *thread, 0, *signal as usize);
        }
    }
}

/// Waits until a seized thread stops; returns the signal that it must get later. `None`: it ended.
fn wait_for_stop(thread: u32, until: Instant) -> Result<Option<u32>, DumpError> {
    loop {
        let mut status = 0u32;
        let arguments = [thread as usize, &raw mut status as usize, WNOHANG | WALL, 0, 0, 0];
        // SAFETY: the kernel stores the status in a word of ours.
        match unsafe { sys::syscall(WAIT4, arguments) } {
            Ok(0) if Instant::now() > until => {
                return Err(DumpError::Unstoppable { thread, seconds: PATIENCE.as_secs() });
            }
            Ok(0) => std::thread::sleep(LOOK_EVERY),
            Ok(_) if status & 0xff != 0x7f => return Ok(None),
            Ok(_) if status >> 16 == PTRACE_EVENT_STOP => return Ok(Some(0)),
            Ok(_) => return Ok(Some(status >> 8 & 0xff)),
            Err(Errno::EINTR) => {}
            Err(_) => return Ok(None),
        }
    }
}

fn ptrace(request: usize, thread: u32, address: usize, data: usize) -> sys::SysResult<usize> {
    // SAFETY: the requests used here change no memory of this process but what `data` names, which
    // the callers own.
    unsafe { sys::syscall(PTRACE, [request, thread as usize, address, data, 0, 0]) }
}

fn register_set(thread: u32, kind: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; MOST_STATE_BYTES];
    let mut vector = [bytes.as_mut_ptr() as usize, bytes.len()];
    ptrace(PTRACE_GETREGSET, thread, kind, vector.as_mut_ptr() as usize).map_err(io_error)?;
    bytes.truncate(vector[1]);
    Ok(bytes)
}

fn threads_of(pid: u32) -> io::Result<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

/// Returns a field of `/proc/PID/status`.
pub fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim())
}

fn tracer_of(pid: u32, thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    field(&status, "TracerPid")?.parse().ok().filter(|tracer| *tracer != 0)
}

/// True if the thread has ended, and only its entry is left: a main thread that ended first.
fn is_dead(pid: u32, thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
    let Ok(status) = status else { return true };
    field(&status, "State").is_some_and(|state| state.starts_with(['Z', 'X']))
}

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_process_goes_on() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let state = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            field(&status, "State").unwrap().chars().next().unwrap()
        };
        let process = StoppedProcess::stop(pid, &[]).unwrap();
        assert_eq!(state(), 't');
        let threads = process.threads(&[]).unwrap();
        assert_eq!((threads.len(), threads[0].id), (1, pid));
        assert_eq!(threads[0].registers.len(), REGISTER_BYTES);
        assert!(threads[0].registers.iter().any(|byte| *byte != 0));
        drop(process);
        assert_ne!(state(), 't');
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(StoppedProcess::stop(pid, &[]).is_err());
    }
}
