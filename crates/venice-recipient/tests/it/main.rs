//! Borrowers with a rack in their own process.

mod common;
mod leaving;
mod remote_memory;
mod waiting;
