//! Login at a socket of this machine.

use super::socket_error::{self, SocketError, Standstill};
use super::user_ids::UserIds;
use crate::convert::certified_in;
use crate::error::ControlError;
use crate::identity::{Credential, Fingerprint, KeyPem};
use crate::proto::{self, local_door_client::LocalDoorClient};
use crate::server::StoreRecords;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// Longer than a daemon's timeout for its Monitor Node.
const ENTER_WITHIN: Duration = Duration::from_secs(8);
/// A socket without an answer by then may hang: the next one is asked too. Not sooner, since the
/// first may make its caller an administrator, and the next may not.
const ASK_NEXT_AFTER: Duration = Duration::from_secs(3);

/// Timeout for all records of a Monitor Node.
const RECORDS_WITHIN: Duration = Duration::from_secs(30);

/// Timeout of a login at all sockets together.
pub(super) const ENTER_ANY_WITHIN: Duration = Duration::from_secs(16);

/// Returns `host:port` of the Monitor Node of this machine's rack, or of several separated by commas,
/// as the first of these sockets that answers has it.
///
/// # Errors
/// [`ControlError::NoLogin`]: they are missing, refuse, or do not answer.
pub async fn rack_at_sockets(paths: &[PathBuf]) -> Result<String, ControlError> {
    Ok(enter_any(paths, None, 0..paths.len()).await?.1.monitor)
}

/// Returns the answer of the first socket that gives one, and the socket's index. Sockets are asked in the
/// order of `which`, each after the one before has failed or is slow; as `user`, or as this process's
/// own.
pub(super) async fn enter_any(
    paths: &[PathBuf],
    user: Option<&UserIds>,
    which: impl Iterator<Item = usize>,
) -> Result<(usize, Entered), ControlError> {
    let mut failed = Vec::new();
    let end = Instant::now() + ENTER_ANY_WITHIN;
    let mut which = which.fuse();
    let mut asked = JoinSet::new();
    loop {
        let heard = match which.next() {
            Some(at) => {
                asked.spawn(enter_within(at, paths[at].clone(), user.cloned(), end));
                tokio::time::timeout(ASK_NEXT_AFTER, asked.join_next()).await
            }
            None => Ok(asked.join_next().await),
        };
        match heard {
            Ok(Some(Ok((at, Ok(entered))))) => return Ok((at, entered)),
            Ok(Some(Ok((at, Err(why))))) => failed.push((paths[at].clone(), why)),
            // It panicked: the log has the reason.
            Ok(Some(Err(_))) => {}
            Ok(None) => break,
            Err(_) => {}
        }
    }
    Err(ControlError::NoLogin(socket_error::text(&failed)))
}

async fn enter_within(
    at: usize,
    path: PathBuf,
    user: Option<UserIds>,
    end: Instant,
) -> (usize, Result<Entered, SocketError>) {
    let until = end.min(Instant::now() + ENTER_WITHIN);
    (at, enter(&path, user, until).await)
}

/// The answer of a socket.
pub(super) struct Entered {
    pub(super) credential: Credential,
    /// Address of the rack's Monitor Node.
    pub(super) monitor: String,
}

async fn enter(path: &Path, user: Option<UserIds>, until: Instant) -> Result<Entered, SocketError> {
    let late = |_| SocketError::Late(Standstill::Unknown);
    let stream = timeout_at(until, connect(path, user)).await.map_err(late)?;
    let stream = stream.map_err(|error| SocketError::connecting(&error))?;
    let daemon = stream.peer_cred().ok().and_then(|peer| peer.pid());
    match timeout_at(until, enter_over(stream)).await {
        Ok(entered) => entered.map_err(SocketError::Reported),
        Err(_) => Err(SocketError::Late(Standstill::of(daemon))),
    }
}

async fn connect(path: &Path, user: Option<UserIds>) -> io::Result<UnixStream> {
    match user {
        Some(user) => user.connect(path).await,
        None => UnixStream::connect(path).await,
    }
}

/// Opens a channel over a connected socket.
async fn channel_over(stream: UnixStream) -> Result<Channel, String> {
    let mut stream = Some(TokioIo::new(stream));
    let connect = service_fn(move |_: Uri| {
        let stream = stream.take().ok_or_else(|| std::io::Error::other("one connection"));
        async move { stream }
    });
    let channel = Endpoint::from_static("http://local").connect_with_connector(connect).await;
    channel.map_err(|error| error.to_string())
}

/// Returns every record of the store of the Monitor Node at this socket; `None` where no Monitor Node
/// answers.
///
/// # Errors
/// The text of the refusal or of the broken connection: the answer must be complete.
pub async fn records_at_socket(path: &Path) -> Result<Option<StoreRecords>, String> {
    let Ok(stream) = UnixStream::connect(path).await else { return Ok(None) };
    let channel = channel_over(stream).await?;
    let read = async {
        let mut client = LocalDoorClient::new(channel);
        let mut parts = client.records(proto::RecordsRequest {}).await?.into_inner();
        let (mut authority, mut records) = (Vec::new(), Vec::new());
        while let Some(part) = parts.message().await? {
            authority = part.authority;
            records.extend(part.records.into_iter().map(|record| (record.key, record.value)));
        }
        Ok::<_, Status>((authority, records))
    };
    match timeout(RECORDS_WITHIN, read).await {
        Ok(Ok((authority, records))) => {
            let authority = authority.try_into().map_err(|_| "it names no authority".to_owned())?;
            Ok(Some(StoreRecords { authority: Fingerprint(authority), records }))
        }
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err("the Monitor Node does not answer: its disk may be full".to_owned()),
    }
}

async fn enter_over(stream: UnixStream) -> Result<Entered, String> {
    let key = KeyPem::generate().map_err(|error| error.to_string())?;
    let request = key.request().map_err(|error| error.to_string())?;
    let channel = channel_over(stream).await?;
    let answer = LocalDoorClient::new(channel).enter(proto::EnterRequest { request }).await;
    let answer = answer.map_err(|status| status.message().to_owned())?.into_inner();
    let proto::EnterResponse { certificate, authority, rotation, monitor } = answer;
    let certified = certified_in(proto::CertificateResponse { certificate, authority, rotation });
    let certified = certified.map_err(|status| status.message().to_owned())?;
    let credential = Credential::new(certified.certificate.into(), certified.authorities, key);
    let credential = credential.map_err(|error| error.to_string())?;
    Ok(Entered { credential, monitor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn hanging_socket_does_not_block_next() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["hangs", "answers"].map(|name| folder.path().join(name)).to_vec();
        let [hangs, answers] = [0, 1].map(|at| UnixListener::bind(&paths[at]).unwrap());
        let entering = tokio::spawn(async move { enter_any(&paths, None, 0..2).await });
        let (mut first, _) = hangs.accept().await.unwrap();
        let (second, _) = answers.accept().await.unwrap();
        // The first socket is still open. Read until it blocks.
        let mut bytes = [0; 4096];
        let is_open = loop {
            let read = tokio::time::timeout(Duration::from_millis(50), first.read(&mut bytes));
            match read.await {
                Ok(Ok(1..)) => {}
                Ok(_) => break false,
                Err(_) => break true,
            }
        };
        assert!(is_open, "the first was closed before the next was asked");
        drop((first, second));
        let Err(ControlError::NoLogin(why)) = entering.await.unwrap() else { panic!("no login") };
        assert!(why.contains("hangs") && why.contains("answers"), "{why}");
    }
}
