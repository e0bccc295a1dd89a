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
}

/// What a frame asks for or says. Which fields count for which opcode stands in `docs/wire.md`.
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
    /// The request makes no sense: for example an empty range.
    Malformed = 6,
}

impl Channel {
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Link,
            1 => Self::Crma,
            2 => Self::Rdma,
            _ => return None,
        })
    }
}

impl Opcode {
    /// Whether the opcode is defined on `channel`: each belongs either to the link, or to the
    /// channels that carry accesses.
    pub const fn is_on(self, channel: Channel) -> bool {
        matches!(channel, Channel::Link) == ((self as u8) < Self::Read as u8)
    }

    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Reset,
            4 => Self::Ack,
            5 => Self::Nak,
            6 => Self::Ping,
            7 => Self::Pong,
            16 => Self::Read,
            17 => Self::Data,
            18 => Self::Write,
            19 => Self::Done,
            20 => Self::Refused,
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
    fn link_and_access_opcodes_do_not_mix() {
        assert!(Opcode::Pong.is_on(Channel::Link) && !Opcode::Pong.is_on(Channel::Crma));
        assert!(Opcode::Read.is_on(Channel::Rdma) && !Opcode::Read.is_on(Channel::Link));
    }
}
