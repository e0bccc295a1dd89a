//! The kernel's own paging, to measure Venice against: a memory cgroup that holds a program to a
//! local budget ([`::venice_swap::cgroup`]), and a device for what does not fit: a file on the local disk
//! ([`swap_file`]), compressed memory ([`zram`]), a RAM disk ([`ram_disk`]), or memory behind FUSE and a loop device
//! ([`fuse_loop`]), which is what swapping to remote memory looks like without Venice. And with it ([`venice_swap`]).

pub(crate) mod fuse_loop;
mod locked_servers;
mod loop_device;
pub(crate) mod ram_disk;
pub(crate) mod swap_area;
pub(crate) mod swap_file;
pub(crate) mod venice_swap;
pub(crate) mod zram;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::swap_file::SwapFile;

    fn swaps() -> String {
        std::fs::read_to_string("/proc/swaps").unwrap()
    }

    #[test]
    fn a_swap_file_comes_and_goes() {
        let folder = Path::new("/var/tmp");
        let name = format!("venice-swap-{}", std::process::id());
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
}
