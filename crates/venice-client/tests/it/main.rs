//! The library with a rack in its own process.

mod channels;
#[path = "../../../venice-recipient/tests/it/common/mod.rs"]
mod common;
mod devices;
mod listed;
mod memory;
mod paged;
mod victim_example;
