//! A Monitor Node among agents, over loopback.

mod backup;
mod deaths;
mod floods;
mod kit;
mod lending;
mod mark;
mod names;
mod rotation;
mod several;
mod wire;

/// Address with a port that the system chooses.
const ANY_PORT: &str = "127.0.0.1:0";
