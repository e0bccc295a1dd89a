//! Tests of remote accelerators with real hosts.

mod common;
mod region;
