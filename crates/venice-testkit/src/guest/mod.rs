//! A guest with Debian's kernel under QEMU, for tests of kernel features that this machine lacks:
//! RDMA (soft RoCE), nbd, ublk, bonding, netem, CXL, nvme-tcp.
//!
//! It needs no KVM, image or installation: `scripts/guest.sh` unpacks the kernel's package. The
//! guest sees this machine's own files, over 9p and read-only, with an overlay in its memory for
//! writes. A test binary built here thus runs there, from the same path, as root and with the same
//! libraries. It boots in about five seconds; everything in it runs ten to thirty times slower than
//! here, and no time measured in it is valid for a real machine.
//!
//! - [`Guest`]: one guest; [`Guest::boot`], [`Guest::run`]. It ends with the process that booted
//!   it, however that ends.
//! - [`GuestPlan`]: its configuration: kernel, memory, processors, modules, further devices.
//! - [`inside`]: runs the body of a test in the guest that all tests of its binary share;
//!   [`is_inside`] is true in the guest.
//!
//! Several machines in one guest are network namespaces joined by veth (`ip netns add`), as `venice
//! up --netns` makes them; soft RoCE needs one device for each (`rdma link add rxe1 type rxe netdev
//! …` inside the namespace). Several guests are several [`Guest`]s: each has its own memory and
//! console, and they share only the files that they read.
//!
//! Further devices are arguments of QEMU in [`GuestPlan::devices`]: a CXL memory expander (`-M
//! q35,cxl=on` with `-device cxl-type3`), NVMe drives, further memory for hot-plug; nbd, bonding
//! and nvme-tcp need modules only.

mod error;
mod inside;
mod plan;
mod qemu;

pub use error::GuestError;
pub use inside::{Room, inside, is_inside};
pub use plan::{GuestPlan, Kernel};
pub use qemu::{Guest, Ran};
