//! A daemon's socket for programs of its machine. Its mode restricts access to root, the daemon's
//! own user, and a group. The kernel identifies the peer, and the daemon vouches for it.

use super::audit::AUDIT;
use super::enrolment::Certified;
use super::listen::ServeError;
use super::local_incoming::incoming;
use crate::convert::certified_out;
use crate::error::rack_status;
use crate::identity::Fingerprint;
use crate::proto::{
    self,
    local_door_server::{LocalDoor, LocalDoorServer},
};
use nix::errno::Errno;
use nix::unistd::{Group, Uid, chown};
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio_stream::Stream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};
use venice_rack::types::RackError;
use venice_sockets::refuse_descriptors;

/// Bytes of records in one message.
const MESSAGE_BYTES: usize = 1 << 20;

/// The peer at the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPeer {
    /// User id.
    pub uid: u32,
    /// User name; the id without one.
    pub name: String,
    /// True for root and the daemon's own user.
    pub is_owner: bool,
}

/// The result of a call at the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCredential {
    /// Certificate and authorities.
    pub certified: Certified,
    /// `host:port` of the Monitor Node.
    pub monitor: String,
}

/// Every record of a Monitor Node's store, of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreRecords {
    /// Fingerprint of the rack's authority.
    pub authority: Fingerprint,
    /// Keys and values.
    pub records: Vec<(String, Vec<u8>)>,
}

/// The calls at the socket. Write the methods as `async fn`.
pub trait LocalHandler: Send + Sync + 'static {
    /// Returns a certificate for the key of `request` (PKCS #10, DER).
    fn login(
        &self,
        peer: LocalPeer,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<LocalCredential, RackError>> + Send;

    /// Returns every record of the store, for root and the daemon's own user; `None`: this daemon
    /// has no store.
    fn records(&self) -> impl Future<Output = Option<Result<StoreRecords, RackError>>> + Send {
        std::future::ready(None)
    }
}

/// A bound socket. Dropping it removes its file.
#[derive(Debug)]
pub struct LocalSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
}

impl LocalSocket {
    /// Listens at `path`, replacing the socket of a dead daemon. `group` gets access if the machine
    /// has it.
    ///
    /// # Errors
    /// [`ServeError::Listen`], or [`ServeError::PortTaken`] if another process listens.
    pub fn bind(path: &Path, group: &str) -> Result<Self, ServeError> {
        let addr = path.display().to_string();
        let failed = |source: io::Error| {
            let addr = addr.clone();
            match source.kind() {
                io::ErrorKind::AddrInUse => ServeError::PortTaken { addr, source },
                _ => ServeError::Listen { addr, source },
            }
        };
        clear(path).map_err(failed)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Before the group may connect.
        refuse_descriptors(&listener).map_err(failed)?;
        admit_group(path, group).map_err(failed)?;
        Ok(Self { listener: Some(listener), path: path.to_owned() })
    }

    /// Serves until dropped or failed.
    ///
    /// # Errors
    /// [`ServeError::Serve`].
    pub async fn serve<H: LocalHandler>(mut self, handler: Arc<H>) -> Result<(), ServeError> {
        let listener = self.listener.take().expect("served once");
        let served = tonic::transport::Server::builder()
            .add_service(LocalDoorServer::new(Service { handler }))
            .serve_with_incoming(incoming(listener))
            .await;
        drop(self);
        served.map_err(ServeError::Serve)
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Lets this process's user, and the members of `group` if the machine has it, connect to a socket.
///
/// # Errors
/// Returns the system's error where the mode cannot be set. A daemon that is neither root nor of the
/// group keeps the socket private, and logs that.
pub fn admit_group(socket: &Path, group: &str) -> io::Result<()> {
    let open_to = |mode| fs::set_permissions(socket, fs::Permissions::from_mode(mode));
    open_to(0o600)?;
    let name = socket.display();
    match Group::from_name(group) {
        Ok(Some(found)) => match chown(socket, None::<Uid>, Some(found.gid)) {
            Ok(()) => return open_to(0o660),
            Err(error) => tracing::warn!(
                socket = %name,
                %error,
                "group {group} has no access: start this daemon as root or as a member of the group"
            ),
        },
        Ok(None) => tracing::info!(socket = %name, "no group {group} on this machine"),
        Err(error) => tracing::warn!(socket = %name, %error, "looking for the group {group}"),
    }
    Ok(())
}

/// Gives the members of `group`, if the machine has it, access to a directory with such a socket.
///
/// # Errors
/// Returns the system's error.
pub fn allow_group(dir: &Path, group: &str) -> io::Result<()> {
    let Some(group) = Group::from_name(group)? else { return Ok(()) };
    chown(dir, None::<Uid>, Some(group.gid))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o750))
}

