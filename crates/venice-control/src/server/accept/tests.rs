//! Tests of the accept loop over TLS connections of this machine.

use super::*;
use crate::identity::{Authority, Credential, Holder, Lifetimes, pinned_client};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_stream::StreamExt as _;
use venice_rack::caller::User;

/// Far longer than any step here takes.
const BOUND: Duration = Duration::from_secs(60);
const HOURS: Duration = Duration::from_secs(36_000);
/// More than the permits of one address.
const SILENT: usize = 100;

/// A server that returns each byte, and its authority.
struct Server {
    authority: Authority,
    tls: Arc<TlsServer>,
    addr: SocketAddr,
    _serving: JoinSet<()>,
}

fn limits() -> ConnectionLimits {
    ConnectionLimits {
        strangers_of_network: 4,
        stranger_life: HOURS,
        idle: HOURS,
        ..ConnectionLimits::of_process()
    }
}

fn authority() -> Authority {
    Authority::create(tempfile::tempdir().unwrap().path()).unwrap()
}

fn ada() -> Caller {
    let (node, name) = ("node7".to_owned(), "ada".to_owned());
    Caller::User(User { node, uid: 1, name, is_admin: false })
}

impl Server {
    async fn start(limits: ConnectionLimits) -> Self {
        let authority = authority();
        let holder = Holder::new(authority.credential(&Caller::Monitor).unwrap()).unwrap();
        let tls = TlsServer::new(holder).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut accepted = Connections::within((HOURS, limits), &tls, listener).unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut echoes = JoinSet::new();
            while let Some(Ok(connection)) = accepted.next().await {
                echoes.spawn(async move {
                    let (mut from, mut to) = tokio::io::split(connection);
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        Self { authority, tls, addr, _serving: serving }
    }

    async fn connect(&self, config: Arc<ClientConfig>) -> ClientStream<TcpStream> {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        bounded(TlsConnector::from(config).connect(dns(), stream)).await.unwrap()
    }

    /// Connects without a certificate.
    async fn connect_bare(&self) -> ClientStream<TcpStream> {
        let config = pinned_client(self.authority.fingerprint()).unwrap();
        let mut stream = self.connect(config).await;
        assert!(is_answered(&mut stream).await, "the connection is open at first");
        stream
    }

    async fn connect_with(&self, credential: Credential) -> ClientStream<TcpStream> {
        self.connect(Holder::new(credential).unwrap().client()).await
    }
}

fn dns() -> ServerName<'static> {
    ServerName::try_from(crate::identity::MONITOR_DNS).unwrap()
}

async fn bounded<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, step).await.expect("the step timed out")
}

/// True if the server returns a byte.
async fn is_answered(stream: &mut ClientStream<TcpStream>) -> bool {
    let mut byte = [0];
    let echoed = async {
        stream.write_all(b"x").await?;
        stream.read_exact(&mut byte).await
    };
    bounded(echoed).await.is_ok()
}

/// Waits until the server closes the connection.
async fn closed(stream: &mut ClientStream<TcpStream>) {
    let mut byte = [0];
    while let Ok(1..) = bounded(stream.read(&mut byte)).await {}
}

#[tokio::test]
async fn uncertified_flood_displaces_itself() {
    let server = Server::start(limits()).await;
    let mut bare = Vec::new();
    for _ in 0..10 {
        bare.push(server.connect_bare().await);
    }
    for stream in &mut bare[..6] {
        closed(stream).await;
    }
    for stream in &mut bare[6..] {
        assert!(is_answered(stream).await, "within the bound");
    }
    assert_eq!(server.tls.refused().uncertified, 6);
    let mut user = server.connect_with(server.authority.credential(&ada()).unwrap()).await;
    assert!(is_answered(&mut user).await);
}

#[tokio::test]
async fn uncertified_connection_ends_soon() {
    let stranger_life = Duration::from_secs(1);
    let server = Server::start(ConnectionLimits { stranger_life, ..limits() }).await;
    let mut user = server.connect_with(server.authority.credential(&ada()).unwrap()).await;
    let mut bare = server.connect_bare().await;
    closed(&mut bare).await;
    assert_eq!(server.tls.refused().uncertified, 1);
    assert!(is_answered(&mut user).await, "a certified peer stays");
}

#[tokio::test]
async fn silent_certified_peer_is_closed() {
    let idle = Duration::from_millis(200);
    let server = Server::start(ConnectionLimits { idle, ..limits() }).await;
    let mut user = server.connect_with(server.authority.credential(&ada()).unwrap()).await;
    closed(&mut user).await;
}

#[tokio::test]
async fn expired_certificate_closes_connection() {
    let server = Server::start(limits()).await;
    let life = Duration::from_secs(1);
    let authority = server.authority.with_lifetimes(Lifetimes { node: life, user: life });
    let credential = authority.credential(&ada()).unwrap();
    let server = Server { authority, ..server };
    let mut user = server.connect_with(credential).await;
    closed(&mut user).await;
    assert_eq!(server.tls.refused().total(), 0, "no call was refused");
}

#[tokio::test]
async fn users_connections_are_bounded() {
    let server = Server::start(ConnectionLimits { of_user: 2, ..limits() }).await;
    let credential = || server.authority.credential(&ada()).unwrap();
    let mut first = server.connect_with(credential()).await;
    let mut second = server.connect_with(credential()).await;
    assert!(is_answered(&mut first).await && is_answered(&mut second).await);
    let mut third = server.connect_with(credential()).await;
    closed(&mut third).await;
    assert_eq!(server.tls.refused().too_many, 1);
    let agent = server.authority.credential(&Caller::Node("node7".to_owned())).unwrap();
    assert!(is_answered(&mut server.connect_with(agent).await).await);
}

#[tokio::test]
async fn silent_peers_block_no_handshake() {
    let server = Server::start(limits()).await;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(server.addr).await.unwrap());
    }
    let mut user = server.connect_with(server.authority.credential(&ada()).unwrap()).await;
    assert!(is_answered(&mut user).await);
    drop(silent);
}

#[tokio::test]
async fn nodes_have_their_own_stream() {
    let authority = authority();
    let holder = |caller| Holder::new(authority.credential(&caller).unwrap()).unwrap();
    let tls = TlsServer::new(holder(Caller::Monitor)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let elsewhere = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (mut nodes, mut others) = Connections::apart(&tls, listener, elsewhere.handle()).unwrap();
    for (who, accept) in [(ada(), &mut others), (Caller::Node("node7".to_owned()), &mut nodes)] {
        let stream = TcpStream::connect(addr).await.unwrap();
        let connector = TlsConnector::from(holder(who.clone()).client());
        let coming = connector.connect(dns(), stream);
        let (came, connection) = tokio::join!(coming, accept.next());
        came.unwrap();
        let connection = connection.unwrap().unwrap();
        assert_eq!(connection.peer().info.as_ref().unwrap().caller, who);
    }
    elsewhere.shutdown_background();
}
