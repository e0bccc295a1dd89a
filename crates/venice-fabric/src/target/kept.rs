//! Answers sent from where they are kept for a replay, or where they are in the granted memory, so
//! that their bytes are not copied once more.

use venice_wire::{LinkId, Sequence};

use super::{PeerAddr, Target};
use crate::Lent;

/// A frame that its link keeps until it is acknowledged; [`Target::kept`] has its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFrame {
    /// Its link's place, and the link that was there.
    pub(super) at: usize,
    pub(super) link: LinkId,
    pub(super) sequence: Sequence,
    pub(super) len: usize,
}

/// Where the parts of such a frame are.
#[derive(Clone, Copy, Debug)]
pub struct KeptBytes<'a> {
    /// The first part, or all of it.
    pub head: &'a [u8],
    /// What follows, if that is lent.
    pub lent: Option<&'a Lent>,
}

impl KeptBytes<'_> {
    /// How many bytes, all together.
    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.lent.map_or(0, Lent::len_bytes)
    }

    /// Copies all of it to the front of `into`; returns how many bytes that are.
    ///
    /// # Panics
    /// When `into` is too short.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let len = self.len_bytes();
        let (head, rest) = into[..len].split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        self.lent.iter().for_each(|lent| lent.copy_to(rest));
        len
    }
}

impl KeptFrame {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }
}

/// Where the next frame to send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmission {
    /// So many bytes of it have been written to the buffer.
    Written(usize),
    /// Where it is kept; nothing has been written to the buffer.
    Kept(KeptFrame),
}

impl Transmission {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Written(len) => *len,
            Self::Kept(frame) => frame.len_bytes(),
        }
    }
}

impl Target {
    /// As [`Target::poll_transmit`], but for long frames that are kept for a replay: those are told
    /// of, for [`Target::kept`].
    ///
    /// # Panics
    /// As [`Target::poll_transmit`].
    pub fn poll_transmit_kept(
        &mut self,
        now_ns: u64,
        buf: &mut [u8],
    ) -> Option<(PeerAddr, Transmission)> {
        self.poll(now_ns, true, buf)
    }

    /// The bytes of a frame that [`Target::poll_transmit_kept`] has told of. `None`: it has been
    /// acknowledged since, or its link is gone, and it is not to be sent.
    pub fn kept(&self, frame: &KeptFrame) -> Option<KeptBytes<'_>> {
        let link = self.links.get(frame.at)?.link.as_ref()?;
        let parts = link.kept(frame.sequence).filter(|_| link.id() == Some(frame.link))?;
        let bytes = KeptBytes { head: parts.head, lent: parts.lent };
        (bytes.len_bytes() == frame.len).then_some(bytes)
    }
}
