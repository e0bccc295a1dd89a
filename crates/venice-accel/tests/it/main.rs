//! Tests of remote accelerators with real hosts.

mod common;
mod mailbox;
mod region;
