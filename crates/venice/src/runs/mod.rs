//! Programs that run on borrowed memory or granted devices: `venice ps` lists them, `venice limit` changes the local
//! budget of one, `venice core` writes its core dump.
//!
//! Each `venice run`, and each program that borrows by the library, has a status socket in the run
//! directory ([`venice_recipient::runs`]) and a thread that answers questions about the run and
//! changes its budget. The answers of a `venice run` come from its shared run block ([`paged`]), or
//! from the memory cgroup and the swap device ([`swapped`]). [`registry`] finds the sockets.

mod core_dump;
mod devices_only;
mod exposition;
mod limit;
mod paged;
mod ps;
mod registry;
mod swapped;

use venice_recipient::runs::{About, StatusServer, Watched};

pub use core_dump::{CoreArgs, execute as core};
pub use devices_only::DevicesOnly;
pub use limit::{LimitArgs, execute as limit};
pub use paged::Paged;
pub use ps::{PsArgs, execute as ps, rows_of_machine};
pub use swapped::Swapped;

use crate::rack::RunDir;
use venice_cli::terminal::remark;

/// Text below `venice ps --help`.
pub const HELP_PS: &str = "\
EXAMPLES:
  venice ps
  watch venice ps
  venice ps --all                             as root: the programs of all users
  venice ps --json | jq '.[] | {pid, resident_bytes, remote_bytes, fault_p99_us}'
  venice ps --all --prometheus > /var/lib/node_exporter/venice.prom.new
                                              metrics, for a collector of text files
  venice ps --json | jq '.[].devices[] | {node, busy_ratio, in_bytes, out_bytes, commands}'

RUN is the process id of `venice run`, PID that of the program. A program that borrows by the library
(Rust, C, Python) has its own id in both, and mode library. LOCAL is the budget, RESIDENT the anonymous
memory that the program's processes have here. UNMANAGED is memory that Venice cannot move and that
stays here whatever LOCAL is; a line below the table gives cause and remedy. REMOTE is what lies at the donors, of BORROWED. REPLICAS is the redundancy of the far memory.
Runs of devices alone have mode devices. The second table has the devices of runs:
BUSY is the share of the last five seconds in which the device had something to do, IN and OUT are the
bytes sent to it and received, COMMANDS what it carried out; a dash: its donor does not know.
With the library, RESIDENT and LOCAL are of all its arrays together, and all memory accessed by offset
is remote. Fault rate and times are of the last five seconds; with --mode swap the rate counts pages
read back by the kernel, and the times are those of the device's requests since the run began. Runs are
listed from the run directory (VENICE_RUN_DIR), or the user's own directory in a rack of another user's.";

/// Text below `venice limit --help`.
pub const HELP_LIMIT: &str = "\
EXAMPLES:
  venice limit 4711 --local 256MiB            pid of the program or its `venice run`
  venice limit 4711 --local 8GiB --no-wait

The budget is for all processes of the run together, and 4MiB at least; over udp about 10MiB of it
are buffers of each process. When it shrinks, pages are evicted while the program runs, and the
command waits until the program is within it; if interrupted, eviction goes on. A budget is refused
when far memory has no room for the pages. With --mode window mapped memory stays in place: the budget
applies to later mappings. For a program that borrows by the library it covers all its arrays; arrays
with budgets of their own get shares in proportion to their old budgets, 4MiB at least.";

/// Text below `venice core --help`.
pub const HELP_CORE: &str = "\
EXAMPLES:
  venice core 4711                            writes core.4711
  venice core 4711 -o /srv/dumps/redis.core && gdb redis-server /srv/dumps/redis.core

The core has all of the program's memory, far pages too, and the registers of all its threads, as
gcore would write them without Venice. Far pages are read from the donors and go to the file only: the
program needs no memory for it, and its budget stays. The program stops meanwhile and goes on afterwards.
FILE is sparse, and as large as the program. PID is of any process of a run, or of `venice run` for its
program. It fails while a debugger is attached. Pages lost with their donors are zeros in FILE: the
command counts them, and ends with exit code 1. See docs/guide/debugging.md.";

/// Opens the status socket of a `venice run`. Nothing depends on it: if that fails, `venice ps`
/// does not list the run, and a remark says so.
pub fn open_desk(about: About, run: impl Watched + 'static) -> Option<StatusServer> {
    let opened =
        RunDir::locate().and_then(|dir| Ok(StatusServer::open(&dir.runs_dir(), about, run)?));
    let refused = |error| remark(format!("venice: `venice ps` will not list this run: {error:#}"));
    opened.map_err(refused).ok()
}
