//! The identity of an offered device, by which two offers of one device are found.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path};

use super::class::class_of;
use super::host::Host;
use super::offer::Offer;
use super::{accelerator, in_use};

/// Finds the first offer of the nodes of this machine that names a device, or a part of one, that an
/// earlier offer names too, under the same name or another one. Different parts of a disk are
/// different devices, and so are the ports of a card. Several nodes may lend the processors. A
/// missing device is ignored.
pub fn offered_twice<'a>(offers: &'a [(&str, Offer)]) -> Option<(&'a Offer, String)> {
    let host = Host::default();
    let is_shared = |offer: &Offer| {
        class_of(offer.kind).is_some_and(|class| class.is_shared(&host, &offer.address))
    };
    let is_fine = |at: usize, before: usize| {
        let ((node, offer), (other_node, other)) = (&offers[at], &offers[before]);
        node != other_node && is_shared(offer) && is_shared(other)
    };
    let offers: Vec<&Offer> = offers.iter().map(|(_, offer)| offer).collect();
    clash_of(&host, &offers, is_fine)
}

/// Finds the first offer of one node that names what an earlier one names too.
pub(super) fn twice_on<'a>(host: &Host, offers: &'a [Offer]) -> Option<(&'a Offer, String)> {
    clash_of(host, &offers.iter().collect::<Vec<_>>(), |_, _| false)
}

/// Finds the first offer that clashes with an earlier one, but for pairs that `is_fine` lets pass.
fn clash_of<'a>(
    host: &Host,
    offers: &[&'a Offer],
    is_fine: impl Fn(usize, usize) -> bool,
) -> Option<(&'a Offer, String)> {
    let identity = |offer: &&Offer| {
        let class = class_of(offer.kind);
        class.map(|class| class.identity(host, &offer.address)).unwrap_or_default()
    };
    let things: Vec<Identity> = offers.iter().map(identity).collect();
    let pairs = (0..offers.len()).flat_map(|at| (0..at).map(move |before| (at, before)));
    pairs.filter(|(at, before)| !is_fine(*at, *before)).find_map(|(at, before)| {
        let (offer, other) = (offers[at], offers[before]);
        if (offer.kind, &offer.address) == (other.kind, &other.address) {
            return Some((offer, "is offered twice".to_owned()));
        }
        let why = things[at].clash(&things[before], other)?;
        Some((offer, why))
    })
}

/// A unique object of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Thing {
    /// A block device by its number.
    Block(String),
    /// A character device by its number.
    Character(String),
    /// A file by file system and inode.
    File(u64, u64),
    /// A network card by its name.
    Card(String),
    /// A PCI device by its address.
    Pci(String),
    /// An OpenCL device by its number.
    OpenCl(usize),
    /// A CUDA device by its number.
    Cuda(usize),
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(number) => write!(f, "block device {number}"),
            Self::Character(number) => write!(f, "character device {number}"),
            Self::File(_, inode) => write!(f, "inode {inode} of one file system"),
            Self::Card(name) => write!(f, "network card {name}"),
            Self::Pci(address) => write!(f, "PCI device {address}"),
            Self::OpenCl(number) => write!(f, "OpenCL device {number}"),
            Self::Cuda(number) => write!(f, "CUDA device {number}"),
        }
    }
}

/// The identity of an offered device.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// Its own objects: to use the device is to use all of them.
    itself: Vec<Thing>,
    /// Objects that it is a part of.
    within: Vec<Thing>,
}

impl Identity {
    /// Returns the identity of a network card above these others.
    pub(super) fn of_card(host: &Host, name: &str, below: Vec<String>) -> Self {
        let device = host.path(format!("/sys/class/net/{name}/device"));
        let mut within: Vec<Thing> = pci_above(&device).into_iter().collect();
        within.extend(below.into_iter().map(Thing::Card));
        Self { itself: vec![Thing::Card(name.to_owned())], within }
    }

    /// Returns the identity of an OpenCL device, with its PCI address if it has one.
    pub(super) fn of_opencl(number: usize, pci: Option<&str>) -> Self {
        let pci = pci.map(|address| Thing::Pci(address.to_owned()));
        Self {
            itself: [Thing::OpenCl(number)].into_iter().chain(pci).collect(),
            within: Vec::new(),
        }
    }

