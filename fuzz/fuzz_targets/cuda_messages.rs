//! Any messages of the CUDA service: none panics or takes much memory, and one that is read is written
//! back alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use venice_accel::cuda::wire::{
    Allocated, Awaited, Command, Description, Elapsed, Field, GlobalRequest, LinkRequest, Linked,
    LoadRequest, Loaded, Notice, OccupancyRequest, OrderedRequest, Told, decode, encode,
};

fn round_trip<'a, T: Field<'a>>(bytes: &'a [u8]) {
    if let Ok(value) = decode::<T>(bytes) {
        assert_eq!(encode(&value), bytes);
    }
}

// The first byte chooses the kind of message.
fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 14 {
        0 => round_trip::<Command<'_>>(bytes),
        1 => round_trip::<Notice>(bytes),
        2 => round_trip::<LoadRequest<'_>>(bytes),
        3 => round_trip::<Loaded>(bytes),
        4 => round_trip::<GlobalRequest<'_>>(bytes),
        5 => round_trip::<Allocated>(bytes),
        6 => round_trip::<Elapsed>(bytes),
        7 => round_trip::<Awaited>(bytes),
        8 => round_trip::<LinkRequest<'_>>(bytes),
        9 => round_trip::<Linked>(bytes),
        10 => round_trip::<OrderedRequest>(bytes),
        11 => round_trip::<OccupancyRequest>(bytes),
        12 => round_trip::<Told>(bytes),
        _ => round_trip::<Description>(bytes),
    }
});
