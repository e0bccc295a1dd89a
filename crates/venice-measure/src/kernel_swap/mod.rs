//! The kernel's own paging, as a baseline: a memory cgroup that bounds a program to a local budget
//! ([`::venice_swap::cgroup`]), and a device for the rest. The devices are a file on the local disk
//! ([`swap_file`]), compressed memory ([`zram`]), a RAM disk ([`ram_disk`]), memory behind FUSE and
//! a loop device ([`fuse_loop`]), which is swap to remote memory without Venice, and Venice's own
//! swap ([`venice_swap`]).

pub mod fuse_loop;
mod locked_servers;
mod loop_device;
pub mod ram_disk;
pub mod swap_area;
pub mod swap_file;
mod sweep;
pub mod venice_swap;
pub mod zram;

use std::path::Path;

use ::venice_swap::cgroup::MemoryCgroup;
use anyhow::Result;

pub use sweep::sweep;

/// A device that the kernel swaps to for as long as the value lives.
pub trait SwapDevice {
    /// Returns its block device, or its file.
    fn path(&self) -> &Path;
}

/// Creates a memory cgroup `venice-NAME-PID` whose members keep `local_bytes` resident and have any
/// amount on `device`. Its watch page keeps the kernel from killing them while there is room
/// (`docs/decisions/0058-a-page-that-keeps-the-kernel-looking.md`), the same as under `venice run
/// --mode swap`.
///
/// # Errors
/// Without root or a memory controller.
pub fn group_on(name: &str, local_bytes: u64, device: &impl SwapDevice) -> Result<MemoryCgroup> {
    let mut group = MemoryCgroup::create(name, local_bytes, None)?;
    group.anchor_on(device.path())?;
    Ok(group)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::group_on;
    use super::ram_disk::RamDiskSwap;
    use super::swap_file::SwapFile;

    fn swaps() -> String {
        std::fs::read_to_string("/proc/swaps").unwrap()
    }

    #[test]
    fn swap_file_is_created_and_removed() {
        let folder = Path::new("/var/tmp");
        let name = crate::scratch::name(crate::scratch::SWAP_FILE);
        match SwapFile::create(folder, 8 << 20) {
            Ok(file) => {
                assert!(swaps().contains(&name), "{}", swaps());
                drop(file);
            }
            Err(error) => eprintln!("SKIPPED: {error:#}"),
        }
        assert!(!swaps().contains(&name), "{}", swaps());
        assert!(!folder.join(&name).exists());
    }

    #[test]
    fn group_keeps_its_page_under_reclaim() {
        let name = "group_keeps_its_page_under_reclaim";
        let group = RamDiskSwap::create(8 << 20)
            .and_then(|disk| group_on("page-test", 8 << 20, &disk).map(|group| (disk, group)));
        // The group is dropped first.
        let (_disk, group) = match group {
            Ok(group) => group,
            Err(error) => return eprintln!("SKIPPED: {name}: {error:#}"),
        };
        let mut member = group.command(Path::new("/bin/sleep")).arg("1000").spawn().unwrap();
        let folder = group.members_file().parent().unwrap().to_owned();
        let keeps_a_page =
            crate::interrupt::wait_until("the page", Duration::from_secs(60), || {
                // The kernel gives up on a page that does not leave; it updates the group's
                // statistics every two seconds.
                for (file, what) in [("memory.force_empty", "0"), ("memory.reclaim", "8M")] {
                    let _ = std::fs::write(folder.join(file), what);
                }
                let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap();
                let files = |line: &str| {
                    let (name, bytes) = line.split_once(' ')?;
                    ["cache", "file"].contains(&name).then(|| bytes.parse::<u64>().unwrap())
                };
                Ok((stat.lines().find_map(files).unwrap() >= 4096).then_some(()))
            });
        member.kill().unwrap();
        member.wait().unwrap();
        keeps_a_page.unwrap();
    }
}
