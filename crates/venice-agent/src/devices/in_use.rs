//! Local uses of a block device or a file, which prevent lending it.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;

use super::host::Host;

const BLOCKS: &str = "/sys/class/block";

/// Describes the use of a block device, of a part of it, or of the disk it is a part of; `name` is
/// the kernel's; `None` if it is unused.
pub(super) fn of_block(host: &Host, name: &str) -> Option<String> {
    let mut related = parts(host, name);
    related.insert(0, name.to_owned());
    let own = related.clone();
    related.extend(disk_of(host, name));
    let by_table = |device: &String| {
        let number = number_of(host, device);
        let is_it = |text: &str| is_device(host, text, device, &number);
        part_of(host, device)
            .or_else(|| mounted(host, device, &number, &is_it))
            .or_else(|| swapped_to(host, device, &is_it))
            .or_else(|| under_loop(host, device, &is_it))
    };
    related.iter().find_map(by_table).or_else(|| open_exclusively(host, name, &own))
}

/// Describes the use of a file.
pub(super) fn of_file(host: &Host, metadata: &Metadata) -> Option<String> {
    let is_it = |text: &str| {
        let other = fs::metadata(host.path(text)).ok();
        other.is_some_and(|it| (it.dev(), it.ino()) == (metadata.dev(), metadata.ino()))
    };
    swapped_to(host, "it", &is_it).or_else(|| under_loop(host, "it", &is_it))
}

/// Formats a device number: `8:16`.
pub(super) fn number(rdev: u64) -> String {
    format!("{}:{}", major(rdev), minor(rdev))
}

/// Returns the whole disk of a partition.
pub(super) fn disk_of(host: &Host, name: &str) -> Option<String> {
    let dir = host.path(format!("{BLOCKS}/{name}"));
    if !dir.join("partition").exists() {
        return None;
    }
    let disk = dir.canonicalize().ok()?;
    Some(disk.parent()?.file_name()?.to_str()?.to_owned())
}

fn parts(host: &Host, name: &str) -> Vec<String> {
    let is_part = |inner: &String| host.path(format!("{BLOCKS}/{name}/{inner}/partition")).exists();
    host.names(format!("{BLOCKS}/{name}")).into_iter().filter(is_part).collect()
}

fn number_of(host: &Host, name: &str) -> Option<String> {
    host.text(format!("{BLOCKS}/{name}/dev"))
}

/// True if a name in a kernel table is this device, under any name.
fn is_device(host: &Host, named: &str, device: &str, number_of_it: &Option<String>) -> bool {
    if !named.starts_with("/dev/") {
        return false;
    }
    let there = fs::metadata(host.path(named)).ok().filter(|it| it.file_type().is_block_device());
    match (there, number_of_it) {
        (Some(there), Some(known)) => number(there.rdev()) == *known,
        _ => named.strip_prefix("/dev/") == Some(device),
    }
}

fn part_of(host: &Host, device: &str) -> Option<String> {
    let holders = host.names(format!("{BLOCKS}/{device}/holders"));
    holders.first().map(|holder| format!("{device} is part of {holder}"))
}

fn mounted(
    host: &Host,
    device: &str,
    number: &Option<String>,
    is_it: &impl Fn(&str) -> bool,
) -> Option<String> {
    let table = host.text("/proc/self/mountinfo")?;
    table.lines().find_map(|line| {
        let (place, source) = line.split_once(" - ")?;
        let place: Vec<&str> = place.split(' ').collect();
        // Some file systems (btrfs) have device numbers of their own, and name the device as
        // source.
        let source = plain(source.split(' ').nth(1)?);
        let is_mounted = Some(*place.get(2)?) == number.as_deref() || is_it(&source);
        is_mounted.then(|| format!("{device} is mounted at {}", plain(place[4])))
    })
}

fn swapped_to(host: &Host, device: &str, is_it: &impl Fn(&str) -> bool) -> Option<String> {
    let table = host.text("/proc/swaps")?;
    let mut areas = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    areas.any(|area| is_it(&plain(area))).then(|| format!("this machine swaps to {device}"))
}

fn under_loop(host: &Host, device: &str, is_it: &impl Fn(&str) -> bool) -> Option<String> {
    host.names("/sys/block").into_iter().find_map(|block| {
        let file = host.text(format!("/sys/block/{block}/loop/backing_file"))?;
        is_it(&file).then(|| format!("{device} backs {block}"))
    })
}

