//! Fixtures shared by the tests of several crates. Only tests depend on it.
//!
//! - [`etcd`]: members of etcd that are killed, stopped and started again.
//! - [`guest`]: a Debian-kernel guest under QEMU, for kernel features that the machine lacks.
//! - [`identity`]: one authority for all racks of a process, and certificates of it.
//! - [`network`]: network namespaces joined by a bridge, one for each node.
//! - [`tables`]: all tables of a Monitor Node as one value.
//! - [`libraries`]: the shared libraries, built beside the test.
//! - [`process`], [`random`], [`wait`]: child processes that end with the test, seeded random numbers,
//!   waits with a limit.
//! - [`seeds`]: the share of a test's seeds that one run takes.
//! - [`own_test`]: the test binary itself, started again for one test.
//!
//! Each of the first five is a feature.
#![forbid(unsafe_code)]

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "guest")]
pub mod guest;
#[cfg(feature = "identity")]
pub mod identity;
pub mod libraries;
#[cfg(feature = "network")]
pub mod network;
pub mod own_test;
pub mod process;
pub mod random;
pub mod seeds;
#[cfg(feature = "tables")]
pub mod tables;
pub mod wait;
