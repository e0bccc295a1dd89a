//! Remote accelerators: what a donor's host runs, and what a recipient talks to it with.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod cuda;
pub mod mailbox;
pub mod opencl;
pub mod pool;
pub mod region;
pub mod stream;
