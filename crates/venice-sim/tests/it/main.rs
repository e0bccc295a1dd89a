//! Simulated racks and control planes, and what their checkers find.

mod common;
mod control;
mod sabotage;
mod seeds;
mod transfers;
mod wireshark;
