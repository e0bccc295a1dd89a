//! QPair sockets as tasks of tokio: an echo service, and callers that talk to it at the same time.
//!
//! `cargo run --release -p venice-ports --example qpair_tokio [CALLERS]` prints how many messages
//! went there and back in a second.
//!
//! The futures of the sockets need no reactor of tokio's: they are awaited as they are. Connecting
//! and accepting block, and are left to tokio's threads for such calls.

use std::time::{Duration, Instant};

use tokio::task::{JoinSet, spawn_blocking};
use venice_ports::qpair::{
    QPairAddress, QPairListener, QPairMessages, QPairOptions, QPairSocketError,
};

const SERVICE: u32 = 1;
const MESSAGES: u32 = 20_000;
const PATIENCE: Duration = Duration::from_secs(10);

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let callers: u32 = std::env::args().nth(1).map_or(4, |text| text.parse().expect("CALLERS"));
    let dir = std::env::temp_dir().join(format!("venice-qpair-tokio-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let address = QPairAddress::ring(dir.join("echo.sock"));
    let listener = QPairListener::bind(&address, SERVICE)?;
    let service = tokio::spawn(serve(listener, callers));

    let started = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..callers {
        calls.spawn(call(address.clone()));
    }
    while let Some(called) = calls.join_next().await {
        called??;
    }
    service.await??;
    let rate = f64::from(callers * MESSAGES) / started.elapsed().as_secs_f64();
    println!("{callers} callers: {rate:.0} messages a second there and back");
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// Accepts `callers`, each of which gets a task of its own; waits for the end of all.
async fn serve(mut listener: QPairListener, callers: u32) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let accepted;
        (listener, accepted) = spawn_blocking(move || {
            let accepted = listener.accept_messages(Some(PATIENCE));
            (listener, accepted)
        })
        .await?;
        tasks.spawn(echo(accepted?));
    }
    while let Some(echoed) = tasks.join_next().await {
        echoed??;
    }
    Ok(())
}

async fn echo(mut socket: QPairMessages) -> Result<(), QPairSocketError> {
    let mut buffer = [0; 4096];
    loop {
        match socket.recv_async(&mut buffer).await? {
            0 => return Ok(()),
            len => socket.send_async(&buffer[..len]).await?,
        }
    }
}

async fn call(address: QPairAddress) -> Result<(), Failure> {
    let connect = move || QPairMessages::connect(&address, SERVICE, &QPairOptions::default());
    let mut socket = spawn_blocking(connect).await??;
    let mut buffer = [0; 4096];
    for number in 0..MESSAGES {
        socket.send_async(&number.to_le_bytes()).await?;
        let len = socket.recv_async(&mut buffer).await?;
        assert_eq!(buffer[..len], number.to_le_bytes());
    }
    socket.shutdown()?;
    Ok(())
}
