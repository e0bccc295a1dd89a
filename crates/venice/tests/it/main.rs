//! `venice` as its users start it.

mod bandwidth;
mod bench_monitor;
mod bench_placement;
mod clock_jumps;
mod command_line;
mod common;
mod daemons;
mod devices;
mod drain;
mod forecast;
mod full_disk;
mod identity;
mod namespaces;
mod out_of_memory_in_guest;
mod packaging;
mod partitions;
mod placement;
mod queue;
mod quota;
mod rack_life;
mod several_monitors;
mod simulated_racks;
mod swap;
mod swap_in_guest;
mod tables;
mod window_in_guest;
