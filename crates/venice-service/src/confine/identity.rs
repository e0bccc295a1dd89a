//! User, group, namespace of users, capabilities.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, UnshareFlags, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::sys;

/// Opens /proc before the root is changed, for [`enter_user_namespace`] after it.
pub(crate) fn open_proc() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc", flags, Mode::empty())?)
}

/// Returns the groups through which device nodes can be used; root's is none.
///
/// # Errors
/// Fails if a path is no device node.
pub(crate) fn groups_of(devices: &[PathBuf]) -> io::Result<Vec<u32>> {
    let mut groups = Vec::new();
    for device in devices {
        let found = std::fs::metadata(device)?;
        let kind = found.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return Err(io::Error::other(format!("{}: no device node", device.display())));
        }
        let (group, mode) = (found.gid(), found.mode());
        if group != 0 && mode & 0o060 != 0 && !groups.contains(&group) {
            groups.push(group);
        }
    }
    Ok(groups)
}

/// Takes the ids of a host, for good; needs root. Clears the parent-death signal.
pub(crate) fn take_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups)?;
    let gid = Gid::from_raw(gid);
    set_thread_res_gid(gid, gid, gid)?;
    let uid = Uid::from_raw(uid);
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Enters a user namespace that has this user and group, and no other.
pub(crate) fn enter_user_namespace(proc: BorrowedFd<'_>) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // Else the files below belong to root: proc(5), on dumpable processes.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    sys::unshare(UnshareFlags::NEWUSER)?;
    write_own(proc, "setgroups", "deny")?;
    write_own(proc, "gid_map", &format!("{gid} {gid} 1"))?;
    write_own(proc, "uid_map", &format!("{uid} {uid} 1"))
}

/// Makes this process the first choice of the system when memory runs out.
pub(crate) fn prefer_as_victim(proc: BorrowedFd<'_>) -> io::Result<()> {
    write_own(proc, "oom_score_adj", "800")
}

fn write_own(proc: BorrowedFd<'_>, file: &str, text: &str) -> io::Result<()> {
    let path = format!("self/{file}");
    let opened = rustix::fs::openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let written = rustix::io::write(&opened, text.as_bytes())?;
    if written == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Empties the bounding set. Fails without CAP_SETPCAP unless it is empty.
pub(crate) fn drop_bounding_set() -> io::Result<()> {
    for number in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The first number that the kernel does not know.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives up all capabilities but `kept`, and every way to new ones.
pub(crate) fn drop_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let inheritable = CapabilitySet::empty();
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let kept = kept & rustix::thread::capabilities(None)?.permitted;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    // No other process of the same user traces it or reads its memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
