//! An empty root directory: a tmpfs of a few pages with what the spec names, and nothing else.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

use super::sys::{MountAttributes, add_mount_attributes};
use crate::cache;
use crate::spec::{CACHE, HostLimits, HostSpec, LaunchOrder};

/// Bytes and files of the root directory itself, which holds only mount points.
const ROOT_OPTIONS: &str = "size=64k,nr_inodes=1024,mode=755";
const LOCKED_DOWN: MountFlags =
    MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Places of a host's own files, as it sees them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Directory that it may fill.
    pub scratch: PathBuf,
    /// Directory of its sockets.
    pub endpoint: PathBuf,
    /// Directory of its caches.
    pub cache: Option<PathBuf>,
}

impl Places {
    /// Places in an empty root.
    pub(crate) fn in_root(spec: &HostSpec) -> Self {
        let cache = (!spec.caches.is_empty()).then(|| CACHE.into());
        Self { scratch: "/tmp".into(), endpoint: "/endpoint".into(), cache }
    }

    /// Places of a host that keeps the root of its supervisor.
    pub(crate) fn outside(order: &LaunchOrder) -> Self {
        Self {
            scratch: order.dir.join("scratch"),
            endpoint: order.dir.join("endpoint"),
            cache: None,
        }
    }
}

/// Makes the root directory of a host and moves this process into it, in a mount namespace of its
/// own. `owner` owns the scratch directory and the caches.
///
/// # Errors
/// Names the step that failed. The process is then in an unknown root and has to end.
pub(crate) fn enter_empty_root(order: &LaunchOrder, owner: (u32, u32)) -> io::Result<()> {
    let root = order.dir.join("root");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(at("making mounts private"))?;
    mount_tmpfs(&root, ROOT_OPTIONS, LOCKED_DOWN)?;
    fill_root(order, &root, owner)?;
    let read_only = LOCKED_DOWN | MountFlags::RDONLY | MountFlags::BIND;
    mount_remount(&root, read_only, c"").map_err(at("making the root read-only"))?;
    std::env::set_current_dir(&root)?;
    // The old root lies on the new one until it is detached: pivot_root(2), NOTES.
    rustix::process::pivot_root(".", ".").map_err(at("changing the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(at("detaching the old root"))?;
    std::env::set_current_dir("/")
}

fn fill_root(order: &LaunchOrder, root: &Path, ids: (u32, u32)) -> io::Result<()> {
    let (spec, limits) = (&order.spec, &order.spec.limits);
    let HostLimits { scratch_bytes, scratch_files, cache_bytes, .. } = *limits;
    make_writable(spec, &root.join("tmp"), (scratch_bytes, scratch_files), ids)?;
    if !spec.caches.is_empty() {
        let cache = below(root, Path::new(CACHE));
        let files = u32::try_from(cache_bytes / 4096).unwrap_or(u32::MAX);
        make_writable(spec, &cache, (cache_bytes, files), ids)?;
        cache::fill(&cache, ids, &spec.caches, order.kept.as_ref())?;
    }
    bind(&order.dir.join("endpoint"), &root.join("endpoint"), MountAttributes::Writable)?;
    for (paths, attributes) in [
        (&spec.devices, MountAttributes::Device),
        (&spec.read_paths, MountAttributes::ReadOnly),
        (&spec.write_paths, MountAttributes::Writable),
    ] {
        for path in paths {
            let place = link_tree(root, path)?;
            let is_there = place != *path && paths.iter().any(|other| place.starts_with(other));
            if !is_there {
                bind(path, &below(root, &place), attributes)?;
            }
        }
    }
    Ok(())
}

/// Makes a directory that the host may fill up to a limit of bytes and files.
fn make_writable(
    spec: &HostSpec,
    dir: &Path,
    (bytes, files): (u64, u32),
    (uid, gid): (u32, u32),
) -> io::Result<()> {
    fs::create_dir(dir)?;
    let (bytes, files) = (bytes.max(4096), files.max(2));
    let options = format!("size={bytes},nr_inodes={files},mode=700,uid={uid},gid={gid}");
    let allowed = if spec.executable_scratch { MountFlags::NOEXEC } else { MountFlags::empty() };
    mount_tmpfs(dir, &options, LOCKED_DOWN.difference(allowed))
}

/// Makes a link in the new root for a tree that is a link in the old one, and returns the place of
/// the tree: libraries look for their data beside the place that they were loaded from, and there
/// `/lib` must be what it is outside. Other paths are places themselves.
fn link_tree(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink());
    if !is_link || !path.is_dir() {
        return Ok(path.to_path_buf());
    }
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("linking {}: {error}", path.display()))
    };
    let place = path.canonicalize().map_err(named)?;
    // Relative, so that it leads into the new root before the change too.
    let mut target: PathBuf = path.components().skip(2).map(|_| "..").collect();
    target.push(place.strip_prefix("/").unwrap_or(&place));
    let link = below(root, path);
    link.parent().map_or(Ok(()), fs::create_dir_all).map_err(named)?;
    std::os::unix::fs::symlink(target, link).map_err(named)?;
    Ok(place)
}

fn mount_tmpfs(at_path: &Path, options: &str, flags: MountFlags) -> io::Result<()> {
    let options = CString::new(options).map_err(io::Error::other)?;
    mount("venice-host", at_path, "tmpfs", flags, options.as_c_str())
        .map_err(at("mounting a tmpfs"))
}

/// Binds a file or tree of the old root into the new one.
fn bind(source: &Path, target: &Path, attributes: MountAttributes) -> io::Result<()> {
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("binding {}: {error}", source.display()))
    };
    let is_dir = fs::metadata(source).map_err(named)?.is_dir();
    if is_dir {
        fs::create_dir_all(target).map_err(named)?;
    } else {
        target.parent().map_or(Ok(()), fs::create_dir_all).map_err(named)?;
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(target, flags, 0o444.into()).map_err(io::Error::from).map_err(named)?;
    }
    mount_bind_recursive(source, target).map_err(io::Error::from).map_err(named)?;
    add_mount_attributes(target, attributes).map_err(named)
}

/// Returns the place of an absolute path below the new root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn at(step: &'static str) -> impl Fn(rustix::io::Errno) -> io::Error {
    move |errno| {
        let source = io::Error::from(errno);
        io::Error::new(source.kind(), format!("{step}: {source}"))
    }
}
