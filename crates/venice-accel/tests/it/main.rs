//! Tests of remote accelerators with real hosts. Those of OpenCL need an ICD loader and PoCL.

mod common;
mod confined;
mod mailbox;
mod pool;
mod region;
mod tasks;
