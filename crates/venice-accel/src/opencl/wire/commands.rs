//! Commands, and what the donor tells of them.

use crate::stream::code::{Field, Malformed, Reader, messages};
use crate::stream::wire::{Blob, Place};

messages! {
    /// Value of a kernel's argument.
    pub enum Argument<'a> {
        /// A value, as the kernel's code has it.
        Value = 0 {
            /// Its bytes.
            bytes: &'a [u8],
        },
        /// A memory object; 0: none.
        Memory = 1 {
            /// Its id.
            id: u64,
        },
        /// A sampler.
        Sampler = 2 {
            /// Its id.
            id: u64,
        },
        /// Local memory.
        Local = 3 {
            /// Its length in bytes.
            bytes: u64,
        },
    }

    /// Format and shape of an image, as `cl_image_format` and `cl_image_desc`.
    pub struct ImageShape {
        /// Channel order.
        pub order: u32,
        /// Channel data type.
        pub channel: u32,
        /// Kind of image.
        pub kind: u32,
        /// Width, height, depth in pixels.
        pub size: [u64; 3],
        /// Length of an array.
        pub array: u64,
        /// Buffer that the image shows; 0: none.
        pub buffer: u64,
        /// Bytes of a row, of such an image; 0: tight.
        pub row_pitch: u64,
    }

    /// Order of the commands of a command buffer.
    pub enum ReplayOrder {
        /// That of the queue, which has one.
        OfQueue = 0 {},
        /// That of their recording, on a queue without an order.
        AsRecorded = 1 {},
        /// As they wait for each other.
        ByWaits = 2 {},
    }

    /// Times of a command, in nanoseconds of the donor's device.
    pub struct Times {
        /// Queued, submitted, started, ended.
        pub ns: [u64; 4],
    }

    /// A command, for a queue or without one.
    pub struct Command<'a> {
        /// Queue; 0: none.
        pub queue: u64,
        /// Id of its event, of which a notice tells; 0: none.
        pub event: u64,
        /// Events that come before it.
        pub waits: Vec<u64>,
        /// Operation.
        pub kind: CommandKind<'a>,
    }

    /// Operation: the function of OpenCL of that name, with ids for handles. Commands that read
    /// and write memory have tight data: rows and slices follow one another.
    pub enum CommandKind<'a> {
        /// Makes a context.
        CreateContext = 1 {
            /// Id.
            id: u64,
            /// Its parts of the device, beside the device itself.
            parts: Vec<u64>,
        },
        /// Makes a queue.
        CreateQueue = 2 {
            /// Id.
            id: u64,
            /// Context.
            context: u64,
            /// Part of the device; 0: the device itself.
            part: u64,
            /// `cl_command_queue_properties`.
            properties: u64,
        },
        /// Makes a buffer.
        CreateBuffer = 3 {
            /// Id.
            id: u64,
            /// Context.
            context: u64,
            /// `cl_mem_flags` that tell how kernels use it.
            flags: u64,
            /// Length.
            bytes: u64,
            /// Place of its bytes in the region, for devices whose memory that is.
            place: Option<u64>,
            /// Its first contents, unless it has a place.
            data: Option<Blob<'a>>,
        },
        /// Makes a buffer of a part of one.
        CreateSubBuffer = 4 {
            /// Id.
            id: u64,
            /// The whole.
            parent: u64,
            /// Flags, like those of a buffer.
            flags: u64,
            /// First byte in the whole.
            origin: u64,
            /// Length.
            bytes: u64,
        },
        /// Makes an image.
        CreateImage = 5 {
            /// Id.
            id: u64,
            /// Context.
            context: u64,
            /// Flags, like those of a buffer.
            flags: u64,
            /// Format and size.
            shape: ImageShape,
            /// Its first pixels.
            data: Option<Blob<'a>>,
        },
        /// Makes a sampler.
        CreateSampler = 6 {
            /// Id.
            id: u64,
            /// Context.
            context: u64,
            /// True for coordinates from 0 to 1.
            normalized: bool,
            /// `cl_addressing_mode`.
            addressing: u32,
            /// `cl_filter_mode`.
            filter: u32,
        },
        /// Makes a program of source text, for a later build.
        CreateProgram = 7 {
            /// Id.
            id: u64,
            /// Context.
            context: u64,
            /// Source.
            source: Blob<'a>,
        },
        /// Makes a kernel.
        CreateKernel = 8 {
            /// Id.
            id: u64,
            /// Program, built.
            program: u64,
            /// Name in the program.
            name: &'a str,
        },
        /// Makes an event that the recipient completes.
        CreateUserEvent = 9 {
            /// Id.
            id: u64,
            /// Context.
            context: u64,
        },
        /// Completes such an event.
        SetUserEvent = 10 {
            /// Id.
            id: u64,
            /// 0, or an error below 0.
            status: i32,
        },
        /// Forgets an object; commands that use it go on.
        Release = 11 {
            /// Id.
            id: u64,
        },
        /// Sets an argument of a kernel.
        SetArgument = 12 {
            /// Kernel.
            kernel: u64,
            /// Place in its arguments.
            index: u32,
            /// Value.
            value: Argument<'a>,
        },
        /// Makes a command buffer without commands.
        CreateCommandBuffer = 13 {
            /// Id.
            id: u64,
        },
        /// Adds a command to a command buffer.
        Record = 14 {
            /// Command buffer.
            buffer: u64,
            /// Places of the commands of the buffer that come before it, from 0.
            waits: Vec<u32>,
            /// Operation, encoded: a launch, a copy, a fill or a barrier.
            step: &'a [u8],
        },
        /// Runs a kernel.
        Launch = 20 {
            /// Kernel, with its arguments as they are now.
            kernel: u64,
            /// Dimensions, 1 to 3.
            dimensions: u32,
            /// First work item.
            offset: Option<[u64; 3]>,
            /// Work items.
            global: [u64; 3],
            /// Work items of a group.
            local: Option<[u64; 3]>,
        },
        /// Copies a buffer's bytes into the region; without a place, into the notice.
        ReadBuffer = 21 {
            /// Buffer.
            memory: u64,
            /// First byte.
            offset: u64,
            /// Length.
            bytes: u64,
            /// Destination; `None`: the notice, at most [`super::INLINE_BYTES`].
            place: Option<u64>,
        },
        /// Stores bytes in a buffer.
        WriteBuffer = 22 {
            /// Buffer.
            memory: u64,
            /// First byte.
            offset: u64,
            /// The bytes.
            data: Blob<'a>,
        },
        /// Copies a box of a buffer into the region.
        ReadRectangle = 23 {
            /// Buffer.
            memory: u64,
            /// First byte, row and slice.
            origin: [u64; 3],
            /// Bytes, rows and slices.
            region: [u64; 3],
            /// Bytes of a row and of a slice of the buffer.
            pitches: [u64; 2],
            /// Destination.
            place: u64,
        },
        /// Stores a box in a buffer.
        WriteRectangle = 24 {
            /// Buffer.
            memory: u64,
            /// First byte, row and slice.
            origin: [u64; 3],
            /// Bytes, rows and slices.
            region: [u64; 3],
            /// Bytes of a row and of a slice of the buffer.
            pitches: [u64; 2],
            /// Source.
            place: u64,
        },
        /// Copies from a buffer to a buffer.
        CopyBuffer = 25 {
            /// Source.
            from: u64,
            /// Destination.
            to: u64,
            /// First bytes of both.
            offsets: [u64; 2],
            /// Length.
            bytes: u64,
        },
        /// Copies a box from a buffer to a buffer.
        CopyRectangle = 26 {
            /// Source.
            from: u64,
            /// Destination.
            to: u64,
            /// Origin in the source.
            from_origin: [u64; 3],
            /// Origin in the destination.
            to_origin: [u64; 3],
            /// Bytes, rows and slices.
            region: [u64; 3],
            /// Bytes of a row and of a slice of the source.
            from_pitches: [u64; 2],
            /// The same of the destination.
            to_pitches: [u64; 2],
        },
        /// Fills a part of a buffer with a pattern.
        FillBuffer = 27 {
            /// Buffer.
            memory: u64,
            /// Pattern.
            pattern: &'a [u8],
            /// First byte.
            offset: u64,
            /// Length.
            bytes: u64,
        },
        /// Copies a part of an image into the region.
        ReadImage = 28 {
            /// Image.
            memory: u64,
            /// First pixel.
            origin: [u64; 3],
            /// Pixels.
            region: [u64; 3],
            /// Destination.
            place: Place,
        },
        /// Stores pixels in an image.
        WriteImage = 29 {
            /// Image.
            memory: u64,
            /// First pixel.
            origin: [u64; 3],
            /// Pixels.
            region: [u64; 3],
            /// Source.
            place: Place,
        },
        /// Copies from an image to an image.
        CopyImage = 30 {
            /// Source.
            from: u64,
            /// Destination.
            to: u64,
            /// First pixel of the source.
            from_origin: [u64; 3],
            /// First pixel of the destination.
            to_origin: [u64; 3],
            /// Pixels.
            region: [u64; 3],
        },
        /// Copies from an image to a buffer.
        CopyImageToBuffer = 31 {
            /// Source.
            from: u64,
            /// Destination.
            to: u64,
            /// First pixel.
            origin: [u64; 3],
            /// Pixels.
            region: [u64; 3],
            /// First byte.
            offset: u64,
        },
        /// Copies from a buffer to an image.
        CopyBufferToImage = 32 {
            /// Source.
            from: u64,
            /// Destination.
            to: u64,
            /// First byte.
            offset: u64,
            /// First pixel.
            origin: [u64; 3],
            /// Pixels.
            region: [u64; 3],
        },
        /// Fills a part of an image with a colour.
        FillImage = 33 {
            /// Image.
            memory: u64,
            /// Four channels of four bytes.
            color: [u8; 16],
            /// First pixel.
            origin: [u64; 3],
            /// Pixels.
            region: [u64; 3],
        },
        /// Moves memory objects to the device, or away.
        Migrate = 34 {
            /// The objects.
            memory: Vec<u64>,
            /// `cl_mem_migration_flags`.
            flags: u64,
        },
        /// Completes after the events it waits for, or after all commands before it.
        Marker = 35 {},
        /// The same; later commands wait for it.
        Barrier = 36 {},
        /// Lets the device begin.
        Flush = 37 {},
        /// Runs the commands of a command buffer; ends when all of them have.
        Replay = 38 {
            /// Command buffer.
            buffer: u64,
            /// Order of its commands.
            order: ReplayOrder,
            /// True if its last run comes before it.
            alone: bool,
        },
    }

    /// Message of the donor.
    pub enum Notice<'a> {
        /// A command has ended.
        Done = 1 {
            /// Its event.
            event: u64,
            /// 0, or an error below 0.
            status: i32,
            /// Its times, on a queue with profiling.
            times: Option<Times>,
            /// Bytes of a read without a place.
            data: &'a [u8],
        },
        /// A command without an event has failed.
        Failed = 2 {
            /// Its queue; 0: none.
            queue: u64,
            /// Id of the object that could not be made, or 0.
            id: u64,
            /// Error below 0.
            status: i32,
        },
        /// Output of a kernel.
        Output = 3 {
            /// The bytes.
            bytes: &'a [u8],
        },
        /// Nothing uses a released memory object any more: its place is free.
        Freed = 4 {
            /// Id.
            id: u64,
        },
    }
}

