//! Cost of a control-plane connection over loopback: TCP alone, with a full TLS handshake (both
//! sides verify certificates), and with a resumed TLS session. Client and server share this
//! machine.
//!
//! `cargo run --release -p venice-control --example handshake`

use std::sync::Arc;
use std::time::{Duration, Instant};

use venice_control::client::{AgentClient, Login};
use venice_control::identity::{Authority, Holder};
use venice_control::server::{AgentHandler, TlsServer, bind, serve_agent};
use venice_control::{Caller, DonorStatus, LeaseState, Pong, PrepareRequest, Refusal, User};
use venice_wire::{GrantId, GrantKey};

const ROUNDS: usize = 500;
const PATIENCE: Duration = Duration::from_secs(30);

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let dir = std::env::temp_dir().join(format!("venice-handshake-{}", std::process::id()));
    let authority = Authority::create(&dir)?;
    std::fs::remove_dir_all(&dir)?;
    let node = Holder::new(authority.credential(&Caller::Node("node1".into()))?)?;
    let listener = bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?.to_string();
    let serving =
        serve_agent(listener, TlsServer::new(node)?, Arc::new(Nobody), std::future::pending());
    let serving = tokio::spawn(serving);

    let user = || User { node: "node1".into(), uid: 7, name: "alice".into(), is_admin: false };
    let login = || -> Result<Login, Failure> {
        Ok(Login::held(Holder::new(authority.credential(&Caller::User(user()))?)?))
    };
    let again = login()?;
    call(&again, &addr).await?;
    let (mut tcp, mut whole, mut resumed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        drop(tokio::net::TcpStream::connect(&addr).await?);
        tcp.push(begin.elapsed());
        // Its key and certificate are made beforehand.
        let new = login()?;
        for (login, times) in [(&new, &mut whole), (&again, &mut resumed)] {
            let begin = Instant::now();
            call(login, &addr).await?;
            times.push(begin.elapsed());
        }
    }
    serving.abort();
    println!("{ROUNDS} rounds in turns, us: p50 and p99");
    let rows = [("TCP", tcp), ("connection and a call, whole handshake", whole)];
    for (what, times) in rows.into_iter().chain([("the same, resumed", resumed)]) {
        println!("{what:40} {:7.0} {:7.0}", quantile(&times, 0.5), quantile(&times, 0.99));
    }
    Ok(())
}

/// Connects and pings.
async fn call(login: &Login, addr: &str) -> Result<(), Failure> {
    AgentClient::connect(login, "node1", addr, PATIENCE).await?.ping().await?;
    Ok(())
}

/// Converts to microseconds.
fn quantile(times: &[Duration], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[((sorted.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6
}

/// An agent that lends nothing.
struct Nobody;

const NOTHING: DonorStatus = DonorStatus { total_slabs: 0, free_slabs: 0, revision: 0 };

impl AgentHandler for Nobody {
    async fn prepare(&self, _: PrepareRequest) -> Result<DonorStatus, Refusal> {
        Ok(NOTHING)
    }

    async fn commit(&self, _: GrantId, _: u64) -> Result<DonorStatus, Refusal> {
        Ok(NOTHING)
    }

    async fn abort(&self, _: GrantId) -> DonorStatus {
        NOTHING
    }

    async fn release(&self, _: Vec<GrantId>) -> DonorStatus {
        NOTHING
    }

    async fn give_back(&self, _: Caller, _: Vec<(GrantId, GrantKey)>) -> DonorStatus {
        NOTHING
    }

    async fn renew(&self, _: Caller, _: Vec<(GrantId, GrantKey)>) -> Vec<LeaseState> {
        Vec::new()
    }

    async fn ping(&self) -> Pong {
        Pong { name: "node1".into(), instance: 1 }
    }
}
