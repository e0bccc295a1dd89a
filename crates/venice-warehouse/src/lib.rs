//! A warehouse of servers in virtual time, with their whole software stack.
//!
//! The simulator of DIABLO (Tan et al., ASPLOS 2015) in software: each server has cores with a fixed
//! number of cycles an instruction, an operating system whose every operation costs instructions, and a
//! network card with rings; switches have virtual output queues; applications are threads that call
//! the system. It does no I/O and reads no clock: one seed gives one run, on any number of threads.
//!
//! - [`config`]: everything that can be set, as data.
//! - [`warehouse`]: a world of a configuration, which experiments (`venice-experiment`) run.
//! - [`part`]: hosts and switches of one part of the world, and their events.
//! - [`host`]: servers and their operating systems.
//! - [`application`]: programs of servers.
//! - [`topology`]: which switch port leads where.
//! - [`switch`]: buffers, arbitration and timing of one switch.
//! - [`packet`], [`slab`], [`traffic`]: what travels, by number; how large, and how often.
//! - [`journey`]: the time of a request, stage by stage.
//! - [`depths`]: the bytes that wait in a switch, over virtual time.
//! - [`capture`]: the packets of a link, for Wireshark.
//! - [`records`]: what is measured.
#![forbid(unsafe_code)]

pub mod application;
pub mod capture;
pub mod config;
pub mod depths;
mod few;
pub mod host;
pub mod journey;
pub mod packet;
pub mod part;
pub mod records;
pub mod slab;
pub mod switch;
pub mod topology;
pub mod traffic;
pub mod warehouse;
