//! Venice: memory of the other machines in the rack, for unchanged Linux programs.
//!
//! The one binary. [`cli`] has the commands; `run` runs a program on borrowed memory; `swap` has the
//! kernel swap to it; `runs` shows the programs that run so; `rack` keeps a rack of processes on this machine, `daemon` is what such a process does; `listing` shows the
//! Monitor Node's tables, `quota` who may borrow how much; `get` holds memory and devices; `doctor` looks at the machine.
#![forbid(unsafe_code)]

mod admittance;
mod cli;
mod daemon;
mod doctor;
mod drain;
mod forecast;
mod get;
mod host_port;
mod identity;
mod lab;
mod listing;
mod name;
mod own_session;
mod place;
mod queue;
mod quota;
mod rack;
mod registry;
mod run;
mod runs;
mod swap;
mod waiting;
mod window;

fn main() {
    std::process::exit(cli::main());
}
