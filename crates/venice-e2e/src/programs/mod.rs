//! Real programs under `venice run`, compared with runs without it.
//!
//! The tests are black-box tests: they start the released binary as a user would, on a rack of
//! their own, and check results, exit codes, messages and `/proc`.
//!
//! - [`Rack`]: a rack with its own run directory, removed with the test.
//! - [`Running`]: a watched process: its output, its time limit, its resident memory.
//! - [`compare`]: one program run without Venice, then with a quarter of its peak local.
//! - [`Busy`]: a program that uses its memory all the time and detects any wrong byte.
//! - [`CProgram`]: a small C program compiled at test time.
//! - [`in_guest`]: shell scripts in a guest, for missing features of this machine.
//! - [`soak`]: programs that check every byte while donors are killed, stalled, drained and short
//!   of memory.
//! - [`redis::Client`], [`memcached::Client`]: clients that can compute every value.
//!
//! A test that the machine may not support calls [`paged_mode_is_missing`] first, which prints the
//! line `SKIPPED: <test>: no <feature>` for the test script.

mod busy;
mod c_program;
pub mod compare;
pub mod in_guest;
pub mod memcached;
mod proc_tree;
mod rack;
pub mod redis;
mod running;
pub mod soak;
pub mod values;

pub use busy::Busy;
pub use c_program::CProgram;
pub use proc_tree::{descendants, is_alive, mapped_slab_bytes, pss_anon_bytes, rss_anon_bytes};
pub use rack::{Port, Rack, kill_now, stop_now, venice_binary};
pub use running::{Listener, Outcome, Running, exit_code};
pub use venice_testkit::wait::wait_for;

/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;

/// True, with a printed line, if the kernel or the user cannot have paged memory. An ordinary user has it
/// by the helper that `VENICE_HELPER_SOCKET` names.
pub fn paged_mode_is_missing(test: &str) -> bool {
    let is_helped = std::env::var_os("VENICE_HELPER_SOCKET").is_some_and(|path| path != "none");
    let missing = if !rustix::process::geteuid().is_root() && !is_helped {
        Some("root or helper")
    } else if !kernel_is_at_least(6, 8) {
        Some("uffd-move")
    } else {
        None
    };
    if let Some(feature) = missing {
        println!("SKIPPED: {test}: no {feature}");
    }
    missing.is_some()
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let have = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    have >= (major, minor)
}
