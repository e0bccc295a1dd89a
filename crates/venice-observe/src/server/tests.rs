//! The server, over real sockets.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Default)]
struct Daemon {
    is_ready: AtomicBool,
    scrapes: AtomicU64,
}

impl Source for Daemon {
    async fn metrics(&self) -> Exposition {
        let mut metrics = Exposition::new("0");
        let scrapes = self.scrapes.fetch_add(1, Ordering::Relaxed) + 1;
        metrics.counter("venice_scrapes_total", "Scrapes", scrapes as f64);
        metrics
    }

    async fn ready(&self) -> Result<(), NotReady> {
        match self.is_ready.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(NotReady("not registered".to_owned())),
        }
    }
}

async fn start() -> (SocketAddr, Arc<Daemon>) {
    let server = MetricsServer::bind("127.0.0.1:0").await.unwrap();
    let (addr, daemon) = (server.addr(), Arc::new(Daemon::default()));
    tokio::spawn(server.serve(Arc::clone(&daemon)));
    (addr, daemon)
}

/// Sends bytes and returns the whole answer; empty: the connection was cut.
async fn send(addr: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let (mut answer, _) = (Vec::new(), stream.write_all(request).await);
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn get(addr: SocketAddr, path: &str) -> String {
    send(addr, format!("GET {path} HTTP/1.1\r\nHost: venice\r\n\r\n").as_bytes()).await
}

#[tokio::test]
async fn pages_answer_as_named() {
    let (addr, daemon) = start().await;
    let metrics = get(addr, "/metrics").await;
    assert!(
        metrics.starts_with("HTTP/1.1 200 OK") && metrics.contains("version=0.0.4"),
        "{metrics}"
    );
    assert!(metrics.contains("venice_scrapes_total 1"), "{metrics}");
    assert!(get(addr, "/metrics").await.contains("venice_scrapes_total 1"), "reused");
    assert!(get(addr, "/healthz").await.starts_with("HTTP/1.1 200"));
    let waiting = get(addr, "/readyz").await;
    assert!(
        waiting.starts_with("HTTP/1.1 503") && waiting.ends_with("not registered\n"),
        "{waiting}"
    );
    daemon.is_ready.store(true, Ordering::Relaxed);
    assert!(get(addr, "/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(get(addr, "/").await.starts_with("HTTP/1.1 404"));
    let put = send(addr, b"PUT /metrics HTTP/1.1\r\nHost: v\r\n\r\n").await;
    assert!(put.starts_with("HTTP/1.1 405") && put.contains("allow: GET, HEAD"), "{put}");
}

#[tokio::test]
async fn large_and_odd_requests_are_refused() {
    let (addr, _) = start().await;
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(10 * HEAD_BYTES));
    assert!(!send(addr, long.as_bytes()).await.starts_with("HTTP/1.1 200"));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(2 * HEAD_LINES));
    assert!(!send(addr, many.as_bytes()).await.starts_with("HTTP/1.1 200"));
    assert!(!send(addr, &[0x16, 3, 1, 0, 200, 1, 0, 0, 9, 10, 13, 10]).await.contains("200"));
    assert!(get(addr, "/healthz").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn silent_connections_make_room() {
    let (addr, _) = start().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(addr).await.unwrap());
    }
    assert!(get(addr, "/metrics").await.starts_with("HTTP/1.1 200"));
    // The last ones are cut after the limit for a head, without another connection.
    let mut byte = [0; 1];
    let last = silent.last_mut().unwrap();
    assert!(!matches!(last.read(&mut byte).await, Ok(1)));
}
