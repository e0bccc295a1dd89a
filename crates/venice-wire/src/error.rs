//! What can be wrong with a frame.

/// Why bytes are not a frame, or a header cannot be written as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than a header, or than the header promises.
    #[error("frame of {len} bytes is cut short: {needed} expected")]
    Truncated {
        /// Bytes there.
        len: usize,
        /// Bytes there should be.
        needed: usize,
    },
    /// Bytes after the end the header gives.
    #[error("frame of {len} bytes runs past its end at {needed}")]
    TrailingBytes {
        /// Bytes there.
        len: usize,
        /// Bytes there should be.
        needed: usize,
    },
    /// The first two bytes are not Venice's.
    #[error("not a Venice frame (magic {0:#06x})")]
    BadMagic(u16),
    /// A format this build does not speak.
    #[error("frame of version {0}, this build speaks version {speaks}", speaks = crate::VERSION)]
    UnsupportedVersion(u8),
    /// The checksum does not fit the bytes: damage on the way.
    #[error("checksum mismatch")]
    BadChecksum,
    /// The frame says that it carries no checksum, and came by a port that asks for one.
    #[error("the frame carries no checksum")]
    Unchecked,
    /// A channel, or an opcode on that channel, which this version does not define.
    #[error("opcode {opcode} is unknown on channel {channel}")]
    UnknownOpcode {
        /// The channel byte.
        channel: u8,
        /// The opcode byte.
        opcode: u8,
    },
    /// A field of a sealed datagram's header that this version does not define.
    #[error("the header of a sealed datagram makes no sense")]
    BadSealedHeader,
    /// More payload than a frame may carry.
    #[error("payload of {0} bytes is over the limit of {limit}", limit = crate::MAX_PAYLOAD_BYTES)]
    PayloadTooLong(usize),
    /// A source route longer than its limit, or that is further on than it is long.
    #[error("source route of {len} hops, {next} of them done, makes no sense")]
    BadRoute {
        /// Hops.
        len: u8,
        /// Hops done.
        next: u8,
    },
    /// A virtual channel that no link has.
    #[error("virtual channel {0} does not exist")]
    BadVirtualChannel(u8),
    /// A kind of hop datagram which this version does not define.
    #[error("hop datagram of unknown kind {0}")]
    UnknownHopKind(u8),
    /// The buffer handed to [`crate::HeaderRepr::emit`] cannot hold the frame.
    #[error("buffer of {len} bytes cannot hold a frame of {needed}")]
    BufferTooSmall {
        /// Bytes there.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
}
