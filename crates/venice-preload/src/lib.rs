//! The shim: loaded into a program by `venice run` (`LD_PRELOAD`). It starts the pager inside the
//! program's process and replaces the C library's calls that change the address space.
//!
//! With `--mode window` there is no pager: the program's mappings are placed on the mapped slabs
//! ([`window_calls`]).
//!
//! It runs before the program's `main` and its libraries' later calls; memory mapped before stays
//! local. Children inherit it: a forked one gets a pager of its own ([`fork`]), one that `exec`s
//! loads the shim anew, whatever its environment ([`exec`]).

mod c;
mod descriptors;
mod early;
mod exec;
mod exit;
mod fork;
mod heap;
mod limits;
mod locks;
mod mappings;
mod namespaces;
mod pager_instance;
mod panics;
mod patch;
mod program_memory;
mod raw_calls;
mod robust;
mod seccomp;
mod sent_files;
mod shared_files;
mod shim_file;
mod signals;
mod start;
mod thread_count;
mod window_calls;

/// Runs when the shim is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start::start;