    /// Returns the identity of a CUDA device, with its PCI address if it has one.
    pub(super) fn of_cuda(number: usize, pci: Option<&str>) -> Self {
        let pci = pci.map(|address| Thing::Pci(address.to_owned()));
        Self { itself: [Thing::Cuda(number)].into_iter().chain(pci).collect(), within: Vec::new() }
    }

    /// Returns the identity of a device that is named by a path; a missing one has none.
    pub(super) fn of_path(host: &Host, address: &str) -> Self {
        Self::of_file(host, address).unwrap_or_default()
    }

    fn of_file(host: &Host, address: &str) -> Option<Self> {
        let path = host.path(address).canonicalize().ok()?;
        let metadata = fs::metadata(&path).ok()?;
        let number = in_use::number(metadata.rdev());
        let kind = metadata.file_type();
        if kind.is_block_device() {
            return Some(Self::of_block(host, number));
        }
        if !kind.is_char_device() {
            let itself = vec![Thing::File(metadata.dev(), metadata.ino())];
            return Some(Self { itself, within: Vec::new() });
        }
        let mut itself: Vec<Thing> =
            pci_above(&host.path(format!("/sys/dev/char/{number}"))).into_iter().collect();
        itself.extend(accelerator::pci_addresses(host, &path).into_iter().map(Thing::Pci));
        itself.push(Thing::Character(number));
        Some(Self { itself, within: Vec::new() })
    }

    fn of_block(host: &Host, number: String) -> Self {
        let at = format!("/sys/dev/block/{number}");
        let mut within: Vec<Thing> = pci_above(&host.path(&at)).into_iter().collect();
        let disk = host.link_name(&at).and_then(|name| in_use::disk_of(host, &name));
        let disk = disk.and_then(|disk| host.text(format!("/sys/class/block/{disk}/dev")));
        within.extend(disk.map(Thing::Block));
        Self { itself: vec![Thing::Block(number)], within }
    }

    /// Explains why both cannot be lent; `other` is the offer of `second`.
    fn clash(&self, second: &Self, other: &Offer) -> Option<String> {
        let other = format!("{}:{}", other.kind, other.address);
        let both = |mine: &[Thing], theirs: &[Thing]| {
            mine.iter().find(|it| theirs.contains(it)).map(Thing::to_string)
        };
        if let Some(thing) = both(&self.itself, &second.itself) {
            return Some(format!("is the same as {other}, offered before: both are {thing}"));
        }
        if let Some(thing) = both(&self.within, &second.itself) {
            return Some(format!("is part of {other}, offered before: of {thing}"));
        }
        let thing = both(&self.itself, &second.within)?;
        Some(format!("has {other} in it, offered before, as a part of {thing}"))
    }
}

/// Returns the nearest PCI device above a directory of sysfs.
fn pci_above(dir: &Path) -> Option<Thing> {
    let dir = dir.canonicalize().ok()?;
    let names = dir.components().rev().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    names.into_iter().find(|name| is_pci_address(name)).map(|it| Thing::Pci(it.to_owned()))
}

