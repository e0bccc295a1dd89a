//! The shim: loaded into a program by `venice run` (`LD_PRELOAD`), it starts the pager inside
//! the program's process and puts itself where the C library changes the address space.
//!
//! With `--mode window` there is no pager: what the program maps is placed on the mapped slabs
//! ([`window_calls`]).
//!
//! It does its work before the program's `main` and its libraries' later calls; what was mapped
//! before stays local. Children inherit it: a forked one gets a pager of its own ([`fork`]), one
//! that `exec`s loads the shim anew.

mod c;
mod descriptors;
mod fork;
mod heap;
mod mappings;
mod patch;
mod signals;
mod start;
mod the_pager;
mod window_calls;

/// Runs when the shim is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start::start;
