//! Messages that every service of command streams has, in the frame of
//! [service messages](venice_service::wire). `docs/reference/wire.md` describes the bytes.

use super::code::{Field, Malformed, Reader, messages};

/// Longest data in a command or a notice, in bytes; longer ones lie in the region.
pub const INLINE_BYTES: usize = 16 << 10;
/// Longest part of an answer that a payload carries; a longer answer lies in the region.
pub const ANSWER_BYTES: usize = 48 << 10;

/// Opcodes of requests that every service has.
pub mod opcode {
    /// Asks for the description of what it offers; payload: version.
    pub const DESCRIBE: u16 = 1;
    /// Carries out commands; answered at once.
    pub const SUBMIT: u16 = 2;
    /// Asks for notices; answered when there are some.
    pub const POLL: u16 = 3;
    /// Reserves bytes of the region; payload: bytes. Answer: offset.
    pub const RESERVE: u16 = 4;
    /// Gives a reserved range back; payload: offset.
    pub const GIVE_BACK: u16 = 5;
    /// Answered once everything before it has been given to the driver.
    pub const SYNC: u16 = 9;
    /// Asks for two words of the region in which this recipient counts the bytes that it stores there
    /// and loads from there. Answer: offset.
    pub const COUNT: u16 = 14;
    /// A request whose payload is too long for a message; payload: [`LongRequest`](super::LongRequest).
    pub const LONG: u16 = 15;
}

messages! {
    /// A place in the region.
    pub struct Place {
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub bytes: u64,
    }

    /// A request with its payload in the region. Commands in it are answered once they are carried
    /// out.
    pub struct LongRequest {
        /// Its opcode; not [`opcode::LONG`].
        pub code: u16,
        /// Its payload.
        pub place: Place,
    }

    /// Bytes in the message, or in the region if they are long.
    pub enum Blob<'a> {
        /// In the message.
        Inline = 0 {
            /// The bytes.
            bytes: &'a [u8],
        },
        /// In the region.
        Region = 1 {
            /// Where.
            place: Place,
        },
    }
}

impl Blob<'_> {
    /// Returns its length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline { bytes } => bytes.len() as u64,
            Self::Region { place } => place.bytes,
        }
    }
}

/// Encodes a value.
pub fn encode<'a>(value: &impl Field<'a>) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    bytes
}

/// Decodes a message that is one value.
///
/// # Errors
/// [`Malformed`], also if anything follows the value.
pub fn decode<'a, T: Field<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    let mut reader = Reader::new(bytes);
    let value = reader.take()?;
    if reader.is_at_end() { Ok(value) } else { Err(Malformed) }
}