/// Checks for an exclusive user. A file system, an array or a program in another container leaves
/// no holder in the kernel's tables; an exclusive open detects it.
fn open_exclusively(host: &Host, name: &str, own: &[String]) -> Option<String> {
    // The kernel writes ! for a slash in a name of /dev.
    let path = host.path(format!("/dev/{}", name.replace('!', "/")));
    if !fs::metadata(&path).is_ok_and(|it| it.file_type().is_block_device()) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Err(Errno::BUSY) => {}
        Ok(_) => return None,
        Err(error) => {
            // A user without read permission can still offer it; its tables have been checked.
            tracing::debug!(device = name, %error, "cannot check for exclusive use");
            return None;
        }
    }
    let numbers: BTreeSet<String> = own.iter().filter_map(|it| number_of(host, it)).collect();
    let who = match &*openers(host, &numbers) {
        [] => "by the kernel or a process not visible here".to_owned(),
        [one] => format!("by {one}"),
        [one, others @ ..] => format!("by one of {one}, {}", others.join(", ")),
    };
    Some(format!("{name} is held exclusively, {who}"))
}

/// Returns up to three processes that have one of these devices open.
fn openers(host: &Host, numbers: &BTreeSet<String>) -> Vec<String> {
    let has_it = |pid: &String| {
        let dir = format!("/proc/{pid}/fd");
        let is_it = |fd: &String| {
            let file = fs::metadata(host.path(format!("{dir}/{fd}"))).ok();
            file.is_some_and(|it| {
                it.file_type().is_block_device() && numbers.contains(&number(it.rdev()))
            })
        };
        host.names(&dir).iter().any(is_it)
    };
    let is_pid = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let pids = host.names("/proc").into_iter().filter(is_pid).filter(has_it).take(3);
    pids.map(|pid| {
        let program = host.text(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{program} (process {pid})")
    })
    .collect()
}

/// Unescapes a table entry: the kernel writes a space as `\040`.
fn plain(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).and_then(|it| std::str::from_utf8(it).ok());
        let code = digits.and_then(|it| u8::from_str_radix(it, 8).ok());
        match code.filter(|_| *first == b'\\') {
            Some(code) => (bytes.push(code), rest = &after[3..]),
            None => (bytes.push(*first), rest = after),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_parents_are_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = "\
21 1 8:17 / /srv/my\\040pool rw - ext4 /dev/root rw\n\
22 1 0:33 /sub /data rw shared:7 - btrfs /dev/sdc rw\n\
23 1 0:34 / /tmp rw - tmpfs tmpfs rw";
        let host = Host::in_folder(
            dir.path(),
            &[
                ("/sys/class/block/sdb/dev", "8:16\n"),
                ("/sys/class/block/sdb/sdb1/partition", "1\n"),
                ("/sys/class/block/sdb/sdb2/partition", "2\n"),
                ("/sys/class/block/sdc/dev", "8:32\n"),
                ("/sys/class/block/sdd/dev", "8:48\n"),
                ("/sys/class/block/sdd/sdd1/partition", "1\n"),
                ("/sys/class/block/sdd/holders/md0", ""),
                ("/sys/block/loop3/loop/backing_file", "/dev/sde\n"),
                ("/proc/self/mountinfo", mounts),
            ],
        );
        for (part, number) in [("sdb1", "8:17"), ("sdb2", "8:18"), ("sdd1", "8:49")] {
            let link = host.path(format!("/sys/class/block/{part}"));
            std::os::unix::fs::symlink(format!("{}/{part}", &part[..3]), link).unwrap();
            fs::write(host.path(format!("/sys/class/block/{part}/dev")), number).unwrap();
        }
        let said = |name: &str| of_block(&host, name).unwrap_or_default();
        assert_eq!(said("sdb"), "sdb1 is mounted at /srv/my pool");
        assert_eq!(said("sdb1"), "sdb1 is mounted at /srv/my pool");
        assert_eq!(said("sdb2"), "");
        assert_eq!(said("sdc"), "sdc is mounted at /data");
        assert_eq!(said("sdd1"), "sdd is part of md0");
        assert_eq!(said("sde"), "sde backs loop3");
    }
}
