//! The programs that run on borrowed memory: `venice ps` shows them, `venice limit` changes how
//! much one of them keeps here.
//!
//! Each `venice run`, and each program that borrows by the library, has a desk
//! ([`venice_recipient::runs`]): a socket in the run directory, and a thread that tells how the run is
//! and changes its budget. What that of a `venice run` tells comes from the run's shared block
//! ([`paged`]), or from the memory cgroup and the swap device ([`swapped`]). [`registry`] finds the
//! desks.

mod limit;
mod paged;
mod ps;
mod registry;
mod swapped;

use venice_recipient::runs::{About, StatusServer, Watched};

pub use limit::{LimitArgs, execute as limit};
pub use paged::Paged;
pub use ps::{PsArgs, execute as ps};
pub use swapped::Swapped;

use crate::rack::RunDir;
use venice_cli::terminal::remark;

/// The examples of `venice ps`.
pub const HELP_PS: &str = "\
EXAMPLES:
  venice ps
  watch venice ps
  venice ps --json | jq '.[] | {pid, resident_bytes, remote_bytes, fault_p99_us}'

Run is the process id of `venice run`, pid that of the program; of a program that borrows by the
library, in Rust, C or Python, both are its own, and its mode is library. Resident is anonymous
memory that the program's processes have here, of the budget local; remote what lies on the donors,
of borrowed. With the library resident and local are of its arrays together, and all of what is read
and written by offset is remote.
Fault rate and times are of the last five seconds; with --mode swap the rate is of pages read back
by the kernel, and the times are those of the device's requests since the run began. Shown are the
runs of this run directory (VENICE_RUN_DIR).";

/// The examples of `venice limit`.
pub const HELP_LIMIT: &str = "\
EXAMPLES:
  venice limit 4711 --local 256MiB            of the program, or of `venice run`: see `venice ps`
  venice limit 4711 --local 8GiB --no-wait

The budget is for all processes of the run together, and 4MiB at least; over udp some 10MiB of it
are buffers for each process. When it shrinks, pages leave
while the program runs, and the command waits until they have; interrupted, they go on leaving. It
is refused when far memory has no room for them. With --mode window what is mapped stays where it
is: the budget is for what the program maps from then on. Of a program that borrows by the library
it is for all its arrays: where these have budgets of their own, each gets its part, 4MiB at least,
in proportion to what it had.";

/// Opens the desk of a `venice run`. Nobody depends on it: where it cannot be had, `venice ps` does not
/// show the run, and that is said.
pub fn open_desk(about: About, run: impl Watched + 'static) -> Option<StatusServer> {
    let opened =
        RunDir::locate().and_then(|dir| Ok(StatusServer::open(&dir.runs_dir(), about, run)?));
    let refused = |error| remark(format!("venice: `venice ps` will not show this: {error:#}"));
    opened.map_err(refused).ok()
}
