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
//! - [`run`]: a world as experiments drive it; [`outcome`]: its results.
//! - [`experiment`]: experiments as data: layers of configuration, sweeps, figures, findings.
#![forbid(unsafe_code)]

pub mod config;
pub mod experiment;
pub mod outcome;
pub mod packet;
pub mod run;
pub mod switch;
pub mod topology;
