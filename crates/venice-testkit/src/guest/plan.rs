//! Configuration of a guest.

use std::time::Duration;

/// Kernel of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The newest of Debian for this machine's release.
    OfRelease,
    /// A newer one, Linux 6.13 at least.
    Newer,
}

/// Configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestPlan {
    /// Name of its console's file: `target/guest/NAME.console`.
    pub name: &'static str,
    /// Its kernel.
    pub kernel: Kernel,
    /// Its memory, in MiB. Files written in it live there too.
    pub memory_mib: u32,
    /// Its processors. Each is a thread of QEMU.
    pub processors: u32,
    /// Kernel modules loaded once it is up.
    pub modules: &'static [&'static str],
    /// Further arguments for QEMU: devices, and options of the machine they need.
    pub devices: &'static [&'static str],
    /// A shell script run once the modules are there; it must succeed.
    pub set_up: &'static str,
    /// Time limit of the boot: five seconds on an idle machine.
    pub boot_limit: Duration,
}

impl GuestPlan {
    /// A guest of 1 GiB and one processor, with the release's kernel and without further devices.
    pub const fn new(name: &'static str, modules: &'static [&'static str]) -> Self {
        Self {
            name,
            kernel: Kernel::OfRelease,
            memory_mib: 1024,
            processors: 1,
            modules,
            devices: &[],
            set_up: "true",
            boot_limit: Duration::from_secs(120),
        }
    }
}
