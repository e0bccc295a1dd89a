//! A guest with Debian's kernel under QEMU, for tests that need what this machine's kernel lacks:
//! RDMA (soft RoCE), nbd, ublk, bonding, netem, CXL, nvme-tcp.
//!
//! No KVM, no image, no installation: `scripts/guest.sh` unpacks the kernel's package, and the
//! guest sees this machine's own files, over 9p and read-only, with its memory laid over them for
//! what is written. So a test binary built here runs there, from the same path, as root and with
//! the same libraries. It boots in some five seconds; everything in it runs ten to thirty times
//! slower than here, and no time measured in it says anything about a real machine.
//!
//! - [`Guest`]: one guest; [`Guest::boot`], [`Guest::run`]. It ends with the process that booted
//!   it, however that ends.
//! - [`GuestPlan`]: what it is made of: kernel, memory, processors, modules, further devices.
//! - [`inside`]: runs the body of a test in the guest that all tests of its binary share;
//!   [`is_inside`] tells what both use where they are.
//!
//! Several machines in one guest are network namespaces joined by veth (`ip netns add`), as
//! `venice up --netns` makes them; soft RoCE wants one device for each
//! (`rdma link add rxe1 type rxe netdev …` inside the namespace). Several guests are several
//! [`Guest`]s: each has its own memory and console, and they share nothing but the files read.
//!
//! Devices for later rooms are arguments of QEMU in [`GuestPlan::devices`]: a CXL memory expander
//! (`-M q35,cxl=on` with `-device cxl-type3`), NVMe drives, further memory for hot-plug; nbd,
//! bonding and nvme-tcp need modules only.

mod error;
mod inside;
mod plan;
mod qemu;

pub use error::GuestError;
pub use inside::{Room, inside, is_inside};
pub use plan::{GuestPlan, Kernel};
pub use qemu::{Guest, Ran};
