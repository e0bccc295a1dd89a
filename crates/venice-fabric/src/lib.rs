//! Venice's fabric: reliable links between nodes, the CRMA, RDMA and QPair channels over them, and
//! the table that maps addresses to remote memory.
//!
//! Nothing here does I/O. [`Initiator`] is the recipient's end, [`Target`] the donor's; both take
//! frames and the time by `handle_*` and return frames and results by `poll_*`. A port moves the
//! frames. `docs/reference/wire.md` describes the wire format.
//!
//! After construction, and after the handshake of a link, no call allocates.
//!
//! ```
//! use venice_fabric::{GrantedMemory, Initiator, InitiatorConfig, PeerAddr, Refusal};
//! use venice_fabric::{Target, TargetConfig};
//! use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};
//!
//! /// One grant, whose key is 42.
//! struct Lent(Vec<u8>);
//!
//! impl Lent {
//!     fn range(&mut self, key: GrantKey, addr: u64, len: usize) -> Result<&mut [u8], Refusal> {
//!         if key != GrantKey(42) {
//!             return Err(Refusal::WrongKey);
//!         }
//!         let start = usize::try_from(addr).map_err(|_| Refusal::OutOfRange)?;
//!         let end = start.checked_add(len).ok_or(Refusal::OutOfRange)?;
//!         self.0.get_mut(start..end).ok_or(Refusal::OutOfRange)
//!     }
//! }
//!
//! impl GrantedMemory for Lent {
//!     fn read(&mut self, _: GrantId, key: GrantKey, addr: u64, into: &mut [u8])
//!         -> Result<(), Refusal> {
//!         into.copy_from_slice(self.range(key, addr, into.len())?);
//!         Ok(())
//!     }
//!     fn write(&mut self, _: GrantId, key: GrantKey, addr: u64, from: &[u8])
//!         -> Result<(), Refusal> {
//!         self.range(key, addr, from.len())?.copy_from_slice(from);
//!         Ok(())
//!     }
//! }
//!
//! let mut lent = Lent(vec![0; 8192]);
//! let mut target = Target::new(TargetConfig::new(NodeId(2), 0x5eed));
//! let mut initiator = Initiator::new(InitiatorConfig::new(NodeId(1), 0xf00d));
//! let donor = initiator.add_peer(NodeId(2), 0);
//! initiator.map_window(0x10_0000, 8192, donor, 0, GrantId(7), GrantKey(42))?;
//! initiator.write(0, 1, 0x10_0000 + 4096, b"far away")?;
//! initiator.read(0, 2, 0x10_0000 + 4096, 8)?;
//!
//! // A perfect wire: it delivers every frame.
//! let mut buf = [0; MAX_FRAME_BYTES];
//! let (mut now_ns, mut read) = (0, Vec::new());
//! while read.is_empty() {
//!     now_ns += 1000;
//!     while let Some((_, len)) = initiator.poll_transmit(now_ns, &mut buf) {
//!         target.handle_frame(now_ns, PeerAddr(1), &buf[..len], &mut lent);
//!     }
//!     while let Some((_, len)) = target.poll_transmit(now_ns, &mut buf) {
//!         initiator.handle_frame(now_ns, donor, &buf[..len]);
//!     }
//!     while let Some(done) = initiator.poll_completion() {
//!         assert_eq!(done.result, Ok(()));
//!         read.extend_from_slice(done.data);
//!     }
//! }
//! assert_eq!(read, b"far away");
//! # Ok::<(), venice_fabric::FabricError>(())
//! ```
#![forbid(unsafe_code)]

pub mod adaptive;
mod config;
mod crma;
mod datalink;
mod emulation;
mod error;
mod initiator;
mod peer;
mod qpair;
mod ramt;
mod rdma;
pub mod routing;
pub mod switch;
mod target;
pub mod topology;

pub use config::{InitiatorConfig, LinkConfig, TargetConfig};
pub use crma::{Atomic, Completion};
pub use datalink::{DropStats, LendingMemory, Lent, LinkStats};
pub use emulation::{EmulatedLink, LinkModel, ParseLinkModelError, parse_bandwidth};
pub use error::{AccessError, DownReason, FabricError, PeerState};
pub use initiator::{Initiator, MappedWindow, PeerIndex, Revocation};
pub use qpair::{
    CloseReason, CreditMode, EndConfig, MAX_MESSAGE_BYTES, QPairConfig, QPairError, QPairEvent,
    QPairId, QPairKind, QPairLevels, QPairStats, QPairs, RejectReason,
};
pub use ramt::RamtStats;
pub use rdma::{RdmaCompletion, RdmaDirection, RdmaRejected, ScatterGather, WindowRange};
pub use routing::{LinkStates, NextHop, NoRoute, VirtualChannel};
pub use switch::{HopState, HopStats, InjectError, Switch, SwitchConfig, SwitchStats};
pub use target::{
    DonorMapping, GrantedMemory, KeptBytes, KeptFrame, PeerAddr, RecipientId, Target, Transmission,
};
pub use topology::{Position, Topology, TopologyError, TopologyLink};
pub use venice_wire::Refusal;
