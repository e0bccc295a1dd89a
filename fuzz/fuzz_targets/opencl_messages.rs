//! Any messages of the OpenCL service: none panics or takes much memory, and one that is read is
//! written back alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use venice_accel::opencl::wire::{
    AdmitRequest, BinaryRequest, BuildRequest, BuildResult, Command, Description, FetchRequest,
    Field, Notice, PartitionRequest, PartitionResult, decode, encode,
};

fn round_trip<'a, T: Field<'a>>(bytes: &'a [u8]) {
    if let Ok(value) = decode::<T>(bytes) {
        assert_eq!(encode(&value), bytes);
    }
}

// The first byte chooses the kind of message.
fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 10 {
        0 => round_trip::<Command<'_>>(bytes),
        1 => round_trip::<Notice<'_>>(bytes),
        2 => round_trip::<BuildRequest<'_>>(bytes),
        3 => round_trip::<BuildResult>(bytes),
        4 => round_trip::<BinaryRequest<'_>>(bytes),
        5 => round_trip::<PartitionRequest>(bytes),
        6 => round_trip::<PartitionResult>(bytes),
        7 => round_trip::<AdmitRequest>(bytes),
        8 => round_trip::<FetchRequest<'_>>(bytes),
        _ => round_trip::<Description>(bytes),
    }
});
