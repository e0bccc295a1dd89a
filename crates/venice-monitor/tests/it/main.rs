//! A Monitor Node among agents, over loopback.

mod deaths;
mod kit;
mod lending;
mod mark;
mod names;
mod several;
mod wire;

/// Lets the system choose.
const ANY_PORT: &str = "127.0.0.1:0";
