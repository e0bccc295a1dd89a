//! Venice: memory of the other machines in the rack, for unchanged Linux programs.
//!
//! The one binary. [`cli`] has the commands. `run` runs a program on borrowed memory; `swap` makes
//! the kernel swap to it; `runs` lists such programs. `rack` manages a rack of processes on this
//! machine, `daemon` is the code of such a process. `listing` shows the Monitor Node's tables, `events` what happens, `top` both,
//! `quota` manages quotas, `get` holds memory and devices, `doctor` checks the machine.
#![forbid(unsafe_code)]

mod backup;
mod certificate_text;
mod cli;
mod client_drivers;
mod daemon;
mod doctor;
mod drain;
mod events;
mod forecast;
mod get;
mod granted;
mod grants;
mod host_port;
mod identity;
mod lab;
mod library;
mod listing;
mod mode;
mod name;
mod place;
mod plan;
mod queue;
mod quota;
mod rack;
mod registry;
mod run;
mod runs;
mod session;
mod swap;
mod top;
mod waiting;
mod window;

use std::process::ExitCode;

use venice_accel::{cuda, opencl};

/// Services that this program's hosts know.
const SERVICES: &[venice_service::ServiceEntry] =
    &[venice_service::echo::ENTRY, venice_accel::mailbox::ENTRY, opencl::ENTRY, cuda::ENTRY];

fn main() -> ExitCode {
    // The hidden subcommands of agents come before any thread.
    let word = std::env::args_os().nth(1);
    if word.as_ref().is_some_and(|word| word == "service-host") {
        return venice_service::host_main(SERVICES);
    }
    if word.as_ref().is_some_and(|word| word == opencl::listing::SUBCOMMAND) {
        return opencl::listing::print_devices();
    }
    if word.is_some_and(|word| word == cuda::listing::SUBCOMMAND) {
        return cuda::listing::print_devices();
    }
    std::process::exit(cli::main())
}
