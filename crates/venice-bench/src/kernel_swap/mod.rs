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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::cgroup::MemoryCgroup;
    use super::swap_file::SwapFile;
    use crate::launch::Launch;

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

    #[test]
    fn a_program_in_the_cgroup_is_in_the_cgroup() {
        let group = match MemoryCgroup::create("unit-test", 64 << 20) {
            Ok(group) => group,
            Err(error) => return eprintln!("SKIPPED: {error:#}"),
        };
        let mut command = Launch::InCgroup(&group).command(Path::new("/bin/cat"));
        let output = command.arg("/proc/self/cgroup").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let name = format!("venice-unit-test-{}", std::process::id());
        assert!(text.contains(&name), "{text}");
        let folder = group.members_file().parent().unwrap().to_owned();
        drop(group);
        assert!(!folder.exists());
    }
}
