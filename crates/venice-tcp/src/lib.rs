//! TCP without I/O, clock and payload, for simulated nodes by the million.
//!
//! A [`Connection`] is one end. Segments and the time enter by `handle_*`, segments leave by
//! [`Connection::poll_transmit`], and [`Connection::poll_timeout`] tells when to call again. The
//! payload is a count of bytes. Programs write messages, each with a tag; the tag comes out at the
//! other end when the last byte of the message is there in sequence. All arithmetic is on integers, so
//! a run is the same on every machine.
//!
//! - [`Config`]: the settings, with presets after Linux; not kept in a connection, which is small.
//! - [`Segment`]: what travels.
//! - `sender`: the congestion window, loss recovery, timers (RFC 5681, 6582, 6675, 6937, 8985, 6298).
//! - `congestion`: NewReno (RFC 5681), CUBIC (RFC 9438), DCTCP (RFC 8257).
//! - `receiver`: order, window, delayed acknowledgments, SACK blocks (RFC 9293, 2018).
//! - `connection`: states and the handshake (RFC 9293).
//!
//! `tests/linux` has transfers that Linux 6.18 made under chosen losses and marks; this crate sends the
//! same segments in the same order.
//!
//! Left out: payload, checksums, ports, urgent data, path MTU discovery, window scaling as an option
//! (windows are not scaled), TCP Fast Open, PAWS, keep-alive, autotuned buffers; duplicate SACK and the
//! undo of spurious recoveries (RFC 2883, 3522, 5682), HyStart (RFC 9406), the rescue retransmission of
//! RFC 6675, and of Linux compressed acknowledgments.
#![forbid(unsafe_code)]

mod config;
mod congestion;
mod connection;
mod queue;
mod receiver;
mod rto;
mod segment;
mod sender;
mod sequence;
mod statistics;

pub use config::{
    Basis, Config, ConfigError, Congestion, DelayedAck, Floor, LossDetection, Reduction, Rto,
};
pub use connection::{Connection, Events, Info, State};
pub use segment::{Flags, SackBlocks, Segment, Timestamps, WINDOW_SCALE};
pub use statistics::Statistics;

/// Returns the clock of timestamps: never 0, which means none.
pub(crate) fn stamp(now: u64, config: &Config) -> u32 {
    (now / config.rto.clock_ns) as u32
}
