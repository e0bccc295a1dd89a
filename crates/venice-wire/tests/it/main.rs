//! The wire format, from outside the crate.

mod format;
mod network;