impl CommandKind<'_> {
    /// True for commands that a command buffer may have: they bring no bytes along, or few.
    pub fn may_be_recorded(&self) -> bool {
        matches!(
            self,
            Self::Launch { .. }
                | Self::CopyBuffer { .. }
                | Self::CopyRectangle { .. }
                | Self::FillBuffer { .. }
                | Self::CopyImage { .. }
                | Self::CopyImageToBuffer { .. }
                | Self::CopyBufferToImage { .. }
                | Self::FillImage { .. }
                | Self::Barrier {}
        )
    }

    /// True for commands that the device carries out, other than marks in its queues.
    pub fn is_work(&self) -> bool {
        match self {
            Self::Launch { .. }
            | Self::ReadBuffer { .. }
            | Self::WriteBuffer { .. }
            | Self::ReadRectangle { .. }
            | Self::WriteRectangle { .. }
            | Self::CopyBuffer { .. }
            | Self::CopyRectangle { .. }
            | Self::FillBuffer { .. }
            | Self::ReadImage { .. }
            | Self::WriteImage { .. }
            | Self::CopyImage { .. }
            | Self::CopyImageToBuffer { .. }
            | Self::CopyBufferToImage { .. }
            | Self::FillImage { .. }
            | Self::Migrate { .. }
            | Self::Replay { .. } => true,
            Self::CreateContext { .. }
            | Self::CreateQueue { .. }
            | Self::CreateBuffer { .. }
            | Self::CreateSubBuffer { .. }
            | Self::CreateImage { .. }
            | Self::CreateSampler { .. }
            | Self::CreateProgram { .. }
            | Self::CreateKernel { .. }
            | Self::CreateUserEvent { .. }
            | Self::SetUserEvent { .. }
            | Self::Release { .. }
            | Self::SetArgument { .. }
            | Self::CreateCommandBuffer { .. }
            | Self::Record { .. }
            | Self::Marker { .. }
            | Self::Barrier { .. }
            | Self::Flush { .. } => false,
        }
    }
}
