//! A memory cgroup of our own, in either version of the interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Where the memory controller is, and which version of its files it speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// The legacy hierarchy of the memory controller.
    V1(PathBuf),
    /// The unified hierarchy.
    V2(PathBuf),
}

impl Hierarchy {
    /// Finds the memory controller among this system's mounts.
    ///
    /// # Errors
    /// When no mounted hierarchy has one.
    pub(crate) fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mounts")?;
        Self::parse(&mounts, |mount| {
            fs::read_to_string(mount.join("cgroup.controllers"))
                .is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
        })
        .context("no memory cgroup controller is mounted")
    }

    /// Reads `/proc/self/mounts`; `v2_has_memory` tells whether a unified hierarchy has the memory
    /// controller (on a hybrid system it is bound to the legacy one).
    fn parse(mounts: &str, v2_has_memory: impl Fn(&Path) -> bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let mount = PathBuf::from(fields.next()?);
            let kind = fields.next()?;
            let options = fields.next()?;
            match kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => {
                    Some(Self::V1(mount))
                }
                "cgroup2" if v2_has_memory(&mount) => Some(Self::V2(mount)),
                _ => None,
            }
        })
    }

    /// `v1` or `v2`, for reports.
    pub(crate) fn version(&self) -> &'static str {
        match self {
            Self::V1(_) => "v1",
            Self::V2(_) => "v2",
        }
    }
}

/// A memory cgroup that lets its members keep `limit_bytes` resident and swap the rest. Dropping it
/// kills what still runs in it and removes it.
#[derive(Debug)]
pub(crate) struct MemoryCgroup {
    folder: PathBuf,
    hierarchy: Hierarchy,
}

impl MemoryCgroup {
    /// # Errors
    /// Without root, without a memory controller, or when the kernel refuses the limit.
    pub(crate) fn create(name: &str, limit_bytes: u64) -> Result<Self> {
        super::require_root()?;
        let hierarchy = Hierarchy::find()?;
        let (Hierarchy::V1(mount) | Hierarchy::V2(mount)) = &hierarchy;
        if let Hierarchy::V2(mount) = &hierarchy {
            // Fails where an ancestor holds processes; then the limit below fails and says so.
            let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
        }
        let prefix = format!("venice-{name}-");
        for folder in crate::leftovers::of_dead_processes(mount, &prefix) {
            // Dropped at once: it kills the members and removes the group.
            drop(Self { folder, hierarchy: hierarchy.clone() });
        }
        let folder = mount.join(format!("{prefix}{}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("cannot make the memory cgroup {}", folder.display()))?;
        let group = Self { folder, hierarchy };
        group.set_limit(limit_bytes)?;
        Ok(group)
    }

    fn set_limit(&self, limit_bytes: u64) -> Result<()> {
        let file = match self.hierarchy {
            Hierarchy::V1(_) => "memory.limit_in_bytes",
            Hierarchy::V2(_) => "memory.max",
        };
        let path = self.folder.join(file);
        fs::write(&path, limit_bytes.to_string())
            .with_context(|| format!("cannot set the memory limit {}", path.display()))
    }

    /// The file a process writes its id to, to join.
    pub(crate) fn members_file(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// The version of the cgroup interface in use, `v1` or `v2`.
    pub(crate) fn version(&self) -> &'static str {
        self.hierarchy.version()
    }

    /// The most the group had charged at one time, in bytes, where the kernel tells.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let file = match self.hierarchy {
            Hierarchy::V1(_) => "memory.max_usage_in_bytes",
            Hierarchy::V2(_) => "memory.peak",
        };
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    fn remove(&self) -> Result<()> {
        // Members need a moment to leave after they were killed.
        for _ in 0..200 {
            for pid in self.members() {
                let _ = kill_process(pid, Signal::KILL);
            }
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return Ok(()),
            }
        }
        bail!("the cgroup {} could not be removed", self.folder.display())
    }

    fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.members_file()).unwrap_or_default();
        text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("venice: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEGACY: &str = "\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
";
    const UNIFIED: &str = "\
proc /proc proc rw 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0
";

    #[test]
    fn a_hybrid_system_keeps_memory_in_the_legacy_hierarchy() {
        let found = Hierarchy::parse(LEGACY, |_| false);
        assert_eq!(found, Some(Hierarchy::V1("/sys/fs/cgroup/memory".into())));
    }

    #[test]
    fn a_unified_system_is_found() {
        let found = Hierarchy::parse(UNIFIED, |mount| mount == Path::new("/sys/fs/cgroup"));
        assert_eq!(found, Some(Hierarchy::V2("/sys/fs/cgroup".into())));
    }

    #[test]
    fn a_controller_whose_name_contains_memory_is_not_taken_for_it() {
        let mounts = "cgroup /a cgroup rw,name=memory_like 0 0\n";
        assert_eq!(Hierarchy::parse(mounts, |_| false), None);
        assert_eq!(Hierarchy::parse(UNIFIED, |_| false), None);
        assert_eq!(Hierarchy::parse("broken line\n", |_| true), None);
    }
}
