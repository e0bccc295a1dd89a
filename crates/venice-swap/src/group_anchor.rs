//! The page of `anchor` for a memory cgroup made and filled by others.
//!
//! The process charged for the page must be in the group while it is read, and only then: a process
//! that stayed there would block the removal of the group.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::anchor::{Anchor, HeldPage};
use crate::cgroup::Hierarchy;
use crate::{SwapError, require_root};

/// A page that a group keeps for as long as this lives.
#[derive(Debug)]
pub struct GroupAnchor {
    folder: PathBuf,
    /// Another group may reuse the name.
    inode: u64,
    _page: HeldPage,
}

impl GroupAnchor {
    /// Makes `group` keep a page of `device`, a swap device. The group is named by its folder, or
    /// by its path below the mount of the memory controller. The calling process is in it for a
    /// moment.
    ///
    /// # Errors
    /// Without root or a memory controller, if no such group exists, if it cannot have a limit, or
    /// if the device cannot be read.
    pub fn lay(group: &Path, device: &Path) -> Result<Self, SwapError> {
        require_root()?;
        let hierarchy = Hierarchy::find().ok_or_else(SwapError::no_memory_cgroup)?;
        let folder = find(&hierarchy, group)?;
        let inode = inode(&folder).ok_or_else(|| no_such_group(&hierarchy, group))?;
        let own = own_group(&hierarchy)?;
        let anchor = Anchor::on(device)?;
        join(&folder)?;
        let laid = anchor.lay();
        join(&own)?;
        laid.map_err(SwapError::file("hold a page of", device))?;
        Ok(Self { folder, inode, _page: anchor.into_held() })
    }

    /// Returns the group's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// True if the group still exists.
    #[must_use]
    pub fn has_group(&self) -> bool {
        inode(&self.folder) == Some(self.inode)
    }
}

/// Returns the folder of the group named by its folder or by its name.
fn find(hierarchy: &Hierarchy, group: &Path) -> Result<PathBuf, SwapError> {
    let mount = fs::canonicalize(hierarchy.mount());
    let mount = mount.map_err(SwapError::file("read", hierarchy.mount()))?;
    let below = mount.join(group.strip_prefix("/").unwrap_or(group));
    let found: Vec<PathBuf> =
        [group, &below].into_iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    let limit_file = match hierarchy {
        Hierarchy::V1(_) => "memory.limit_in_bytes",
        Hierarchy::V2(_) => "memory.max",
    };
    // The mount itself is the root group, which has no limit.
    let can_have_limit = |folder: &&PathBuf| {
        folder.starts_with(&mount) && **folder != mount && folder.join(limit_file).exists()
    };
    match (found.iter().find(can_have_limit), found.is_empty()) {
        (Some(folder), _) => Ok(folder.clone()),
        (None, true) => Err(no_such_group(hierarchy, group)),
        (None, false) => {
            let (group, mount) = (group.to_owned(), mount);
            Err(SwapError::NotMemoryGroup { group, mount })
        }
    }
}

fn no_such_group(hierarchy: &Hierarchy, group: &Path) -> SwapError {
    SwapError::NoSuchGroup { group: group.to_owned(), mount: hierarchy.mount().to_owned() }
}

fn inode(folder: &Path) -> Option<u64> {
    fs::metadata(folder).ok().map(|meta| meta.ino())
}

/// Returns the folder of this process's group.
fn own_group(hierarchy: &Hierarchy) -> Result<PathBuf, SwapError> {
    const FILE: &str = "/proc/self/cgroup";
    let text = fs::read_to_string(FILE).map_err(SwapError::file("read", FILE))?;
    let missing =
        || SwapError::file("find this process in", FILE)(std::io::ErrorKind::NotFound.into());
    let path = membership(&text, hierarchy).ok_or_else(missing)?;
    Ok(hierarchy.mount().join(path.trim_start_matches('/')))
}

/// Finds the group of a process. Lines are `NUMBER:CONTROLLER,...:PATH`; the unified hierarchy's is
/// `0::PATH`.
pub(crate) fn membership<'a>(text: &'a str, hierarchy: &Hierarchy) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match hierarchy {
            Hierarchy::V1(_) => controllers.split(',').any(|name| name == "memory"),
            Hierarchy::V2(_) => number == "0" && controllers.is_empty(),
        };
        is_it.then_some(path)
    })
}

fn join(folder: &Path) -> Result<(), SwapError> {
    let members = folder.join("cgroup.procs");
    fs::write(&members, "0").map_err(SwapError::file("join", members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_found_in_both_hierarchies() {
        let (v1, v2) = (Hierarchy::V1("/a".into()), Hierarchy::V2("/b".into()));
        let hybrid = "12:cpu,memory:/jobs/a:b\n1:name=memory_like:/x\n0::/user.slice\n";
        assert_eq!(membership(hybrid, &v1), Some("/jobs/a:b"));
        assert_eq!(membership(hybrid, &v2), Some("/user.slice"));
        assert_eq!(membership("1:name=memory:/x\nbroken\n", &v1), None);
    }

    #[test]
    fn only_limitable_groups_are_found() {
        let place = tempfile::tempdir().unwrap();
        let mount = fs::canonicalize(place.path()).unwrap().join("memory");
        let hierarchy = Hierarchy::V1(mount.clone());
        for folder in ["jobs/one", "plain", "../cpu/one"] {
            fs::create_dir_all(mount.join(folder)).unwrap();
        }
        for folder in ["", "jobs", "jobs/one", "../cpu/one"] {
            fs::write(mount.join(folder).join("memory.limit_in_bytes"), "1").unwrap();
        }
        let found = |name: &str| find(&hierarchy, Path::new(name));
        let one = mount.join("jobs/one");
        for name in ["jobs/one", "/jobs/one", one.to_str().unwrap(), "jobs/../jobs/one/"] {
            assert_eq!(found(name).unwrap(), one, "{name}");
        }
        for name in ["plain", "..", "", "/", "../cpu/one", mount.to_str().unwrap()] {
            let refused = found(name).unwrap_err();
            assert!(matches!(refused, SwapError::NotMemoryGroup { .. }), "{name}: {refused}");
        }
        for name in ["jobs/two", "/no/such/group"] {
            let refused = found(name).unwrap_err();
            assert!(matches!(refused, SwapError::NoSuchGroup { .. }), "{name}: {refused}");
        }
    }
}
