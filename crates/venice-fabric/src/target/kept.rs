//! Answers sent from the slot where they are kept for a replay, or from the granted memory, without
//! another copy of their bytes.

use venice_wire::{LinkId, Sequence};

use super::{PeerAddr, Target};
use crate::Lent;

/// A frame that its link keeps until it is acknowledged; [`Target::kept`] returns its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFrame {
    /// Its link's slot, and the number of the link that was there.
    pub(super) at: usize,
    pub(super) link: LinkId,
    pub(super) sequence: Sequence,
    pub(super) len: usize,
}

/// The parts of a kept frame.
#[derive(Clone, Copy, Debug)]
pub struct KeptBytes<'a> {
    /// The first part, or all of it.
    pub head: &'a [u8],
    /// The second part, if it is lent.
    pub lent: Option<&'a Lent>,
}

impl KeptBytes<'_> {
    /// Returns the total length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.lent.map_or(0, Lent::len_bytes)
    }

    /// Copies all parts to the front of `into`; returns their length in bytes.
    ///
    /// # Panics
    /// Panics if `into` is too short.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let len = self.len_bytes();
        let (head, rest) = into[..len].split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        self.lent.iter().for_each(|lent| lent.copy_to(rest));
        len
    }
}

impl KeptFrame {
    /// Returns its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }
}

/// The place of the next frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmission {
    /// In the buffer, with this length in bytes.
    Written(usize),
    /// In its link's slot; nothing was written to the buffer.
    Kept(KeptFrame),
}

impl Transmission {
    /// Returns its length in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Written(len) => *len,
            Self::Kept(frame) => frame.len_bytes(),
        }
    }
}

impl Target {
    /// Like [`Target::poll_transmit`], except that long frames kept for a replay are returned as
    /// handles for [`Target::kept`].
    ///
    /// # Panics
    /// Like [`Target::poll_transmit`].
    pub fn poll_transmit_kept(
        &mut self,
        now_ns: u64,
        buf: &mut [u8],
    ) -> Option<(PeerAddr, Transmission)> {
        self.poll(now_ns, true, buf)
    }

    /// Returns the bytes of a frame from [`Target::poll_transmit_kept`]. `None`: it has been
    /// acknowledged since, or its link is gone, and it must not be sent.
    pub fn kept(&self, frame: &KeptFrame) -> Option<KeptBytes<'_>> {
        let link = self.links.get(frame.at)?.link.as_ref()?;
        let parts = link.kept(frame.sequence).filter(|_| link.id() == Some(frame.link))?;
        let bytes = KeptBytes { head: parts.head, lent: parts.lent };
        (bytes.len_bytes() == frame.len).then_some(bytes)
    }
}
