//! libvenice: the implementation of `include/venice.h` over `venice-client`.
//!
//! A handle is a `Box` passed through C. [`arguments`] converts pointers and states what C must
//! guarantee for them; calls return a [`status`]. Nothing here unwinds into C: an `extern "C"`
//! function that panics ends the process.

mod arguments;
mod cache;
mod channel;
mod copies;
mod device;
mod memory;
mod paged;
mod pool;
mod rack;
mod region;
mod service;
mod status;
mod transfer;
