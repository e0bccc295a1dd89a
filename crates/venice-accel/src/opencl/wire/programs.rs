//! Programs, kernels, and the description of the device.

use crate::stream::code::{Field, Malformed, Reader, messages};
use crate::stream::wire::{Blob, Place};

messages! {
    /// A parameter with its value, as `clGet...Info` returns it.
    pub struct Parameter {
        /// Number of the parameter.
        pub name: u32,
        /// Its value.
        pub value: Vec<u8>,
    }

    /// Supported formats of one kind of image.
    pub struct ImageFormats {
        /// `cl_mem_object_type`.
        pub kind: u32,
        /// `cl_mem_flags` that were asked for.
        pub flags: u64,
        /// Channel order and data type of each.
        pub formats: Vec<[u32; 2]>,
    }

    /// All that a recipient ever asks about a device, in one piece.
    pub struct Description {
        /// Parameters of the device.
        pub device: Vec<Parameter>,
        /// Parameters of its platform.
        pub platform: Vec<Parameter>,
        /// Formats of images.
        pub formats: Vec<ImageFormats>,
        /// Length of the region in bytes.
        pub region_bytes: u64,
        /// UDP port of the region, for recipients on other machines.
        pub region_port: Option<u16>,
        /// Directory at the donor below which files of the recipient lie.
        pub files_dir: String,
        /// True if buffers may lie in the region: the device works on the donor's own memory.
        pub has_placed_buffers: bool,
        /// True if the host can fetch bytes from other donors.
        pub can_fetch: bool,
    }

    /// A ticket for a part of the region.
    pub struct AdmitRequest {
        /// Its number.
        pub number: u64,
        /// The part, within a reserved range.
        pub place: Place,
    }

    /// A part of another donor's region, by a ticket.
    pub struct FetchRequest<'a> {
        /// Number of the ticket.
        pub number: u64,
        /// Address of the region: host and port.
        pub address: &'a str,
        /// Bytes that the ticket opens: whole slabs.
        pub window_bytes: u64,
        /// First byte of the part in there.
        pub start: u64,
        /// Key of accesses.
        pub key: u64,
        /// Key of datagrams; `None`: they are plain.
        pub seal: Option<[u8; 32]>,
        /// Destination, within a reserved range.
        pub place: Place,
    }

    /// Kind of a program that is no source text.
    pub enum BinaryKind {
        /// A binary of the driver.
        Binary = 0 {},
        /// SPIR-V.
        Il = 1 {},
        /// Names of built-in kernels, with semicolons.
        BuiltIn = 2 {},
    }

    /// A program of a binary, of SPIR-V or of built-in kernels.
    pub struct BinaryRequest<'a> {
        /// Id.
        pub id: u64,
        /// Context.
        pub context: u64,
        /// Sort of the bytes.
        pub kind: BinaryKind,
        /// The bytes.
        pub binary: Blob<'a>,
    }

    /// Outcome of the making of such a program.
    pub struct Loaded {
        /// 0, or the driver's error.
        pub status: i32,
        /// `cl_program_binary_type`.
        pub binary_type: u32,
    }

    /// A partition of the device, or of a part of it.
    pub struct PartitionRequest {
        /// Part; 0: the device itself.
        pub part: u64,
        /// `cl_device_partition_property`, with the 0 that ends them.
        pub properties: Vec<u64>,
        /// Ids for the parts that this makes; more are not made.
        pub ids: Vec<u64>,
    }

    /// A part of the device.
    pub struct PartInfo {
        /// Parameters that differ from those of the device.
        pub device: Vec<Parameter>,
    }

    /// Outcome of a partition.
    pub struct PartitionResult {
        /// 0, or the error of the partition.
        pub status: i32,
        /// The parts, which have the first ids of the request.
        pub parts: Vec<PartInfo>,
    }

    /// Step of a build.
    pub enum BuildKind {
        /// `clBuildProgram`.
        Build = 0 {},
        /// `clCompileProgram`.
        Compile = 1 {},
        /// `clLinkProgram`: makes the program.
        Link = 2 {
            /// Context.
            context: u64,
            /// Programs to link.
            inputs: Vec<u64>,
        },
    }

    /// A file that a program includes.
    pub struct Header<'a> {
        /// Absolute path at the recipient.
        pub name: &'a str,
        /// Contents.
        pub text: Blob<'a>,
    }

    /// A build.
    pub struct BuildRequest<'a> {
        /// Program.
        pub id: u64,
        /// Step.
        pub kind: BuildKind,
        /// Options.
        pub options: &'a str,
        /// Programs that a compilation includes, with the names that it includes them by.
        pub headers: Vec<u64>,
        /// Names of these.
        pub names: Vec<String>,
        /// Files of the recipient, by absolute paths.
        pub files: Vec<Header<'a>>,
    }

    /// An argument of a kernel, as `clGetKernelArgInfo` tells it.
    pub struct ArgumentInfo {
        /// `cl_kernel_arg_address_qualifier`.
        pub address: u32,
        /// `cl_kernel_arg_access_qualifier`.
        pub access: u32,
        /// Name of its type.
        pub type_name: String,
        /// `cl_kernel_arg_type_qualifier`.
        pub type_qualifier: u64,
        /// Its name.
        pub name: String,
    }

    /// A kernel of a program.
    pub struct KernelInfo {
        /// Its name.
        pub name: String,
        /// Number of arguments.
        pub argument_count: u32,
        /// Its arguments; none if the driver does not tell.
        pub arguments: Vec<ArgumentInfo>,
        /// Attributes, as text.
        pub attributes: String,
        /// Parameters of `clGetKernelWorkGroupInfo`.
        pub work_group: Vec<Parameter>,
    }

    /// Outcome of a build.
    pub struct BuildResult {
        /// 0, or the error of the build.
        pub status: i32,
        /// Log of the compiler.
        pub log: String,
        /// `cl_program_binary_type`.
        pub binary_type: u32,
        /// Bytes of the program's global variables.
        pub global_bytes: u64,
        /// The kernels, of an executable.
        pub kernels: Vec<KernelInfo>,
    }
}

impl BuildResult {
    /// Returns the result of a build that made nothing.
    pub fn without_program(status: i32) -> Self {
        Self {
            status,
            log: String::new(),
            binary_type: opencl_sys::CL_PROGRAM_BINARY_TYPE_NONE,
            global_bytes: 0,
            kernels: Vec::new(),
        }
    }
}
