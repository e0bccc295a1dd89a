//! Messages between a recipient and the CUDA service, in the frame of
//! [service messages](venice_service::wire). `docs/reference/wire.md` describes the bytes.
//!
//! Ids of streams, events and modules are chosen by the recipient; addresses of memory and numbers of
//! functions are the donor's. The stream 0 is the default one.

use crate::stream::code::messages;
pub use crate::stream::wire::{ANSWER_BYTES, Blob, INLINE_BYTES, Place, decode, encode};
pub use crate::stream::{Field, Malformed, Reader};

/// Version of the messages; both ends have the same.
pub const VERSION: u16 = 3;

/// Launch attributes whose values are numbers and addresses of the device: they mean the same at the
/// donor.
pub const CARRIED_ATTRIBUTES: [u32; 10] = [1, 2, 4, 5, 6, 8, 9, 10, 11, 14];
/// Launch attribute that has no effect.
pub const IGNORED_ATTRIBUTE: u32 = 0;

/// Opcodes of requests.
pub mod opcode {
    pub use crate::stream::wire::opcode::*;

    /// Loads a module; payload: [`super::LoadRequest`], answer: [`super::Loaded`].
    pub const LOAD: u16 = 16;
    /// Allocates memory; payload: bytes, answer: [`super::Allocated`].
    pub const ALLOCATE: u16 = 17;
    /// Answered once a stream, an event or everything has ended; payload: [`super::Awaited`],
    /// answer: code.
    pub const WAIT: u16 = 18;
    /// Asks whether a stream or an event has ended; payload: [`super::Awaited`], answer: code.
    pub const QUERY: u16 = 19;
    /// Asks for a global variable; payload: [`super::GlobalRequest`], answer: [`super::Allocated`].
    pub const GLOBAL: u16 = 20;
    /// Asks for the time between two events; payload: their ids, answer: [`super::Elapsed`].
    pub const ELAPSED: u16 = 21;
    /// Asks for the free bytes of the device. Answer: bytes.
    pub const FREE_BYTES: u16 = 22;
    /// Links images; payload: [`super::LinkRequest`], answer: [`super::Linked`].
    pub const LINK: u16 = 23;
    /// Allocates memory in the order of a stream; payload: [`super::OrderedRequest`], answer:
    /// [`super::Allocated`].
    pub const ALLOCATE_ORDERED: u16 = 24;
    /// Asks how many blocks of a kernel fit; payload: [`super::OccupancyRequest`], answer:
    /// [`super::Told`].
    pub const OCCUPANCY: u16 = 25;
    /// Asks for a limit of the context; payload: `CUlimit`, answer: [`super::Told`].
    pub const LIMIT: u16 = 26;
}

