//! Tests of real hosts, in real confinement.

mod common;
mod hostile_sessions;
mod life;
mod torment;
mod twin;
