//! Coming in at a socket of this machine.

use crate::error::ControlError;
use crate::identity::{Credential, KeyPem};
use crate::proto::{self, local_door_client::LocalDoorClient};
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

/// Longer than a daemon waits for its Monitor Node.
const ENTER_WITHIN: Duration = Duration::from_secs(8);

/// No caller waits longer for all of them.
pub(super) const ENTER_ANY_WITHIN: Duration = Duration::from_secs(16);

/// A credential from the first socket that answers, and which one that is. They are asked in the
/// order of `which`.
pub(super) async fn enter_any(
    paths: &[PathBuf],
    which: impl Iterator<Item = usize>,
) -> Result<(usize, Credential), ControlError> {
    let mut failed = Vec::new();
    let end = tokio::time::Instant::now() + ENTER_ANY_WITHIN;
    for at in which {
        let path = &paths[at];
        let until = end.min(tokio::time::Instant::now() + ENTER_WITHIN);
        match tokio::time::timeout_at(until, enter(path)).await {
            Ok(Ok(credential)) => return Ok((at, credential)),
            Ok(Err(why)) => failed.push(format!("{}: {why}", path.display())),
            Err(_) => failed.push(format!("{}: no answer in time", path.display())),
        }
    }
    Err(ControlError::NoLogin(match failed.as_slice() {
        [] => "no socket of a Monitor Node or an agent is known on this machine".to_owned(),
        failed => failed.join("; "),
    }))
}

async fn enter(path: &Path) -> Result<Credential, String> {
    let key = KeyPem::generate().map_err(|error| error.to_string())?;
    let request = key.request().map_err(|error| error.to_string())?;
    let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "only root, its daemon's user and the group venice come in here".to_owned()
        }
        std::io::ErrorKind::NotFound => "there is no such socket".to_owned(),
        std::io::ErrorKind::ConnectionRefused => "its daemon does not run".to_owned(),
        _ => error.to_string(),
    })?;
    let mut stream = Some(TokioIo::new(stream));
    let connect = service_fn(move |_: Uri| {
        let stream = stream.take().ok_or_else(|| std::io::Error::other("one connection"));
        async move { stream }
    });
    let channel = Endpoint::from_static("http://local").connect_with_connector(connect).await;
    let channel = channel.map_err(|error| error.to_string())?;
    let answer = LocalDoorClient::new(channel).enter(proto::EnterRequest { request }).await;
    let answer = answer.map_err(|status| status.message().to_owned())?.into_inner();
    let (certificate, authority) = (answer.certificate.into(), answer.authority.into());
    Credential::new(certificate, authority, key).map_err(|error| error.to_string())
}
