//! Messages between a recipient and the OpenCL service, in the frame of
//! [service messages](venice_service::wire). `docs/reference/wire.md` describes the bytes.
//!
//! Ids are chosen by the recipient, so that nothing that makes or uses an object waits. Commands are
//! carried out in order; what only the donor can know comes back as a [`Notice`].

mod code;
mod commands;
mod image;
mod programs;

pub use self::code::{Field, Malformed, Reader};
pub use self::commands::{Argument, Blob, Command, CommandKind, ImageShape, Notice, Place, Times};
pub use self::programs::{
    AdmitRequest, ArgumentInfo, BinaryKind, BinaryRequest, BuildKind, BuildRequest, BuildResult,
    Description, FetchRequest, Header, ImageFormats, KernelInfo, Loaded, Parameter, PartInfo,
    PartitionRequest, PartitionResult,
};

/// Version of the messages; both ends have the same.
pub const VERSION: u16 = 2;
/// Longest data in a command or a notice, in bytes; longer ones lie in the region.
pub const INLINE_BYTES: usize = 16 << 10;
/// Longest part of an answer that a payload carries; a longer answer lies in the region.
pub const ANSWER_BYTES: usize = 48 << 10;

/// Opcodes of requests.
pub mod opcode {
    /// Asks for the [`super::Description`]; payload: version.
    pub const DESCRIBE: u16 = 1;
    /// Carries out [`super::Command`]s; answered at once.
    pub const SUBMIT: u16 = 2;
    /// Asks for [`super::Notice`]s; answered when there are some.
    pub const POLL: u16 = 3;
    /// Reserves bytes of the region; payload: bytes. Answer: offset.
    pub const RESERVE: u16 = 4;
    /// Gives a reserved range back; payload: offset.
    pub const GIVE_BACK: u16 = 5;
    /// Makes a program of what is no source text; payload: [`super::BinaryRequest`], answer:
    /// [`super::Loaded`].
    pub const CREATE_PROGRAM: u16 = 6;
    /// Builds, compiles or links; payload: [`super::BuildRequest`], answer: [`super::BuildResult`].
    pub const BUILD: u16 = 7;
    /// Asks for the binary of a program; payload: id.
    pub const BINARY: u16 = 8;
    /// Answered once everything before it has been given to the driver.
    pub const SYNC: u16 = 9;
    /// Divides the device; payload: [`super::PartitionRequest`], answer: [`super::PartitionResult`].
    pub const PARTITION: u16 = 10;
    /// Makes a ticket for a part of the region valid; payload: [`super::AdmitRequest`].
    pub const ADMIT: u16 = 11;
    /// Makes a ticket void; payload: its number.
    pub const REVOKE: u16 = 12;
    /// Fetches bytes from another donor's region; payload: [`super::FetchRequest`]. Answered when
    /// they are here, or with the reason why they are not: an optional text.
    pub const FETCH: u16 = 13;
    /// Asks for two words of the region in which this recipient counts the bytes that it stores there
    /// and loads from there. Answer: offset.
    pub const COUNT: u16 = 14;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_survives_coding() {
        let launch = CommandKind::Launch {
            kernel: 7,
            dimensions: 2,
            offset: None,
            global: [64, 32, 1],
            local: Some([8, 8, 1]),
        };
        let command = Command { queue: 3, event: 9, waits: vec![4, 5], kind: launch };
        let bytes = encode(&command);
        assert_eq!(decode::<Command<'_>>(&bytes), Ok(command));
        assert!((0..bytes.len()).all(|len| decode::<Command<'_>>(&bytes[..len]).is_err()));
    }

    #[test]
    fn long_counts_allocate_little() {
        let mut bytes = Vec::new();
        u32::MAX.put(&mut bytes);
        assert_eq!(decode::<Vec<u64>>(&bytes), Err(Malformed));
    }
}
