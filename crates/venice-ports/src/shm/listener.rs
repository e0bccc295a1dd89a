//! The agent's listening socket in the file system.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, chmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use venice_sockets::refuse_descriptors;

use crate::PortError;
use crate::process::Process;

/// Most connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// A listening unix `SOCK_SEQPACKET` socket. Its file is removed on drop, except in a forked child,
/// whose parent still listens.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    process: Process,
}

impl Listener {
    /// Binds and listens. Replaces a socket file that a dead agent left behind.
    pub(crate) fn bind(path: &Path) -> Result<Self, PortError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|_| PortError::SocketPath { path: path.to_path_buf() })?;
        let listen_error = |source| PortError::Listen { path: path.to_path_buf(), source };

        let process = Process::current()?;
        clear_stale(path, &address)?;
        let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        bind(&socket, &address).map_err(listen_error)?;
        let listener = Self { socket, path: path.to_path_buf(), process };
        // The mode is set before `listen`, which closes the gap in which others could connect.
        chmod(path, Mode::from_raw_mode(0o660)).map_err(listen_error)?;
        // What peers send has no descriptors.
        refuse_descriptors(&listener.socket).map_err(|error| {
            listen_error(Errno::from_io_error(&error).unwrap_or(Errno::OPNOTSUPP))
        })?;
        listen(&listener.socket, BACKLOG).map_err(listen_error)?;
        Ok(listener)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.process.is_current() {
            let _ = unlink(&self.path);
        }
    }
}

/// Removes a socket file without a listener.
fn clear_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), PortError> {
    match lstat(path) {
        Err(_) => return Ok(()), // The file is absent; bind reports a worse error.
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(PortError::NotASocket { path: path.to_path_buf() });
        }
        Ok(_) => {}
    }
    let probe = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            unlink(path).map_err(|source| PortError::Listen { path: path.to_path_buf(), source })
        }
        // A socket of another type (PROTOTYPE), or a full backlog (AGAIN): alive either way.
        _ => Err(PortError::SocketInUse { path: path.to_path_buf() }),
    }
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, PortError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(PortError::at("making a unix socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_dead_agent_socket_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shm.sock");
        let first = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(PortError::SocketInUse { .. })));

        // A crash closes the descriptor and leaves the file.
        std::fs::rename(&path, dir.path().join("aside")).unwrap();
        drop(first);
        std::fs::rename(dir.path().join("aside"), &path).unwrap();

        let second = Listener::bind(&path).unwrap();
        drop(second);
        assert!(!path.exists(), "a regular drop removes the file");
    }

    #[test]
    fn keeps_files_that_are_no_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(Listener::bind(&path), Err(PortError::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn rejects_long_path() {
        let path = PathBuf::from("/tmp/".to_owned() + &"x".repeat(200));
        let error = Listener::bind(&path).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
