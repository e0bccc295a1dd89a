//! The demo, and what it shares with the benchmarks of `venice-lab`.
//!
//! [`demo`] runs an unmodified `redis-server` on borrowed memory beside the same server on local
//! memory and on the kernel's own swap. Everything else here is a tool for that and for benchmarks:
//!
//! - [`rack`]: a rack started as a user would start it, by `venice up` and `venice down`;
//!   [`program`] finds the `venice` binary for it.
//! - [`launch`]: the ways to start a program whose memory is measured; [`child`]: a child process
//!   that does not outlive its guard; [`resident`]: its resident memory.
//! - [`kernel_swap`]: the kernel's swap to a disk, to zram, to a RAM disk and to borrowed memory.
//! - [`pattern`], [`zipf`]: access patterns; [`cpus`]: CPU affinity; [`machine`]: the host's description.
//! - [`progress`], [`report`], [`arguments`]: progress bars, tables, JSON, common arguments.
//! - [`interrupt`], [`scratch`]: every process, cgroup, swap device and directory is owned by a guard
//!   that removes it on success, on error and on Ctrl-C. The next run removes what a killed one left.

pub mod arguments;
pub mod child;
pub mod cpus;
pub mod demo;
pub mod interrupt;
pub mod kernel_swap;
pub mod launch;
pub mod machine;
pub mod pattern;
pub mod program;
pub mod progress;
pub mod rack;
pub mod report;
pub mod resident;
pub mod scratch;
pub mod zipf;
