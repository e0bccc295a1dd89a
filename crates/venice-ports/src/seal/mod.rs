//! Protection of datagrams: each is encrypted and authenticated on its own, under keys from the
//! Monitor Node.
//!
//! A sender has a [`Sealer`]: a key, a salt drawn when it was made, and a counter that never
//! repeats. A receiver has an [`Opener`]: it finds the key by the name in the datagram
//! ([`SealKeys`]), checks and decrypts, and remembers for each sender the counters that came
//! ([`ReplayWindow`]), which admits each datagram at most once. Drops are counted by reason
//! ([`SealCounters`]). `docs/reference/wire.md` describes the bytes, decision 0014 the reasons.
//!
//! Both run in the shim: no thread-local storage, and no allocation once a sender is known.
//!
//! ```
//! use venice_ports::seal::{Opener, Sealer, node_key};
//! use venice_wire::{KeyName, NodeId, NodeSecret, SEALED_HEADER_BYTES, SEAL_OVERHEAD_BYTES};
//!
//! // The Monitor Node tells node 2 its secret, and node 1 the key made of it for node 1.
//! let secret = NodeSecret([7; 32]);
//! let name = KeyName::Peer(NodeId(1));
//! let mut sealer = Sealer::new(name, &node_key(&secret, name))?;
//! let mut opener = Opener::<()>::new(16);
//!
//! let mut datagram = [0; 5 + SEAL_OVERHEAD_BYTES];
//! datagram[SEALED_HEADER_BYTES..][..5].copy_from_slice(b"hello");
//! assert_eq!(sealer.seal(&mut datagram, 5)?, datagram.len());
//!
//! let mut again = datagram;
//! let opened = opener.open(0, &mut datagram, &secret).unwrap();
//! assert_eq!(&datagram[opened.payload], b"hello");
//! assert!(opener.open(0, &mut again, &secret).is_err(), "a replay");
//! # Ok::<(), venice_ports::PortError>(())
//! ```

mod counters;
mod key;
mod opener;
mod replay_window;
mod salt_index;
mod sealer;

pub use counters::{Dropped, SealCounters, SealCounts};
pub use key::{SealKeys, SealedAs, node_key, preferred_algorithm};
pub use opener::{Opened, Opener, SessionId};
pub use replay_window::ReplayWindow;
pub use sealer::Sealer;
