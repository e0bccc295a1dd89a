//! Tests of real hosts, in real confinement.

mod common;
mod hostile_recipients;
mod life;
mod torment;
mod twin;
mod unified_in_guest;
