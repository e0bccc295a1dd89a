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
    /// A channel, or an opcode on that channel, which this version does not define.
    #[error("opcode {opcode} is unknown on channel {channel}")]
    UnknownOpcode {
        /// The channel byte.
        channel: u8,
        /// The opcode byte.
        opcode: u8,
    },
    /// More payload than a frame may carry.
    #[error("payload of {0} bytes is over the limit of {limit}", limit = crate::MAX_PAYLOAD_BYTES)]
    PayloadTooLong(usize),
    /// The buffer handed to [`crate::HeaderRepr::emit`] cannot hold the frame.
    #[error("buffer of {len} bytes cannot hold a frame of {needed}")]
    BufferTooSmall {
        /// Bytes there.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
}
