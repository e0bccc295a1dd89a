//! libvenice: what `include/venice.h` declares, over `venice-client`.
//!
//! A handle is a `Box` on its way through C. Pointers are taken over by [`arguments`], which says
//! what C must promise for them; what comes back is a [`status`]. Nothing here unwinds into C: an
//! `extern "C"` function that panics ends the process.

mod arguments;
mod cache;
mod copies;
mod device;
mod memory;
mod paged;
mod rack;
mod status;
