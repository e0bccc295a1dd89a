//! Messages between a recipient and the CUDA service, in the frame of
//! [service messages](venice_service::wire). `docs/reference/wire.md` describes the bytes.
//!
//! Ids of streams, events and modules are chosen by the recipient; addresses of memory and numbers of
//! functions are the donor's. The stream 0 is the default one.

use crate::stream::code::messages;
pub use crate::stream::wire::{ANSWER_BYTES, Blob, INLINE_BYTES, Place, decode, encode};
pub use crate::stream::{Field, Malformed, Reader};

/// Version of the messages; both ends have the same.
pub const VERSION: u16 = 1;

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
}

messages! {
    /// What the host says of its device.
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
        /// PTX, cubin or fat binary.
        pub image: Blob<'a>,
    }

    /// A loaded module.
    pub struct Loaded {
        /// Code of the loading.
        pub status: i32,
        /// Its functions.
        pub functions: Vec<FunctionInfo>,
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
            /// Where they go.
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
