//! Real programs under `venice run`. They need `--test-threads=1`: each has a rack to itself, and
//! its limits must not depend on other tests.

mod bench_fault;
mod bench_memory;
mod budgets;
mod captures;
mod coding;
mod copies;
mod databases;
mod drained;
mod eviction;
mod failure;
mod hints;
mod huge_pages;
mod in_thread;
mod installed;
mod integrity;
mod interpreters;
mod large_pages;
mod limits;
mod memory_devices;
mod over_relays;
mod over_udp;
mod over_verbs;
mod own_calls;
mod pairwise;
mod paper_figures;
mod placement;
mod protection;
mod python;
mod replacement;
mod semantics;
mod tools;
mod trends;
mod window;
mod window_moves;
mod write_behind;
