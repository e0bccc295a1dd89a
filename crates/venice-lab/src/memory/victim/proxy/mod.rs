//! `venice bench victim-proxy`: the process between the clients and a real memcached, which gives
//! it a victim store: the application's own way to remote memory, with Put and Get (composable-rack
//! paper, section 4, and Figure 8).
//!
//! Each client has a thread, a [`session`], with a connection of its own to memcached ([`near`]). The
//! [`index`] index the values in memcached; beyond the near limit, the least recently used one is
//! put into the victim store and removed from memcached. As in the paper, a read is answered from
//! the value's place, and the value stays there until it is stored anew.

mod index;
mod near;
mod session;
mod shared;

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use venice_client::{CacheOptions, MemoryOptions, ObjectCache, PortKind, Rack};
use venice_wire::ByteSize;

use session::Session;
use shared::Shared;
use venice_measure::interrupt;
use venice_measure::launch::COPIES;

/// Period of the checks for new clients and for the end.
const LOOK: Duration = Duration::from_millis(5);

/// Place of a victim store's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VictimMemory {
    /// In the proxy's own memory.
    Local,
    /// Borrowed, reached over shared memory.
    Shm,
    /// Borrowed, reached over udp.
    Udp,
}

/// Arguments of the hidden `venice bench victim-proxy`.
#[derive(Debug, Clone, Args)]
pub struct ProxyArgs {
    /// Socket to listen on.
    #[arg(long, value_name = "SOCKET")]
    pub listen: PathBuf,

    /// Socket of memcached.
    #[arg(long, value_name = "SOCKET")]
    pub memcached: PathBuf,

    /// Bytes of values that may be in memcached; the rest goes into the victim store.
    #[arg(long, value_name = "SIZE", requires = "victims")]
    pub near: Option<ByteSize>,

    /// Memory of the victim store; without it there is no victim store.
    #[arg(long, value_enum, value_name = "WHERE", requires = "size")]
    pub victims: Option<VictimMemory>,

    /// Size of the victim store.
    #[arg(long, value_name = "SIZE", requires = "victims")]
    pub size: Option<ByteSize>,
}

/// Serves clients until a signal ends it; then gives back its borrowed memory.
///
/// # Errors
/// When the victim store is unavailable, or the socket cannot be listened on.
pub fn execute_proxy(args: ProxyArgs) -> Result<()> {
    interrupt::catch_signals()?;
    let size_bytes = args.size.map_or(0, |size| size.0);
    let victims = args.victims.map(|memory| victim_store(memory, size_bytes)).transpose()?;
    let near_limit_bytes = args.near.map_or(u64::MAX, |near| near.0);
    let shared = Shared::new(args.memcached, victims, near_limit_bytes);
    let listener = UnixListener::bind(&args.listen)
        .with_context(|| format!("cannot listen at {}", args.listen.display()))?;
    listener.set_nonblocking(true)?;
    std::thread::scope(|scope| {
        let mut open: Vec<(UnixStream, ScopedJoinHandle<'_, ()>)> = Vec::new();
        let outcome = loop {
            if interrupt::check().is_err() {
                break Ok(());
            }
            open.retain(|(_, thread)| !thread.is_finished());
            match client(&listener) {
                Ok(Some((ours, theirs))) => {
                    let shared = &shared;
                    open.push((ours, scope.spawn(move || serve(shared, theirs))));
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(error) => break Err(error).context("cannot listen any more"),
            }
        };
        // A thread that waits for a client's next command sees the end of its connection.
        for (stream, _) in &open {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        outcome
    })
}

fn victim_store(memory: VictimMemory, size_bytes: u64) -> Result<ObjectCache> {
    let options = CacheOptions::default();
    let port = match memory {
        VictimMemory::Local => return Ok(ObjectCache::in_local_memory(size_bytes, &options)?),
        VictimMemory::Shm => PortKind::Shm,
        VictimMemory::Udp => PortKind::Udp,
    };
    let mut wanted = MemoryOptions::default();
    wanted.port = Some(port);
    wanted.copies = Some(COPIES);
    wanted.purpose = "memcached's victims".to_owned();
    let rack = Rack::connect().context("the victim store")?;
    rack.object_cache(size_bytes, &wanted, &options).context("the victim store")
}

/// Accepts a new client's connection, twice; `None`: no client waits.
fn client(listener: &UnixListener) -> std::io::Result<Option<(UnixStream, UnixStream)>> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false)?;
            Ok(Some((stream.try_clone()?, stream)))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn serve(shared: &Shared, client: UnixStream) {
    let outcome = Session::open(shared, client).and_then(|mut session| session.serve());
    if let Err(error) = outcome
        && interrupt::check().is_ok()
    {
        eprintln!("venice: a client's connection ended: {error:#}");
    }
}
