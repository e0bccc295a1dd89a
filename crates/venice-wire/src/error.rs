//! Errors of parsing and writing frames.

/// The reason bytes are not a frame, or a header cannot be written as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes are fewer than a header, or than the header announces.
    #[error("frame of {len} bytes is truncated: expected {needed}")]
    Truncated {
        /// Bytes present.
        len: usize,
        /// Bytes expected.
        needed: usize,
    },
    /// Bytes follow the end that the header gives.
    #[error("frame of {len} bytes runs past its end at {needed}")]
    TrailingBytes {
        /// Bytes present.
        len: usize,
        /// Bytes expected.
        needed: usize,
    },
    /// The first two bytes are not Venice's.
    #[error("not a Venice frame (magic {0:#06x})")]
    BadMagic(u16),
    /// The format version is not supported by this build.
    #[error("unsupported frame version {0}: expected {speaks}", speaks = crate::VERSION)]
    UnsupportedVersion(u8),
    /// The checksum does not match the bytes: they were damaged in transit.
    #[error("checksum mismatch")]
    BadChecksum,
    /// The frame carries no checksum and came by a port that requires one.
    #[error("the frame carries no checksum")]
    Unchecked,
    /// This version does not define the channel, or the opcode on that channel.
    #[error("unknown opcode {opcode} on channel {channel}")]
    UnknownOpcode {
        /// The channel byte.
        channel: u8,
        /// The opcode byte.
        opcode: u8,
    },
    /// This version does not define a value in the header of a sealed datagram.
    #[error("invalid header of a sealed datagram")]
    BadSealedHeader,
    /// The payload is longer than a frame may carry.
    #[error("payload of {0} bytes is over the limit of {limit}", limit = crate::MAX_PAYLOAD_BYTES)]
    PayloadTooLong(usize),
    /// The source route is longer than its limit, or its position lies past its end.
    #[error("invalid source route: {len} hops, {next} of them done")]
    BadRoute {
        /// Hops of the route.
        len: u8,
        /// Hops already done.
        next: u8,
    },
    /// The virtual channel is not one of a link's channels.
    #[error("unknown virtual channel {0}")]
    BadVirtualChannel(u8),
    /// This version does not define the kind of hop datagram.
    #[error("unknown kind of hop datagram: {0}")]
    UnknownHopKind(u8),
    /// The buffer handed to [`crate::HeaderRepr::emit`] cannot hold the frame.
    #[error("buffer of {len} bytes cannot hold a frame of {needed}")]
    BufferTooSmall {
        /// Bytes present.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
}
