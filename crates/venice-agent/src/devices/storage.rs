//! Block devices, files and directories.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::statvfs;
use venice_control::ResourceSpec;
use venice_wire::ByteSize;

use super::class::{Candidate, DeviceClass};
use super::host::Host;
use super::identity::Identity;
use super::in_use;
use super::offer::Offer;

/// Unit of the kernel's block device sizes, whatever the device's own.
const SECTOR_BYTES: u64 = 512;
const BLOCKS: &str = "/sys/class/block";
const NO_SIZE: &str = "is a directory: give a size, for example storage:/srv/pool=100GiB";

/// The class.
pub(super) struct Class;

impl DeviceClass for Class {
    fn form(&self) -> &'static str {
        "PATH[=SIZE]"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        offer.check_path()
    }

    fn check_size(&self, offer: &Offer) -> Result<(), String> {
        match offer.bytes.is_none() && Path::new(&offer.address).is_dir() {
            true => Err(NO_SIZE.to_owned()),
            false => Ok(()),
        }
    }

    fn probe(&self, host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        examine(host, offer)
    }

    fn list(&self, host: &Host) -> Vec<Candidate> {
        let disks = unused(host).into_iter();
        disks.map(|name| Candidate::unused(format!("/dev/{name}"))).collect()
    }

    fn is_there(&self, host: &Host, spec: &ResourceSpec) -> bool {
        is_there(host, spec)
    }

    fn local_use(&self, host: &Host, spec: &ResourceSpec) -> Option<String> {
        use_of(host, &spec.address)
    }

    fn identity(&self, host: &Host, address: &str) -> Identity {
        Identity::of_path(host, address)
    }
}

/// Returns the bytes to lend and the capabilities.
fn examine(host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
    let path = host.path(&offer.address);
    let metadata = fs::metadata(&path).map_err(|error| format!("cannot be lent: {error}"))?;
    let kind = metadata.file_type();
    if kind.is_block_device() {
        let name = name_of(host, &metadata).ok_or("is a block device unknown to sysfs")?;
        return of_block(host, &name, offer);
    }
    if let Some(used) = in_use::of_file(host, &metadata).filter(|_| kind.is_file()) {
        return Err(format!("cannot be lent: {used}"));
    }
    let (most, what) = match () {
        () if kind.is_file() => (metadata.len(), "file"),
        () if kind.is_dir() => {
            let space = statvfs(&path).map_err(|error| format!("cannot be lent: {error}"))?;
            (space.f_bavail.saturating_mul(space.f_frsize), "directory")
        }
        () => return Err("is neither a block device nor a file nor a directory".to_owned()),
    };
    if offer.bytes.is_none() && what == "directory" {
        return Err(NO_SIZE.to_owned());
    }
    Ok((at_most(offer.bytes, most)?, vec![what.to_owned()]))
}

fn is_there(host: &Host, spec: &ResourceSpec) -> bool {
    let Ok(metadata) = fs::metadata(host.path(&spec.address)) else { return false };
    // The detected kind comes first; later words may be the operator's.
    match spec.capabilities.first().map(String::as_str) {
        Some("block") => metadata.file_type().is_block_device(),
        // A truncated file lacks lent bytes.
        Some("file") => metadata.is_file() && metadata.len() >= spec.bytes,
        _ => metadata.is_dir(),
    }
}

/// Describes the local use of storage, which prevents lending it; `None` if unused.
fn use_of(host: &Host, address: &str) -> Option<String> {
    let metadata = fs::metadata(host.path(address)).ok()?;
    match metadata.file_type() {
        kind if kind.is_block_device() => in_use::of_block(host, &name_of(host, &metadata)?),
        kind if kind.is_file() => in_use::of_file(host, &metadata),
        _ => None,
    }
}

/// Returns the names of unused whole block devices.
fn unused(host: &Host) -> Vec<String> {
    let is_real = |name: &String| {
        !["loop", "ram", "zram", "dm-", "md", "sr", "fd"].iter().any(|it| name.starts_with(it))
    };
    let is_free = |name: &String| {
        size(host, name).is_some_and(|it| it > 0) && in_use::of_block(host, name).is_none()
    };
    host.names("/sys/block").into_iter().filter(is_real).filter(is_free).collect()
}

/// Returns the kernel's name of a block device.
fn name_of(host: &Host, metadata: &fs::Metadata) -> Option<String> {
    host.link_name(format!("/sys/dev/block/{}", in_use::number(metadata.rdev())))
}

