//! A warehouse of servers in virtual time, with their whole software stack.
//!
//! The simulator of DIABLO (Tan et al., ASPLOS 2015) in software: each server has cores with a fixed
//! number of cycles an instruction, an operating system whose every operation costs instructions, and a
//! network card with rings; switches have virtual output queues; applications are threads that call
//! the system. It does no I/O and reads no clock: one seed gives one run, on any number of threads.
//!
//! - [`config`]: everything that can be set, as data.
//! - [`topology`]: which switch port leads where.
//! - [`switch`]: buffers, arbitration and timing of one switch.
#![forbid(unsafe_code)]

pub mod config;
pub mod packet;
pub mod switch;
pub mod topology;
