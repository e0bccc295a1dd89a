//! A TCP proxy on this machine whose traffic can be stopped, as on a network that loses all
//! packets.

use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub struct Wire {
    pub addr: String,
    is_whole: Arc<watch::Sender<bool>>,
    _proxy: JoinSet<()>,
}

impl Wire {
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let is_whole = Arc::new(watch::Sender::new(true));
        let mut proxy = JoinSet::new();
        proxy.spawn(accept_all(listener, target.to_owned(), Arc::clone(&is_whole)));
        Self { addr, is_whole, _proxy: proxy }
    }

    pub fn cut(&self) {
        self.is_whole.send_replace(false);
    }

    pub fn restore(&self) {
        self.is_whole.send_replace(true);
    }
}

async fn accept_all(listener: TcpListener, target: String, is_whole: Arc<watch::Sender<bool>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((near, _)) = listener.accept().await else { return };
        let Ok(far) = TcpStream::connect(&target).await else { continue };
        let (near, far) = (near.into_split(), far.into_split());
        connections.spawn(forward(near.0, far.1, is_whole.subscribe()));
        connections.spawn(forward(far.0, near.1, is_whole.subscribe()));
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut whole: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if whole.wait_for(|whole| *whole).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
