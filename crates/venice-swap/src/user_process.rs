//! A process that a user names by a descriptor, to have it moved into a cgroup.
//!
//! Whoever has a process in a group with a limit can have the kernel kill it. So the process must be the
//! user's own, in all its ids, and it must have given up for ever what would change them
//! (`PR_SET_NO_NEW_PRIVS` of prctl(2)): its descendants, which are in the group with it, are the user's
//! then too.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::SwapError;

/// A living process of a user.
#[derive(Debug)]
pub struct UserProcess {
    pidfd: OwnedFd,
    pid: Pid,
}

impl UserProcess {
    /// Checks that `pidfd` names a process (pidfd_open(2)) of the user `uid` that can gain no
    /// privileges.
    ///
    /// # Errors
    /// [`SwapError::ForeignProcess`].
    pub fn check(pidfd: BorrowedFd<'_>, uid: u32) -> Result<Self, SwapError> {
        let refused = |why| SwapError::ForeignProcess { why };
        // ECHILD: it names a process, which is not this one's child.
        match waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(_) | Err(Errno::CHILD) => {}
            Err(_) => return Err(refused("the descriptor names no process")),
        }
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()));
        // 0: of another namespace; -1: it has ended.
        let pid = info.ok().and_then(|text| field(&text, "Pid:")?.parse().ok());
        let pid = pid.filter(|pid: &i32| *pid > 0).and_then(Pid::from_raw);
        let pid = pid.ok_or(refused("it has ended, or is of another PID namespace"))?;
        let pidfd = pidfd.try_clone_to_owned();
        let pidfd = pidfd.map_err(|_| refused("this process has no descriptor left"))?;
        let process = Self { pidfd, pid };
        // Twice: what the first look finds holds when the second reads the ids.
        for _ in 0..2 {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            check_status(&status, uid).map_err(refused)?;
        }
        match process.is_alive() {
            // It was alive all the time: its number was no other process's.
            true => Ok(process),
            false => Err(refused("it has ended")),
        }
    }

    /// Returns its process id. Another process may have it once this one has ended.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// True until it ends.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&at_once)) == Ok(0)
    }
}

/// Checks `/proc/PID/status` (proc(5)).
fn check_status(status: &str, uid: u32) -> Result<(), &'static str> {
    let ids = field(status, "Uid:").unwrap_or_default();
    let mut ids = ids.split_whitespace().map(str::parse::<u32>);
    // Real, effective, saved and of the file system.
    let is_own = ids.clone().count() == 4 && ids.all(|id| id == Ok(uid));
    if !is_own {
        return Err("it is not the user's own");
    }
    // Each thread has its own ids and privileges.
    if field(status, "Threads:") != Some("1") {
        return Err("it has several threads");
    }
    match field(status, "NoNewPrivs:") {
        Some("1") => Ok(()),
        _ => Err("it may gain privileges (prctl(2): PR_SET_NO_NEW_PRIVS)"),
    }
}

/// Returns a field of a file of /proc with a field in each line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Child, Command};

    use rustix::process::{PidfdFlags, pidfd_open};

    use super::*;

    fn started(with_privileges: bool) -> (Child, OwnedFd) {
        let mut command = Command::new("setpriv");
        if !with_privileges {
            command.arg("--no-new-privs");
        }
        let child = command.args(["sleep", "60"]).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        // From here on setpriv is gone.
        let name = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&name).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        (child, pidfd)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn refusal(pidfd: &OwnedFd, uid: u32) -> String {
        UserProcess::check(pidfd.as_fd(), uid).unwrap_err().to_string()
    }

    #[test]
    fn own_process_is_accepted() {
        let own = rustix::process::geteuid().as_raw();
        let (child, pidfd) = started(false);
        let process = UserProcess::check(pidfd.as_fd(), own).unwrap();
        assert_eq!((process.pid(), process.is_alive()), (Pid::from_child(&child), true));
        end(child);
        assert!(!process.is_alive());
    }

    #[test]
    fn foreign_processes_are_refused() {
        let own = rustix::process::geteuid().as_raw();
        let (child, pidfd) = started(false);
        assert!(refusal(&pidfd, own + 1).contains("not the user's own"));
        end(child);
        assert!(refusal(&pidfd, own).contains("has ended"));
        let (child, pidfd) = started(true);
        // The test's own starter may have given privileges up.
        if !rustix::thread::no_new_privs().unwrap() {
            assert!(refusal(&pidfd, own).contains("may gain privileges"));
        }
        end(child);
        let file = OwnedFd::from(fs::File::open("/proc/self").unwrap());
        assert!(refusal(&file, own).contains("names no process"));
    }

    #[test]
    fn every_id_must_be_the_users() {
        let status = |ids: &str, threads: u32, gives_up: u32| {
            format!("Name:\tx\nUid:\t{ids}\nThreads:\t{threads}\nNoNewPrivs:\t{gives_up}\n")
        };
        assert_eq!(check_status(&status("7\t7\t7\t7", 1, 1), 7), Ok(()));
        for ids in ["0\t7\t7\t7", "7\t0\t7\t7", "7\t7\t0\t7", "7\t7\t7\t0", "7\t7\t7", ""] {
            assert!(check_status(&status(ids, 1, 1), 7).is_err(), "{ids}");
        }
        for (threads, gives_up) in [(2, 1), (0, 1), (1, 0)] {
            assert!(check_status(&status("7\t7\t7\t7", threads, gives_up), 7).is_err());
        }
        assert!(check_status("", 7).is_err());
    }
}
