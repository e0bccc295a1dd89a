//! The programs that run on borrowed memory: `venice ps` shows them, `venice limit` changes how
//! much one of them keeps here.
//!
//! Each `venice run` has a desk ([`desk`]): a socket in the run directory, and a thread that tells
//! how the run is ([`row`]) and changes its budget. What it tells comes from the run's shared block
//! ([`paged`]), or from the memory cgroup and the swap device ([`swapped`]). [`registry`] finds the
//! desks.

pub mod budget;
mod desk;
mod limit;
mod paged;
mod ps;
mod registry;
mod row;
mod swapped;

pub use desk::{About, Desk};
pub use limit::{LimitArgs, execute as limit};
pub use paged::Paged;
pub use ps::{PsArgs, execute as ps};
pub use swapped::Swapped;

/// The examples of `venice ps`.
pub const HELP_PS: &str = "\
EXAMPLES:
  venice ps
  watch venice ps
  venice ps --json | jq '.[] | {pid, resident_bytes, remote_bytes, fault_p99_us}'

Run is the process id of `venice run`, pid that of the program. Resident is anonymous memory that
the program's processes have here, of the budget local, what `venice run --compress` keeps packed
among it; remote what lies on the donors, of borrowed.
Fault rate and times are of the last five seconds; with --mode swap the rate is of pages read back
by the kernel, and the times are those of the device's requests since the run began. Shown are the
runs of this run directory (VENICE_RUN_DIR); programs that borrow by the library are in `venice
grants`.";

/// The examples of `venice limit`.
pub const HELP_LIMIT: &str = "\
EXAMPLES:
  venice limit 4711 --local 256MiB            of the program, or of `venice run`: see `venice ps`
  venice limit 4711 --local 8GiB --no-wait

The budget is for all processes of the run together, and 4MiB at least; over udp some 10MiB of it
are buffers for each process. When it shrinks, pages leave
while the program runs, and the command waits until they have; interrupted, they go on leaving. It
is refused when far memory has no room for them. With --mode window what is mapped stays where it
is: the budget is for what the program maps from then on.";