messages! {
    /// Description of the host's device.
    pub struct Description {
        /// Name.
        pub name: String,
        /// UUID.
        pub uuid: [u8; 16],
        /// Granted memory in bytes.
        pub bytes: u64,
        /// Version of the driver API, as `cuDriverGetVersion` has it.
        pub version: i32,
        /// Address on the PCI bus; empty: none.
        pub pci: String,
        /// `CUdevice_attribute`s and their values.
        pub attributes: Vec<Attribute>,
        /// Size of the region in bytes.
        pub region_bytes: u64,
        /// Its UDP port.
        pub region_port: Option<u16>,
    }

    /// An attribute of a device or a function.
    pub struct Attribute {
        /// Its number in the API.
        pub name: i32,
        /// Its value.
        pub value: i32,
    }

    /// A module to load.
    pub struct LoadRequest<'a> {
        /// Id.
        pub id: u64,
        /// Options of the compiler.
        pub options: CompilerOptions,
        /// PTX, cubin or fat binary.
        pub image: Blob<'a>,
    }

    /// Options of the compiler.
    pub struct CompilerOptions {
        /// `CUjit_option`s that are numbers, and their values.
        pub values: Vec<Attribute>,
        /// Longest texts for the program and about errors, in bytes.
        pub log_bytes: [u32; 2],
    }

    /// Log of the compiler.
    pub struct Logs {
        /// Text for the program.
        pub info: String,
        /// Text about errors.
        pub errors: String,
        /// Milliseconds that it took: the bits of a float.
        pub ms: u32,
    }

    /// A loaded module.
    pub struct Loaded {
        /// Code of the loading.
        pub status: i32,
        /// Its functions.
        pub functions: Vec<FunctionInfo>,
        /// Log of the compiler.
        pub logs: Logs,
    }

    /// Images to link.
    pub struct LinkRequest<'a> {
        /// Options of the compiler.
        pub options: CompilerOptions,
        /// Kind, name and length of each image.
        pub images: Vec<LinkedImage<'a>>,
        /// The images, one behind the other.
        pub bytes: Blob<'a>,
    }

    /// An image to link.
    pub struct LinkedImage<'a> {
        /// `CUjitInputType`.
        pub kind: i32,
        /// Name in messages.
        pub name: &'a str,
        /// Options of its own.
        pub values: Vec<Attribute>,
        /// Length in bytes.
        pub bytes: u64,
    }

    /// A linked image.
    pub struct Linked {
        /// Code of the linking.
        pub status: i32,
        /// The cubin.
        pub cubin: Vec<u8>,
        /// Log of the compiler.
        pub logs: Logs,
    }

    /// Memory to allocate in the order of a stream.
    pub struct OrderedRequest {
        /// Length in bytes.
        pub bytes: u64,
        /// Stream.
        pub stream: u64,
    }

    /// Blocks of a kernel that fit.
    pub enum OccupancyRequest {
        /// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`.
        Blocks = 1 {
            /// Number of the function.
            function: u64,
            /// Threads of a block.
            threads: i32,
            /// Bytes of shared memory.
            shared: u64,
            /// Flags.
            flags: u32,
        },
        /// `cuOccupancyAvailableDynamicSMemPerBlock`.
        Shared = 2 {
            /// Number of the function.
            function: u64,
            /// Blocks on a multiprocessor.
            blocks: i32,
            /// Threads of a block.
            threads: i32,
        },
    }

    /// A number that the driver tells.
    pub struct Told {
        /// Code of the call.
        pub status: i32,
        /// The number.
        pub value: u64,
    }

    /// A launch attribute.
    pub struct LaunchAttribute {
        /// `CUlaunchAttributeID`.
        pub name: u32,
        /// `CUlaunchAttributeValue`.
        pub value: [u8; 64],
    }

    /// Rows in the device's memory.
    pub struct Rows {
        /// Address of the first one.
        pub at: u64,
        /// Distance between them in bytes.
        pub pitch: u64,
    }

    /// A kernel of a module.
    pub struct FunctionInfo {
        /// Name.
        pub name: String,
        /// Number for launches.
        pub number: u64,
        /// Offset and length of each parameter.
        pub parameters: Vec<Place>,
        /// `CUfunction_attribute`s and their values.
        pub attributes: Vec<Attribute>,
    }

    /// Memory.
    pub struct Allocated {
        /// Code of the call.
        pub status: i32,
        /// Its address at the donor.
        pub address: u64,
        /// Its length.
        pub bytes: u64,
    }

    /// A global variable to find.
    pub struct GlobalRequest<'a> {
        /// Module.
        pub module: u64,
        /// Name.
        pub name: &'a str,
    }

    /// Time between two events.
    pub struct Elapsed {
        /// Code of the call.
        pub status: i32,
        /// Milliseconds: the bits of a float.
        pub ms: u32,
    }

    /// Something that ends.
    pub enum Awaited {
        /// All commands of a stream so far.
        Stream = 1 {
            /// Its id.
            id: u64,
        },
        /// The last recording of an event.
        Event = 2 {
            /// Its id.
            id: u64,
        },
        /// All commands.
        Everything = 3 {},
    }

    /// A command: the function of the driver API of that name. Nothing is answered; an error comes
    /// with the next answer to a wait.
    pub enum Command<'a> {
        /// Releases a stream, an event or a module.
        Release = 1 {
            /// Its id.
            id: u64,
        },
        /// Makes a stream.
        CreateStream = 2 {
            /// Id.
            id: u64,
            /// `CUstream_flags`.
            flags: u32,
            /// Priority.
            priority: i32,
        },
        /// Makes an event.
        CreateEvent = 3 {
            /// Id.
            id: u64,
            /// `CUevent_flags`.
            flags: u32,
        },
        /// Records an event.
        Record = 4 {
            /// Event.
            event: u64,
            /// Stream.
            stream: u64,
        },
        /// Has a stream wait for an event.
        WaitEvent = 5 {
            /// Stream.
            stream: u64,
            /// Event.
            event: u64,
        },
        /// Launches a kernel.
        Launch = 6 {
            /// Number of the function.
            function: u64,
            /// Blocks.
            grid: [u32; 3],
            /// Threads of a block.
            block: [u32; 3],
            /// Bytes of shared memory.
            shared: u32,
            /// Stream.
            stream: u64,
            /// The parameters, at their offsets.
            parameters: &'a [u8],
        },
        /// Stores bytes in the device's memory.
        Write = 7 {
            /// Stream.
            stream: u64,
            /// Address.
            to: u64,
            /// The bytes.
            data: &'a [u8],
        },
        /// Copies bytes of the region to the device.
        WriteFrom = 8 {
            /// Stream.
            stream: u64,
            /// Address.
            to: u64,
            /// The bytes.
            place: Place,
            /// Number in the notice of the end.
            done: u64,
        },
        /// Copies bytes of the device to the region.
        Read = 9 {
            /// Stream.
            stream: u64,
            /// Address.
            from: u64,
            /// Destination.
            place: Place,
            /// Number in the notice of the end.
            done: u64,
        },
        /// Copies bytes within the device.
        Copy = 10 {
            /// Stream.
            stream: u64,
            /// Target.
            to: u64,
            /// Source.
            from: u64,
            /// Length.
            bytes: u64,
        },
        /// Fills memory with a value.
        Fill = 11 {
            /// Stream.
            stream: u64,
            /// Address.
            to: u64,
            /// Bytes of the value: 1, 2 or 4.
            width: u32,
            /// The value.
            value: u32,
            /// Values to store.
            count: u64,
        },
        /// Frees memory.
        Free = 12 {
            /// Its address.
            address: u64,
        },
        /// Launches a kernel with attributes.
        LaunchWith = 13 {
            /// Number of the function.
            function: u64,
            /// Blocks.
            grid: [u32; 3],
            /// Threads of a block.
            block: [u32; 3],
            /// Bytes of shared memory.
            shared: u32,
            /// Stream.
            stream: u64,
            /// The attributes.
            attributes: Vec<LaunchAttribute>,
            /// The parameters, at their offsets.
            parameters: &'a [u8],
        },
        /// Copies bytes of the region to rows of the device.
        WriteRows = 14 {
            /// Stream.
            stream: u64,
            /// Rows.
            to: Rows,
            /// Bytes of a row.
            width: u64,
            /// The bytes: rows without gaps.
            place: Place,
            /// Number in the notice of the end.
            done: u64,
        },
        /// Copies rows of the device to the region.
        ReadRows = 15 {
            /// Stream.
            stream: u64,
            /// Rows.
            from: Rows,
            /// Bytes of a row.
            width: u64,
            /// Destination, without gaps.
            place: Place,
            /// Number in the notice of the end.
            done: u64,
        },
        /// Copies rows within the device.
        CopyRows = 16 {
            /// Stream.
            stream: u64,
            /// Target.
            to: Rows,
            /// Source.
            from: Rows,
            /// Bytes of a row.
            width: u64,
            /// Number of rows.
            rows: u64,
        },
        /// Frees memory in the order of a stream.
        FreeOrdered = 17 {
            /// Stream.
            stream: u64,
            /// Its address.
            address: u64,
        },
        /// Sets an attribute of a function.
        SetAttribute = 18 {
            /// Number of the function.
            function: u64,
            /// `CUfunction_attribute`.
            name: i32,
            /// Its value.
            value: i32,
        },
        /// Sets a limit of the context.
        SetLimit = 19 {
            /// `CUlimit`.
            limit: i32,
            /// Its value.
            value: u64,
        },
        /// Has a stream tell that it got there, and wait for [`Command::Open`].
        Gate = 20 {
            /// Stream.
            stream: u64,
            /// Number of the gate.
            gate: u64,
        },
        /// Lets a stream pass.
        Open = 21 {
            /// Number of the gate.
            gate: u64,
        },
        /// Keeps commands for repetition: launches, copies within the device and fills.
        Define = 22 {
            /// Id of the sequence.
            sequence: u64,
            /// True if former commands of this id are forgotten; else these follow them.
            is_first: bool,
            /// The commands, one behind the other.
            commands: &'a [u8],
        },
        /// Carries out a sequence.
        Replay = 23 {
            /// Id of the sequence.
            sequence: u64,
            /// Stream, in the place of those in the commands.
            stream: u64,
        },
    }

    /// What the host tells without being asked.
    pub enum Notice {
        /// A copy from or to the region has ended.
        Done = 1 {
            /// Its number.
            done: u64,
            /// Its code, or that of an earlier command.
            status: i32,
        },
        /// A stream has got to a gate.
        Reached = 2 {
            /// Number of the gate.
            gate: u64,
            /// Code of a gate that nothing gets to.
            status: i32,
        },
    }
}

impl Command<'_> {
    /// Puts a command that sequences have into another stream; false: they do not have it.
    pub fn put_into(&mut self, other: u64) -> bool {
        match self {
            Self::Launch { stream, .. }
            | Self::LaunchWith { stream, .. }
            | Self::Copy { stream, .. }
            | Self::CopyRows { stream, .. }
            | Self::Fill { stream, .. } => {
                *stream = other;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_survives_coding() {
        let command = Command::Launch {
            function: 7,
            grid: [64, 1, 1],
            block: [256, 1, 1],
            shared: 0,
            stream: 3,
            parameters: &[1, 2, 3, 4],
        };
        let bytes = encode(&command);
        assert_eq!(decode::<Command<'_>>(&bytes), Ok(command));
        assert!((0..bytes.len()).all(|len| decode::<Command<'_>>(&bytes[..len]).is_err()));
    }
}