fn of_block(host: &Host, name: &str, offer: &Offer) -> Result<(u64, Vec<String>), String> {
    if let Some(used) = in_use::of_block(host, name) {
        return Err(format!("cannot be lent: {used}"));
    }
    if host.text(format!("{BLOCKS}/{name}/ro")).is_some_and(|text| text == "1") {
        return Err("cannot be lent: it is read-only".to_owned());
    }
    let most = size(host, name).ok_or("has no known size")?;
    let turns = host.text(format!("{BLOCKS}/{name}/queue/rotational"));
    let mut capabilities = vec!["block".to_owned()];
    match turns.as_deref() {
        _ if name.starts_with("nvme") => capabilities.extend(["nvme".into(), "ssd".into()]),
        Some("0") => capabilities.push("ssd".to_owned()),
        Some("1") => capabilities.push("disk".to_owned()),
        _ => {}
    }
    Ok((at_most(offer.bytes, most)?, capabilities))
}

fn at_most(asked: Option<u64>, most: u64) -> Result<u64, String> {
    match asked {
        Some(asked) if asked > most => {
            let (asked, most) = (ByteSize(asked), ByteSize(most));
            Err(format!("cannot be lent: it has {most}, not {asked}"))
        }
        asked => Ok(asked.unwrap_or(most)),
    }
}

fn size(host: &Host, name: &str) -> Option<u64> {
    let sectors: u64 = host.text(format!("{BLOCKS}/{name}/size"))?.parse().ok()?;
    sectors.checked_mul(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_in_use_is_not_lent() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::in_folder(
            dir.path(),
            &[
                ("/sys/block/sda/size", "2048"),
                ("/sys/block/sdb/size", "4096"),
                ("/sys/block/sdc/size", "4096"),
                ("/sys/block/sdd/size", "4096"),
                ("/sys/block/loop0/size", "4096"),
                ("/sys/class/block/sda/size", "2048"),
                ("/sys/class/block/sda/sda1/partition", "1"),
                ("/sys/class/block/sdb/size", "4096"),
                ("/sys/class/block/sdb/queue/rotational", "0"),
                ("/sys/class/block/sdc/size", "4096"),
                ("/sys/class/block/sdc/holders/md0", ""),
                ("/sys/class/block/sdd/size", "4096"),
                ("/proc/self/mountinfo", "21 1 8:1 / /boot rw - ext4 /dev/sda1 rw"),
                ("/proc/swaps", "Filename Type Size Used Priority\n/dev/sdd partition 1 0 -2"),
            ],
        );
        assert_eq!(unused(&host), ["sdb"]);
        let of = |name: &str, text: &str| of_block(&host, name, &text.parse().unwrap());
        assert_eq!(
            of("sdb", "storage:/dev/sdb").unwrap(),
            (2 << 20, vec!["block".into(), "ssd".into()])
        );
        assert_eq!(of("sdb", "storage:/dev/sdb=1MiB").unwrap().0, 1 << 20);
        assert!(of("sdb", "storage:/dev/sdb=1GiB").unwrap_err().contains("it has 2MiB, not 1GiB"));
        assert!(of("sda", "storage:/dev/sda").unwrap_err().contains("sda1 is mounted at /boot"));
        assert!(of("sdc", "storage:/dev/sdc").unwrap_err().contains("part of md0"));
        assert!(of("sdd", "storage:/dev/sdd").unwrap_err().contains("swaps to sdd"));
    }

    #[test]
    fn files_and_directories_have_sizes() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::default();
        let path = dir.path().display().to_string();
        let file = format!("{path}/disk");
        fs::File::create(&file).unwrap().set_len(5 << 20).unwrap();
        let of = |text: String| examine(&host, &text.parse().unwrap());
        assert_eq!(of(format!("storage:{file}")).unwrap(), (5 << 20, vec!["file".to_owned()]));
        assert!(of(format!("storage:{file}=6MiB")).unwrap_err().contains("5MiB, not 6MiB"));
        assert_eq!(of(format!("storage:{path}=1MiB")).unwrap().0, 1 << 20);
        assert!(of(format!("storage:{path}")).unwrap_err().contains("give a size"));
        assert!(of(format!("storage:{path}/none")).unwrap_err().contains("No such file"));
    }

    #[test]
    fn capability_words_do_not_set_kind() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::default();
        let offer = format!("storage:{}=1MiB,file,block", dir.path().display());
        let spec = super::super::examine(&host, &offer.parse().unwrap()).unwrap();
        assert_eq!(spec.capabilities, ["directory", "file", "block"]);
        assert!(is_there(&host, &spec));
    }
}
