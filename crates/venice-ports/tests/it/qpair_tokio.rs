//! Tests of the futures of QPair sockets on tokio: many tasks on few threads, and cancelled tasks.

use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use venice_ports::qpair::{
    QPairAddress, QPairListener, QPairMessages, QPairOptions, QPairSocketError, QPairStream,
};

const SERVICE: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
const CALLERS: u8 = 8;

/// Makes listeners over both ports; the folder holds the rings' socket.
fn listeners() -> (tempfile::TempDir, [(QPairListener, QPairAddress); 2]) {
    let folder = tempfile::tempdir().unwrap();
    let ring = QPairAddress::ring(folder.path().join("tokio.sock"));
    let rings = QPairListener::bind(&ring, SERVICE).unwrap();
    let any = QPairAddress::plain_udp("127.0.0.1:0".parse().unwrap());
    let udp = QPairListener::bind(&any, SERVICE).unwrap();
    let address = QPairAddress::plain_udp(udp.local_addr().unwrap());
    (folder, [(rings, ring), (udp, address)])
}

async fn connect(address: &QPairAddress) -> QPairMessages {
    let address = address.clone();
    let connect = move || QPairMessages::connect(&address, SERVICE, &QPairOptions::default());
    spawn_blocking(connect).await.unwrap().unwrap()
}

async fn echo(socket: QPairMessages) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = socket.recv_async(&mut buffer).await {
        socket.send_async(&buffer[..len]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_on_few_threads() {
    let (_folder, listeners) = listeners();
    for (listener, address) in listeners {
        let accepting = spawn_blocking(move || {
            let accept = |_| listener.accept_messages(Some(PATIENCE)).unwrap();
            let sockets: Vec<_> = (0..CALLERS).map(accept).collect();
            // The listener is kept: over udp it owns the sockets.
            (listener, sockets)
        });
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let address = address.clone();
            callers.spawn(async move {
                let socket = connect(&address).await;
                let mut buffer = [0; 4096];
                for number in 0..100u16 {
                    let message = vec![caller; 1 + usize::from(number) * 40];
                    socket.send_async(&message).await.unwrap();
                    let len = socket.recv_async(&mut buffer).await.unwrap();
                    assert!(buffer[..len] == message, "caller {caller}, message {number}");
                }
                socket.shutdown().unwrap();
            });
        }
        let (_listener, sockets) = accepting.await.unwrap();
        let mut echoes: JoinSet<()> = sockets.into_iter().map(echo).collect();
        let all = async {
            while let Some(ended) = callers.join_next().await {
                ended.unwrap();
            }
            while let Some(ended) = echoes.join_next().await {
                ended.unwrap();
            }
        };
        timeout(PATIENCE, all).await.expect("all callers are served");
    }
}

#[tokio::test]
async fn cancelled_receive_loses_nothing() {
    let (_folder, listeners) = listeners();
    for (listener, address) in listeners {
        let accepting = spawn_blocking(move || {
            let socket = listener.accept_messages(Some(PATIENCE)).unwrap();
            (listener, socket)
        });
        let mut ours = connect(&address).await;
        let (_listener, theirs) = accepting.await.unwrap();
        let mut buffer = [0; 4096];
        for number in 0..50u32 {
            let waiting = theirs.recv_async(&mut buffer);
            assert!(timeout(Duration::from_millis(1), waiting).await.is_err());
            let sender = tokio::spawn(async move {
                ours.send_async(&number.to_le_bytes()).await.unwrap();
                ours
            });
            // Cancels again and again, sometimes just as the message comes.
            let len = loop {
                let waiting = theirs.recv_async(&mut buffer);
                if let Ok(received) = timeout(Duration::from_micros(200), waiting).await {
                    break received.unwrap();
                }
            };
            assert_eq!(buffer[..len], number.to_le_bytes());
            ours = sender.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_both_ways_to_end() {
    let (_folder, listeners) = listeners();
    for (listener, address) in listeners {
        let accepting = spawn_blocking(move || {
            let socket = listener.accept_stream(Some(PATIENCE)).unwrap();
            (listener, socket)
        });
        let connect = move || QPairStream::connect(&address, SERVICE, &QPairOptions::default());
        let ours = spawn_blocking(connect).await.unwrap().unwrap();
        let (_listener, theirs) = accepting.await.unwrap();
        let (there, back) = (tokio::spawn(swap(ours, 1)), tokio::spawn(swap(theirs, 2)));
        let both = async { (there.await.unwrap().unwrap(), back.await.unwrap().unwrap()) };
        let (there, back) = timeout(PATIENCE, both).await.expect("both directions end");
        assert!(there == vec![2; BYTES] && back == vec![1; BYTES]);
    }
}

const BYTES: usize = 300_000;

/// Sends [`BYTES`] of `own`, then the end; returns the bytes received until the other's end. Both
/// sides send at the same time, and neither could send all of it at once.
async fn swap(socket: QPairStream, own: u8) -> Result<Vec<u8>, QPairSocketError> {
    let (mut sent, mut received) = (0, Vec::new());
    let mut buffer = vec![0; 16 << 10];
    while sent < BYTES {
        let rest = vec![own; (BYTES - sent).min(16 << 10)];
        tokio::select! {
            written = socket.write_async(&rest) => sent += written?,
            () = tokio::task::yield_now() => {}
        }
        if let Ok(len) = socket.try_read(&mut buffer) {
            received.extend_from_slice(&buffer[..len]);
        }
    }
    socket.shutdown()?;
    loop {
        match socket.read_async(&mut buffer).await? {
            0 => return Ok(received),
            len => received.extend_from_slice(&buffer[..len]),
        }
    }
}
