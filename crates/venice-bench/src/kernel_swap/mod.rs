//! The kernel's own paging, to measure Venice against: a memory cgroup that holds a program to a
//! local budget ([`cgroup`]), and a device for what does not fit: a file on the local disk
//! ([`swap_file`]), compressed memory ([`zram`]), or memory behind FUSE and a loop device
//! ([`fuse_loop`]), which is what swapping to remote memory looks like without Venice.

pub(crate) mod cgroup;
pub(crate) mod fuse_loop;
pub(crate) mod swap_area;
pub(crate) mod swap_file;
pub(crate) mod zram;

/// # Errors
/// When this user may not set up swap, with what to do about it.
pub(crate) fn require_root() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        anyhow::bail!("kernel swap and memory cgroups need root (run this with sudo)");
    }
    Ok(())
}
