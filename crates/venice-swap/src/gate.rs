//! Programs that are moved into their cgroup by another process before they start.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg,
    socketpair,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::set_no_new_privs;

use crate::bound::kill_with_starter;

const WAITS: [u8; 1] = [b'w'];
const OPEN: [u8; 1] = [b'o'];

/// The starter's end of the gate at which a process waits. Dropping it ends the process.
#[derive(Debug)]
pub struct Gate(OwnedFd);

impl Gate {
    /// Returns a command that starts `program` once the gate is [opened](Gate::open), and that gate.
    /// The program cannot gain privileges by starting others (`PR_SET_NO_NEW_PRIVS` of prctl(2)), and
    /// is killed when the thread that starts it ends.
    ///
    /// # Errors
    /// The system's.
    pub fn command(program: &Path) -> io::Result<(Command, Gate)> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(kind.0, kind.1, kind.2, None)?;
        let mut command = Command::new(program);
        // First: a process at the gate ends with its starter too.
        kill_with_starter(&mut command);
        let wait = move || wait_at(&theirs).map_err(io::Error::from);
        // SAFETY: between fork and exec the closure makes system calls: it neither allocates nor
        // locks.
        unsafe { command.pre_exec(wait) };
        Ok((command, Gate(ours)))
    }

    /// Waits until the process waits; returns a descriptor of it (pidfd_open(2)). `None`: it was not
    /// started.
    ///
    /// # Errors
    /// The system's.
    pub fn process(&self) -> io::Result<Option<OwnedFd>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
        let mut sent = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        Ok(sent.next().and_then(|mut fds| fds.next()))
    }

    /// Lets the process start the program.
    pub fn open(&self) {
        // Without a reader the process has ended.
        let _ = rustix::net::send(&self.0, &OPEN, SendFlags::NOSIGNAL);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Closing is not enough: the process at the gate has inherited this end.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

/// Names the calling process to the starter, and waits. Neither allocates nor locks.
fn wait_at(gate: &OwnedFd) -> rustix::io::Result<()> {
    set_no_new_privs(true)?;
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let fds = [this.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(gate, &[IoSlice::new(&WAITS)], &mut control, SendFlags::NOSIGNAL)?;
    let mut byte = [0];
    let (_, length) = retry_on_intr(|| rustix::net::recv(gate, &mut byte, RecvFlags::empty()))?;
    match length > 0 && byte == OPEN {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UserProcess;

    #[test]
    fn program_starts_when_gate_opens() {
        let (mut command, gate) = Gate::command(Path::new("/bin/cat")).unwrap();
        command.arg("/proc/self/status");
        let own = rustix::process::geteuid().as_raw();
        let opening = std::thread::spawn(move || {
            let process = gate.process().unwrap().unwrap();
            let process = UserProcess::check(process.as_fd(), own).unwrap();
            assert!(process.is_alive());
            gate.open();
        });
        let output = command.output().unwrap();
        opening.join().unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    }

    #[test]
    fn closed_gate_ends_process() {
        let (mut command, gate) = Gate::command(Path::new("/bin/true")).unwrap();
        let closing = std::thread::spawn(move || drop(gate.process().unwrap().unwrap()));
        assert_eq!(command.status().unwrap_err().raw_os_error(), Some(libc::EPERM));
        closing.join().unwrap();
        // A program that is not there waits too, and fails then.
        let (command, gate) = Gate::command(Path::new("/bin/true")).unwrap();
        drop(command);
        assert!(gate.process().unwrap().is_none());
    }
}
