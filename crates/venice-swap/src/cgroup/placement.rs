//! The place of a group for a process whose own limits must go on applying: those of its user, of its
//! session, of its service.
//!
//! In the legacy hierarchy that is its own group. In the unified hierarchy a group with processes has no
//! children, and moving a process takes it out of the limits of all controllers: the place is the nearest
//! group above that gives its children memory limits, and no limit may lie between.

use std::fs;
use std::path::{Path, PathBuf};

use super::Hierarchy;
use crate::SwapError;

/// Returns the folder in which to make a group for a process of the group `own`, a path below the mount.
pub(super) fn parent(hierarchy: &Hierarchy, own: &str) -> Result<PathBuf, SwapError> {
    let own = Path::new(own.trim_start_matches('/'));
    let is_outside = own.components().any(|part| part == std::path::Component::ParentDir);
    let (mount, folder) = (hierarchy.mount(), hierarchy.mount().join(own));
    if is_outside || !folder.is_dir() {
        return Err(SwapError::NoSuchGroup { group: folder, mount: mount.to_owned() });
    }
    match hierarchy {
        Hierarchy::V1(_) => Ok(folder),
        Hierarchy::V2(mount) => {
            let mut left = folder.as_path();
            while left != mount {
                if let Some(limit) = limit_of(left) {
                    return Err(SwapError::LimitLeft { limit });
                }
                let Some(above) = left.parent() else { break };
                if gives_memory_limits(above) {
                    return Ok(above.to_owned());
                }
                left = above;
            }
            Ok(mount.clone())
        }
    }
}

fn gives_memory_limits(folder: &Path) -> bool {
    let given = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
    given.split_whitespace().any(|name| name == "memory")
}

/// Returns a file of the group that sets a limit, which a process leaves with its group; `None`: it has
/// none. Programs attached to the group (BPF) are no files.
fn limit_of(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
    files.sort();
    files.into_iter().find(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        is_limit_file(&name) && fs::read_to_string(file).is_ok_and(|text| sets_limit(&name, &text))
    })
}

fn is_limit_file(name: &str) -> bool {
    let of_amount = name.ends_with(".max") || name.ends_with(".high");
    of_amount || matches!(name, "cpuset.cpus" | "cpuset.mems")
}

/// True if a file of limits has one: a number in place of `max`, or a set of processors or of memory
/// nodes (`cgroup-v2`, the kernel's admin guide).
fn sets_limit(name: &str, text: &str) -> bool {
    let text = text.trim();
    match name {
        "cpuset.cpus" | "cpuset.mems" => !text.is_empty(),
        // Quota and period.
        "cpu.max" => !text.starts_with("max"),
        // One value; or a key, and values by name.
        _ => text.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let values = if words.len() > 1 { &words[1..] } else { &words[..] };
            values.iter().any(|word| word.rsplit('=').next() != Some("max"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path, name: &str, text: &str) {
        fs::write(folder.join(name), text).unwrap();
    }

    #[test]
    fn legacy_group_is_child() {
        let mount = tempfile::tempdir().unwrap();
        let own = mount.path().join("user/a");
        fs::create_dir_all(&own).unwrap();
        let hierarchy = Hierarchy::V1(mount.path().to_owned());
        assert_eq!(parent(&hierarchy, "/user/a").unwrap(), own);
        assert_eq!(parent(&hierarchy, "/").unwrap(), mount.path().join(""));
        for outside in ["/../other", "/no/such"] {
            let refused = parent(&hierarchy, outside).unwrap_err();
            assert!(matches!(refused, SwapError::NoSuchGroup { .. }), "{refused}");
        }
    }

    #[test]
    fn unified_group_keeps_limits_above() {
        let mount = tempfile::tempdir().unwrap();
        let (slice, scope) = (mount.path().join("slice"), mount.path().join("slice/scope"));
        fs::create_dir_all(&scope).unwrap();
        file(&slice, "cgroup.subtree_control", "cpu memory pids\n");
        // It goes on applying to the groups in the slice.
        file(&slice, "memory.max", "1048576\n");
        for (name, text) in [
            ("memory.max", "max\n"),
            ("cpu.max", "max 100000\n"),
            ("cpuset.cpus", "\n"),
            ("cpuset.cpus.effective", "0-1\n"),
            ("io.max", "\n"),
            ("misc.max", "sev max\n"),
        ] {
            file(&scope, name, text);
        }
        let hierarchy = Hierarchy::V2(mount.path().to_owned());
        assert_eq!(parent(&hierarchy, "/slice/scope").unwrap(), slice);
        for (name, text) in [
            ("pids.max", "40\n"),
            ("cpu.max", "5000 100000\n"),
            ("cpuset.cpus", "0-1\n"),
            ("cpuset.mems", "0\n"),
            ("io.max", "8:0 rbps=max wbps=1048576 riops=max wiops=max\n"),
            ("hugetlb.2MB.max", "2097152\n"),
            ("memory.zswap.max", "0\n"),
            ("misc.max", "sev max\nsev_es 3\n"),
        ] {
            file(&scope, name, text);
            let refused = parent(&hierarchy, "/slice/scope").unwrap_err();
            assert!(matches!(&refused, SwapError::LimitLeft { limit } if limit.ends_with(name)));
            fs::remove_file(scope.join(name)).unwrap();
        }
        // No group above gives memory limits: the group would leave the slice.
        file(&slice, "cgroup.subtree_control", "cpu pids\n");
        let refused = parent(&hierarchy, "/slice/scope").unwrap_err();
        assert!(matches!(refused, SwapError::LimitLeft { .. }), "{refused}");
        file(&slice, "memory.max", "max\n");
        assert_eq!(parent(&hierarchy, "/slice/scope").unwrap(), mount.path());
    }
}
