//! Tests of real hosts, in real confinement.

mod common;
mod life;
mod torment;
