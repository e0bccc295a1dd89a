//! Tests of real hosts, in real confinement.

mod common;
mod hostile_recipients;
mod life;
mod torment;
mod twin;