/// True for `0000:3b:00.1`: domain, bus, device, function.
fn is_pci_address(name: &str) -> bool {
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let [domain, rest @ ..] = &*parts else { return false };
    let lengths: Vec<usize> = rest.iter().map(|it| it.len()).collect();
    parts.iter().all(is_hex) && domain.len() >= 4 && lengths == [2, 2, 1]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn said(host: &Host, offers: &[&str]) -> String {
        let offers: Vec<Offer> = offers.iter().map(|it| it.parse().unwrap()).collect();
        twice_on(host, &offers).map(|(offer, why)| format!("{offer} {why}")).unwrap_or_default()
    }

    fn link(host: &Host, from: &str, to: &str) {
        let from = host.path(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(host.path(to), from).unwrap();
    }

    #[test]
    fn aliases_name_same_device() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::in_folder(dir.path(), &[("/srv/disk", ""), ("/srv/other", "")]);
        link(&host, "/srv/by-id", "/srv/disk");
        fs::hard_link(host.path("/srv/disk"), host.path("/srv/hard")).unwrap();
        symlink("/dev/null", host.path("/srv/null")).unwrap();
        symlink("/dev/zero", host.path("/srv/zero")).unwrap();
        for same in ["storage:/srv/by-id", "storage:/srv/hard", "storage:/srv/./disk"] {
            let said = said(&host, &["storage:/srv/disk=1MiB", same]);
            let wanted = format!("{same} is the same as storage:/srv/disk, offered before: both");
            assert!(said.starts_with(&wanted), "{said}");
        }
        assert_eq!(said(&host, &["storage:/srv/disk", "storage:/srv/other"]), "");
        assert!(said(&host, &["storage:/srv/disk", "storage:/srv/disk"]).contains("twice"));
        assert_eq!(said(&host, &["accelerator:/srv/null", "accelerator:/srv/zero"]), "");
        let null = said(&Host::default(), &["accelerator:/dev/null", "accelerator:/dev/./null"]);
        assert!(null.contains("both are character device 1:3"), "{null}");
        // A missing device is refused elsewhere.
        assert_eq!(said(&host, &["storage:/srv/none", "storage:/srv/./none"]), "");
    }

    #[test]
    fn partition_clashes_with_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        let disk = "/sys/devices/pci0000:00/0000:00:1f.2/ata1/block/sdb";
        let host = Host::in_folder(
            dir.path(),
            &[
                (&format!("{disk}/dev"), "8:16"),
                (&format!("{disk}/sdb1/partition"), "1"),
                (&format!("{disk}/sdb2/partition"), "2"),
            ],
        );
        for (name, number) in [("sdb", "8:16"), ("sdb/sdb1", "8:17"), ("sdb/sdb2", "8:18")] {
            let target = format!("/sys/devices/pci0000:00/0000:00:1f.2/ata1/block/{name}");
            let name = name.rsplit('/').next().unwrap();
            link(&host, &format!("/sys/dev/block/{number}"), &target);
            link(&host, &format!("/sys/class/block/{name}"), &target);
        }
        let of = |number: &str| Identity::of_block(&host, number.to_owned());
        let (disk, one, two) = (of("8:16"), of("8:17"), of("8:18"));
        let other: Offer = "storage:/dev/sdb".parse().unwrap();
        let clash = |a: &Identity, b: &Identity| a.clash(b, &other).unwrap_or_default();
        assert_eq!(
            clash(&one, &disk),
            "is part of storage:/dev/sdb, offered before: of block device 8:16"
        );
        assert!(clash(&disk, &two).starts_with("has storage:/dev/sdb in it"));
        assert!(clash(&disk, &of("8:16")).starts_with("is the same as"));
        assert_eq!(clash(&one, &two), "");
    }

    #[test]
    fn vlan_and_render_node_clash() {
        let dir = tempfile::tempdir().unwrap();
        let gpu = "/proc/driver/nvidia/gpus/0000:3B:00.0/information";
        let host = Host::in_folder(
            dir.path(),
            &[
                (
                    gpu,
                    "Device Minor: 1
",
                ),
                ("/sys/class/net/eth0.5/lower_eth0/type", ""),
                ("/sys/class/net/eth0.6/lower_eth0/type", ""),
                ("/sys/devices/pci0000:3a/0000:3b:00.0/drm/renderD128/dev", "226:128"),
                ("/sys/devices/pci0000:3a/0000:3b:00.0/net/eth0/type", ""),
                ("/sys/kernel/iommu_groups/7/devices/0000:3b:00.0", ""),
            ],
        );
        let card = "/sys/devices/pci0000:3a/0000:3b:00.0/net/eth0";
        link(&host, "/sys/class/net/eth0", card);
        link(&host, &format!("{card}/device"), "/sys/devices/pci0000:3a/0000:3b:00.0");
        assert!(
            said(&host, &["nic:eth0", "nic:eth0.5"])
                .contains("eth0.5 is part of nic:eth0, offered")
        );
        assert_eq!(said(&host, &["nic:eth0.5", "nic:eth0.6"]), "");
        let pci = Some(Thing::Pci("0000:3b:00.0".into()));
        let render = "/sys/devices/pci0000:3a/0000:3b:00.0/drm/renderD128";
        assert_eq!(pci_above(&host.path(render)), pci);
        assert_eq!(pci_above(&host.path("/sys/class/net/eth0.5")), None);
        for device in ["/dev/nvidia1", "/dev/vfio/7"] {
            let pci = accelerator::pci_addresses(&host, &host.path(device));
            assert_eq!(pci, ["0000:3b:00.0"], "{device}");
        }
        let card = Identity::of_card(&host, "eth0", Vec::new());
        assert_eq!(card.within, pci.into_iter().collect::<Vec<_>>());
    }
}
