//! Channels between two programs: messages, byte streams, adaptive streams, and registered memory.
//!
//! One program listens at an [`Address`], the other connects. The same calls work over each port:
//! shared memory on one host (`shm:/run/talk.sock`), sealed datagrams between hosts
//! (`udp:host:port`), and RDMA devices (`verbs:host:port`, registered memory only). No rack and no
//! daemon is needed.
//!
//! - [`Listener`] and [`Connection`]: messages, each whole, once and in order; or bytes in order, as
//!   over TCP; or bytes that take the channel measured best;
//! - [`LentRegion`] and [`RemoteRegion`]: memory that one program registers and the other reads,
//!   writes and changes atomically.
//!
//! ```
//! use venice_client::channel::{Address, Connection, Kind, Listener, Options};
//!
//! # let dir = tempfile::tempdir()?;
//! # let text = format!("shm:{}", dir.path().join("talk.sock").display());
//! let address: Address = text.parse()?; // or "udp:10.0.0.7:7000", with a key
//! let listener = Listener::bind(&address, Kind::Messages, &Options::default())?;
//! let answering = std::thread::spawn(move || {
//!     let theirs = listener.accept(None)?;
//!     let mut buffer = [0; 4096];
//!     let len = theirs.recv(&mut buffer)?;
//!     theirs.send(&buffer[..len])
//! });
//! let ours = Connection::connect(&address, Kind::Messages, &Options::default())?;
//! ours.send(b"hello")?;
//! assert_eq!(ours.recv(&mut [0; 64])?, 5);
//! # answering.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Waiting
//! Calls block, for at most the time-out of [`Connection::set_timeout`]. Calls with `try_` return
//! [`Error::WouldBlock`] instead: then [`Connection::arm`], poll [`Connection::fd`] for input, and
//! try again. Calls that end in `_async` are futures for any executor.
//!
//! # End of the other side
//! | the other side | seen here |
//! |---|---|
//! | closes, or drops its connection | all it sent, then the end: [`Connection::recv`] returns 0; sending returns [`Error::Closed`] |
//! | exits or is killed without closing | what has arrived whole, then [`Error::Lost`]: over shm at once, over udp after two seconds without a sign of life |
//!
//! A message of which a part is missing is never returned.
//!
//! # Fork
//! Everything here belongs to the process that made it. In a forked child each call returns
//! [`Error::Forked`], and dropping closes nothing; what the child makes itself works.

mod address;
mod connection;
mod error;
mod key;
mod listener;
mod options;
mod owned;
mod region;

pub use address::Address;
pub use connection::{Connection, Kind};
pub use error::Error;
pub use key::Key;
pub use listener::Listener;
pub use options::Options;
pub use region::{Completed, LentRegion, RemoteRegion};
pub use venice_ports::Process;
pub use venice_wire::PortCapabilities;
