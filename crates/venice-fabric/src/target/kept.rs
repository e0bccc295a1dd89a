//! Answers sent from where they are kept for a replay, so that their bytes are not copied once more.

use venice_wire::{LinkId, Sequence};

use super::{PeerAddr, Target};

/// A frame that its link keeps until it is acknowledged; [`Target::kept`] has its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFrame {
    /// Its link's place, and the link that was there.
    pub(super) at: usize,
    pub(super) link: LinkId,
    pub(super) sequence: Sequence,
    pub(super) len: usize,
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
    pub fn kept(&self, frame: &KeptFrame) -> Option<&[u8]> {
        let link = self.links.get(frame.at)?.link.as_ref()?;
        let bytes = link.kept(frame.sequence).filter(|_| link.id() == Some(frame.link))?;
        (bytes.len() == frame.len).then_some(bytes)
    }
}
