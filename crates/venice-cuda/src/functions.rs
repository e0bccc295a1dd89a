//! The functions of `functions.txt`, as `build.rs` makes them.

include!(concat!(env!("OUT_DIR"), "/functions.rs"));
