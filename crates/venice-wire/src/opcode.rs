//! What a frame asks for or says.

/// The channel a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// The link itself: handshake, acknowledgements, keep-alive. Unsequenced.
    Link = 0,
    /// Single accesses of 1 to 4096 bytes to a window.
    Crma = 1,
    /// Chunks of a bulk transfer.
    Rdma = 2,
    /// Messages and byte streams between two queue pairs.
    QPair = 3,
}

/// What a frame asks for or says. Which fields count for which opcode stands in `docs/reference/wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Link: asks the other side to open a link.
    Hello = 1,
    /// Link: answers [`Opcode::Hello`] with the number of the new link.
    Welcome = 2,
    /// Link: the sender has no such link (any more).
    Reset = 3,
    /// Link: everything before `ack` has arrived.
    Ack = 4,
    /// Link: like `Ack`, and asks for the frames that are missing to be replayed.
    Nak = 5,
    /// Link: asks for a [`Opcode::Pong`] at once.
    Ping = 6,
    /// Link: answers a [`Opcode::Ping`].
    Pong = 7,
    /// Link: the donor stops sharing a grant; repeated until an [`Opcode::Unmap`] has come.
    Revoked = 8,
    /// Access: asks for bytes of a grant.
    Read = 16,
    /// Access: the bytes asked for.
    Data = 17,
    /// Access: carries bytes into a grant.
    Write = 18,
    /// Access: this write and all requests before it are finished.
    Done = 19,
    /// Access: the request was refused; why is in `detail`, a [`Refusal`].
    Refused = 20,
    /// CRMA: adds to eight bytes of a grant, and asks for what was there before.
    FetchAdd = 21,
    /// CRMA: replaces eight bytes of a grant if they are as expected, and asks for what was there
    /// before.
    CompareSwap = 22,
    /// CRMA: no window leads to the grant any more, and no access to it is on its way.
    Unmap = 23,
    /// QPair: asks the other side for a QPair with one of its services.
    Connect = 32,
    /// QPair: answers [`Opcode::Connect`]: here it is.
    Accept = 33,
    /// QPair: answers [`Opcode::Connect`]: no; why is in `detail`.
    Reject = 34,
    /// QPair: the next bytes of the QPair's stream.
    Segment = 35,
    /// QPair: a credit in band: how much has been read.
    Credit = 36,
    /// QPair: the sender sends no more, or reads no more, or both; `detail` says which.
    Close = 37,
    /// QPair: the sender has dropped the QPair at once.
    Abort = 38,
    /// QPair: the sender has no credit left, and asks whether one was lost.
    Probe = 39,
    /// CRMA: carries bytes into a region where a later `Put` may overwrite them. Unsequenced and
    /// not answered: it can be lost, repeated or late without harm.
    Put = 40,
}

/// Why a donor refused an access: the `detail` of a [`Opcode::Refused`] frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Refusal {
    /// The donor has no such grant: never made, released, or its lease ran out.
    UnknownGrant = 1,
    /// The grant is there, the key is not its key.
    WrongKey = 2,
    /// The range is not wholly inside the grant.
    OutOfRange = 3,
    /// The grant may be read only.
    ReadOnly = 4,
    /// The donor cannot reach the memory just now.
    Unavailable = 5,
    /// The request makes no sense: for example an empty range, or an atomic on an address that is
    /// not a multiple of eight.
    Malformed = 6,
    /// The recipient uses as many grants on this link as the donor keeps track of.
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
    /// Whether the opcode is defined on `channel`.
    #[inline]
    pub const fn is_on(self, channel: Channel) -> bool {
        match self as u8 {
            0..16 => matches!(channel, Channel::Link),
            16..21 => matches!(channel, Channel::Crma | Channel::Rdma),
            32..40 => matches!(channel, Channel::QPair),
            _ => matches!(channel, Channel::Crma),
        }
    }

    /// Whether frames of this kind take a position in the link's sequence: they are delivered in
    /// order and exactly once.
    #[inline]
    pub const fn is_sequenced(self) -> bool {
        self as u8 >= Self::Read as u8 && !matches!(self, Self::Put)
    }

    /// The opcode with this code, if this version knows it.
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
    /// The refusal with this code, if this version knows it.
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

    /// The code it travels as.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_comes_back_as_itself() {
        for byte in 0..=u8::MAX {
            assert!(Opcode::from_byte(byte).is_none_or(|opcode| opcode as u8 == byte));
            assert!(Channel::from_byte(byte).is_none_or(|channel| channel as u8 == byte));
        }
        for code in 0..=u16::MAX {
            assert!(Refusal::from_code(code).is_none_or(|refusal| refusal.code() == code));
        }
    }

    #[test]
    fn opcodes_of_different_channels_do_not_mix() {
        assert!(Opcode::Pong.is_on(Channel::Link) && !Opcode::Pong.is_on(Channel::Crma));
        assert!(Opcode::Read.is_on(Channel::Rdma) && !Opcode::Read.is_on(Channel::Link));
        assert!(Opcode::FetchAdd.is_on(Channel::Crma) && !Opcode::FetchAdd.is_on(Channel::Rdma));
        assert!(Opcode::Segment.is_on(Channel::QPair) && !Opcode::Segment.is_on(Channel::Crma));
        assert!(Opcode::Put.is_on(Channel::Crma) && !Opcode::Put.is_on(Channel::QPair));
    }

    #[test]
    fn what_a_link_says_of_itself_and_what_may_be_overwritten_has_no_position() {
        assert!(!Opcode::Ack.is_sequenced() && !Opcode::Put.is_sequenced());
        assert!(Opcode::Read.is_sequenced() && Opcode::Segment.is_sequenced());
    }
}