/// Removes a stale socket; fails for other files.
fn clear(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "not a socket"));
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(_) => fs::remove_file(path),
    }
}

struct Service<H> {
    handler: Arc<H>,
}

/// Returns the user at the other end of the socket.
fn uid_of<T>(request: &Request<T>) -> Result<u32, Status> {
    let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
    peer.map(|peer| peer.uid())
        .ok_or_else(|| Status::unauthenticated("no peer credentials from the kernel"))
}

/// True for root and this process's own user.
fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == Uid::effective().as_raw()
}

/// Splits records into messages that are far below the limit of a gRPC message; a larger record has
/// one of its own.
fn messages(
    StoreRecords { authority, records }: StoreRecords,
) -> Vec<Result<proto::RecordsResponse, Status>> {
    let empty = || proto::RecordsResponse { authority: authority.0.to_vec(), records: Vec::new() };
    let (mut all, mut next, mut bytes) = (Vec::new(), empty(), 0);
    for (key, value) in records {
        let length = key.len() + value.len();
        if bytes + length > MESSAGE_BYTES && bytes > 0 {
            all.push(Ok(std::mem::replace(&mut next, empty())));
            bytes = 0;
        }
        bytes += length;
        next.records.push(proto::StoreRecord { key, value });
    }
    all.push(Ok(next));
    all
}

#[tonic::async_trait]
impl<H: LocalHandler> LocalDoor for Service<H> {
    type RecordsStream = Pin<Box<dyn Stream<Item = Result<proto::RecordsResponse, Status>> + Send>>;

    async fn records(
        &self,
        request: Request<proto::RecordsRequest>,
    ) -> Result<Response<Self::RecordsStream>, Status> {
        let uid = uid_of(&request)?;
        if !is_owner(uid) {
            let why = "only root and the Monitor Node's own user read its records";
            return Err(Status::permission_denied(why));
        }
        let Some(records) = self.handler.records().await else {
            return Err(Status::unimplemented("an agent keeps no records"));
        };
        match &records {
            Ok(_) => tracing::info!(target: AUDIT, by = uid, act = "read records", "done"),
            Err(why) => {
                tracing::warn!(target: AUDIT, by = uid, act = "read records", %why, "refused")
            }
        }
        let records = messages(records.map_err(|error| rack_status(&error))?);
        Ok(Response::new(Box::pin(tokio_stream::iter(records))))
    }

    async fn enter(
        &self,
        request: Request<proto::EnterRequest>,
    ) -> Result<Response<proto::EnterResponse>, Status> {
        let uid = uid_of(&request)?;
        // Resolving user names may block, for example on a directory service.
        let peer = tokio::task::spawn_blocking(move || peer_of(uid))
            .await
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::unavailable(format!("cannot look up user {uid}: {error}")))?;
        let issued = self.handler.login(peer, request.into_inner().request).await;
        let LocalCredential { certified, monitor } = issued.map_err(|error| rack_status(&error))?;
        let proto::CertificateResponse { certificate, authority, rotation } =
            certified_out(certified);
        Ok(Response::new(proto::EnterResponse { certificate, authority, monitor, rotation }))
    }
}

/// Looks up a user. Without a descriptor for the lookup only root is known: quotas go by names.
fn peer_of(uid: u32) -> Result<LocalPeer, Errno> {
    let user = match nix::unistd::User::from_uid(Uid::from_raw(uid)) {
        Err(error @ (Errno::EMFILE | Errno::ENFILE)) if uid != 0 => return Err(error),
        found => found.ok().flatten(),
    };
    let name = user.map(|user| user.name).filter(|name| !name.is_empty());
    let name = name.or_else(|| (uid == 0).then(|| "root".to_owned()));
    Ok(LocalPeer { uid, name: name.unwrap_or_else(|| uid.to_string()), is_owner: is_owner(uid) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Uses the group of this process, which every user may give to its files.
    #[test]
    fn socket_admits_group_only() {
        let temp = tempfile::tempdir().unwrap();
        let group = Group::from_gid(nix::unistd::getegid()).unwrap().expect("it has a name");
        allow_group(temp.path(), &group.name).unwrap();
        allow_group(temp.path(), "no-group-has-this-name").unwrap();
        let about = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (found.gid(), found.mode() & 0o777)
        };
        assert_eq!(about(temp.path()), (group.gid.as_raw(), 0o750));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        for (name, mode) in [(group.name.as_str(), 0o660), ("no-group-has-this-name", 0o600)] {
            let path = temp.path().join("sock");
            let _socket = LocalSocket::bind(&path, name).unwrap();
            assert_eq!(about(&path), (group.gid.as_raw(), mode), "{name}");
        }
    }
}
