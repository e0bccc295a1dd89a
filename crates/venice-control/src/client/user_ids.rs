//! Connections in the name of a user of this machine.

use std::io;
use std::os::unix::net;
use std::path::Path;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// The ids of a user in whose name a process of root's logs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl UserIds {
    /// Connects to a socket as this user: with the user's permissions, and with the user as the peer
    /// whom the other end sees (`SO_PEERCRED`).
    pub(super) async fn connect(self, path: &Path) -> io::Result<UnixStream> {
        let path = path.to_owned();
        let (tell, told) = oneshot::channel();
        // The credentials of a thread of its own, which ends with them. Where the socket's owner hangs,
        // it may not keep the runtime.
        std::thread::Builder::new().name("login".into()).spawn(move || {
            let connected = self.take_on().map_err(io::Error::from);
            let _ = tell.send(connected.and_then(|()| net::UnixStream::connect(path)));
        })?;
        let stream = told.await.map_err(io::Error::other)??;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    /// Gives the calling thread the user's effective ids. The real and the saved ones stay: with
    /// those, the user could signal and trace this process (kill(2), ptrace(2)).
    fn take_on(&self) -> rustix::io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups)?;
        set_thread_res_gid(None, Gid::from_raw(self.gid), None)?;
        set_thread_res_uid(None, Uid::from_raw(self.uid), None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

    use super::*;

    #[tokio::test]
    async fn peer_sees_the_user() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: peer_sees_the_user: no root");
        }
        let folder = tempfile::tempdir().unwrap();
        let open_to = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open_to(folder.path(), 0o711);
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let user = UserIds { uid: 65534, gid: 65534, groups: vec![7] };
        open_to(&path, 0o600);
        let refused = user.clone().connect(&path).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        // The group's permission is one of the supplementary groups'.
        std::os::unix::fs::chown(&path, None, Some(7)).unwrap();
        open_to(&path, 0o660);
        let _stream = user.connect(&path).await.unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let peer = getsockopt(&accepted, PeerCredentials).unwrap();
        assert_eq!((peer.uid(), peer.gid()), (65534, 65534));
        assert!(rustix::process::geteuid().is_root(), "only a thread of its own changed");
    }
}
