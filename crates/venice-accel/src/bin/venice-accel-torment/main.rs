//! Program of the crate's tests: lists OpenCL devices; hosts mailboxes, and services of its own.

mod bulk;
mod kernels;

use std::process::ExitCode;

use venice_accel::{mailbox, opencl};
use venice_service::host_main;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("service-host") => host_main(&[mailbox::ENTRY, opencl::ENTRY, bulk::ENTRY]),
        Some("kernel-host") => host_main(&[kernels::ENTRY]),
        Some(opencl::listing::SUBCOMMAND) => opencl::listing::print_devices(),
        Some(_) | None => {
            let listing = opencl::listing::SUBCOMMAND;
            eprintln!("usage: venice-accel-torment service-host | kernel-host | {listing}");
            ExitCode::from(2)
        }
    }
}
