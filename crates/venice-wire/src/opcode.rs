//! Channels, opcodes and refusal codes of frames.

/// The channel a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// The link itself: handshake, acknowledgements, keep-alive. Unsequenced.
    Link = 0,
    /// Single accesses of 1 to 4096 bytes to a mapping.
    Crma = 1,
    /// Chunks of a bulk transfer.
    Rdma = 2,
    /// Messages and byte streams between two queue pairs.
    QPair = 3,
}

/// The operation a frame requests or reports. `docs/reference/wire.md` lists the fields each opcode uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Link: requests a link from the other side.
    Hello = 1,
    /// Link: answers [`Opcode::Hello`] with the number of the new link.
    Welcome = 2,
    /// Link: the sender has no link of this number, or no longer has it.
    Reset = 3,
    /// Link: all frames before `ack` have arrived.
    Ack = 4,
    /// Link: like `Ack`, and requests a replay of the missing frames.
    Nak = 5,
    /// Link: requests a [`Opcode::Pong`] at once.
    Ping = 6,
    /// Link: answers a [`Opcode::Ping`].
    Pong = 7,
    /// Link: the donor stops sharing a grant; repeated until an [`Opcode::Unmap`] has come.
    Revoked = 8,
    /// Access: requests bytes of a grant.
    Read = 16,
    /// Access: carries the requested bytes.
    Data = 17,
    /// Access: carries bytes into a grant.
    Write = 18,
    /// Access: reports that this write and all requests before it are finished.
    Done = 19,
    /// Access: the request was refused; `detail` carries the [`Refusal`].
    Refused = 20,
    /// CRMA: adds to eight bytes of a grant, and requests their previous value.
    FetchAdd = 21,
    /// CRMA: replaces eight bytes of a grant if they equal the expected value, and requests their
    /// previous value.
    CompareSwap = 22,
    /// CRMA: no mapping leads to the grant any more, and no access to it is outstanding.
    Unmap = 23,
    /// QPair: requests a QPair with a service of the other side.
    Connect = 32,
    /// QPair: answers [`Opcode::Connect`] with a new QPair.
    Accept = 33,
    /// QPair: declines [`Opcode::Connect`]; `detail` carries the reason.
    Reject = 34,
    /// QPair: the next bytes of the QPair's stream.
    Segment = 35,
    /// QPair: an in-band credit: how much has been read.
    Credit = 36,
    /// QPair: the sender stops sending, reading, or both; `detail` tells them apart.
    Close = 37,
    /// QPair: the sender has dropped the QPair at once.
    Abort = 38,
    /// QPair: the sender has no credit left, and probes for a lost one.
    Probe = 39,
    /// CRMA: carries bytes into a region where a later `Put` may overwrite them. Unsequenced and
    /// not answered: it may be lost, repeated or late without harm.
    Put = 40,
}

/// The `detail` of an [`Opcode::Reset`] that answers a Hello: every link of the donor is in use. The
/// link named is the caller's proposal.
pub const NO_LINK_FREE: u16 = 1;

/// The reason a donor refused an access: the `detail` of a [`Opcode::Refused`] frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Refusal {
    /// The donor has no grant of this number: it was never made, was released, or its lease
    /// expired.
    UnknownGrant = 1,
    /// The grant exists and has another key.
    WrongKey = 2,
    /// The range is not wholly inside the grant.
    OutOfRange = 3,
    /// The grant is read-only.
    ReadOnly = 4,
    /// The donor cannot reach the memory at the moment.
    Unavailable = 5,
    /// The request is invalid: for example an empty range, or an atomic on an address that is not a
    /// multiple of eight.
    Malformed = 6,
    /// The recipient already uses as many grants on this link as the donor tracks.
    TableFull = 7,
}

impl Channel {
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Link,
            1 => Self::Crma,
            2 => Self::Rdma,
            3 => Self::QPair,
            _ => return None,
        })
    }
}

impl Opcode {
    /// True if the opcode is defined on `channel`.
    #[inline]
    pub const fn is_on(self, channel: Channel) -> bool {
        match self as u8 {
            0..16 => matches!(channel, Channel::Link),
            16..21 => matches!(channel, Channel::Crma | Channel::Rdma),
            32..40 => matches!(channel, Channel::QPair),
            _ => matches!(channel, Channel::Crma),
        }
    }

    /// True if frames of this kind take a position in the link's sequence: they are delivered in
    /// order and exactly once.
    #[inline]
    pub const fn is_sequenced(self) -> bool {
        self as u8 >= Self::Read as u8 && !matches!(self, Self::Put)
    }

    /// Returns the opcode with this code, or `None` if this version does not define it.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Reset,
            4 => Self::Ack,
            5 => Self::Nak,
            6 => Self::Ping,
            7 => Self::Pong,
            8 => Self::Revoked,
            16 => Self::Read,
            17 => Self::Data,
            18 => Self::Write,
            19 => Self::Done,
            20 => Self::Refused,
            21 => Self::FetchAdd,
            22 => Self::CompareSwap,
            23 => Self::Unmap,
            32 => Self::Connect,
            33 => Self::Accept,
            34 => Self::Reject,
            35 => Self::Segment,
            36 => Self::Credit,
            37 => Self::Close,
            38 => Self::Abort,
            39 => Self::Probe,
            40 => Self::Put,
            _ => return None,
        })
    }
}

impl Refusal {
    /// Returns the refusal with this code, or `None` if this version does not define it.
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            1 => Self::UnknownGrant,
            2 => Self::WrongKey,
            3 => Self::OutOfRange,
            4 => Self::ReadOnly,
            5 => Self::Unavailable,
            6 => Self::Malformed,
            7 => Self::TableFull,
            _ => return None,
        })
    }

    /// Returns the code as it travels.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_roundtrips() {
        for byte in 0..=u8::MAX {
            assert!(Opcode::from_byte(byte).is_none_or(|opcode| opcode as u8 == byte));
            assert!(Channel::from_byte(byte).is_none_or(|channel| channel as u8 == byte));
        }
        for code in 0..=u16::MAX {
            assert!(Refusal::from_code(code).is_none_or(|refusal| refusal.code() == code));
        }
    }

    #[test]
    fn opcode_is_bound_to_channel() {
        assert!(Opcode::Pong.is_on(Channel::Link) && !Opcode::Pong.is_on(Channel::Crma));
        assert!(Opcode::Read.is_on(Channel::Rdma) && !Opcode::Read.is_on(Channel::Link));
        assert!(Opcode::FetchAdd.is_on(Channel::Crma) && !Opcode::FetchAdd.is_on(Channel::Rdma));
        assert!(Opcode::Segment.is_on(Channel::QPair) && !Opcode::Segment.is_on(Channel::Crma));
        assert!(Opcode::Put.is_on(Channel::Crma) && !Opcode::Put.is_on(Channel::QPair));
    }

    #[test]
    fn link_frames_and_puts_are_unsequenced() {
        assert!(!Opcode::Ack.is_sequenced() && !Opcode::Put.is_sequenced());
        assert!(Opcode::Read.is_sequenced() && Opcode::Segment.is_sequenced());
    }
}
