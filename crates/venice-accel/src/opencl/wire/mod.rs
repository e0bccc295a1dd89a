//! Messages between a recipient and the OpenCL service, in the frame of
//! [service messages](venice_service::wire). `docs/reference/wire.md` describes the bytes.
//!
//! Ids are chosen by the recipient, so that nothing that makes or uses an object waits. Commands are
//! carried out in order; what only the donor can know comes back as a [`Notice`].

mod commands;
mod image;
mod programs;

pub use self::commands::{Argument, Command, CommandKind, ImageShape, Notice, ReplayOrder, Times};
pub use self::programs::{
    AdmitRequest, ArgumentInfo, BinaryKind, BinaryRequest, BuildKind, BuildRequest, BuildResult,
    Description, FetchRequest, Header, ImageFormats, KernelInfo, Loaded, Parameter, PartInfo,
    PartitionRequest, PartitionResult,
};
pub use crate::stream::wire::{ANSWER_BYTES, Blob, INLINE_BYTES, Place, decode, encode};
pub use crate::stream::{Field, Malformed, Reader};

/// Version of the messages; both ends have the same.
pub const VERSION: u16 = 3;

/// Opcodes of requests.
pub mod opcode {
    pub use crate::stream::wire::opcode::*;

    /// Makes a program of what is no source text; payload: [`super::BinaryRequest`], answer:
    /// [`super::Loaded`].
    pub const CREATE_PROGRAM: u16 = 6;
    /// Builds, compiles or links; payload: [`super::BuildRequest`], answer: [`super::BuildResult`].
    pub const BUILD: u16 = 7;
    /// Asks for the binary of a program; payload: id.
    pub const BINARY: u16 = 8;
    /// Divides the device; payload: [`super::PartitionRequest`], answer: [`super::PartitionResult`].
    pub const PARTITION: u16 = 10;
    /// Makes a ticket for a part of the region valid; payload: [`super::AdmitRequest`].
    pub const ADMIT: u16 = 11;
    /// Makes a ticket void; payload: its number.
    pub const REVOKE: u16 = 12;
    /// Fetches bytes from another donor's region; payload: [`super::FetchRequest`]. Answered when
    /// they are here, or with the reason why they are not: an optional text.
    pub const FETCH: u16 = 13;
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
