//! Local fallback: memory of the recipient's own machine, or its disk, for slabs that donors
//! reclaim and no other donor has room for. In the run block it is a donor of its own. Over shm its
//! slabs are mapped like all others. Over udp a server in this process serves them on the loopback
//! interface. Over verbs this machine's own device serves them; it does not reach files.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use venice_control::{Endpoint, Grant, Share};
use venice_fabric::TargetConfig;
use venice_memory::donor::{DonorError, SharedGrants, Slab, available_bytes};
use venice_memory::paged::run_block::{HERE, PortKind, RunBlock};
use venice_ports::seal::node_key;
use venice_ports::shm::SlabFile;
use venice_ports::udp::{UdpServer, UdpService, UdpSocket, unspecified_like};
use venice_ports::verbs::{Device, VerbsError, VerbsServer};
use venice_wire::{
    ByteSize, GrantId, GrantKey, KeyName, NodeId, NodeSecret, SEAL_KEY_BYTES, SLAB_BYTES,
};

use crate::error::RecipientError;
use crate::loan::random_word;

/// The default directory of `disk`: a disk, where `/tmp` may be memory.
const DEFAULT_DIR: &str = "/var/tmp";
/// The part of the available memory that is left alone ...
const LEAVE_SHARE: u64 = 20;
/// ... and the least bytes that are left.
const LEAVE_AT_LEAST: u64 = 64 << 20;
/// The first number of local grants. No donor's grant has such a number.
const FIRST_GRANT: u64 = 1 << 63;

/// A destination for reclaimed slabs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReclaimTo {
    /// Other nodes with room.
    Donors,
    /// This machine's own memory, as far as it is available.
    Local,
    /// Files in this directory.
    Disk(PathBuf),
}

impl ReclaimTo {
    /// Returns the default order: far memory stays far while any donor has room, and comes here
    /// before it is lost.
    pub fn by_default() -> Vec<ReclaimTo> {
        vec![ReclaimTo::Donors, ReclaimTo::Local]
    }

    /// Parses a list of destinations: `donors,local,disk:DIR`.
    ///
    /// # Errors
    /// The invalid one, in words.
    pub fn list(text: &str) -> Result<Vec<ReclaimTo>, String> {
        text.split(',').map(|place| place.trim().parse()).collect()
    }

    /// Returns its name among the donors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            ReclaimTo::Donors => "donors",
            ReclaimTo::Local => "local",
            ReclaimTo::Disk(_) => "disk",
        }
    }
}

impl FromStr for ReclaimTo {
    type Err = String;

    fn from_str(text: &str) -> Result<ReclaimTo, String> {
        match text.split_once(':') {
            None if text == "donors" => Ok(ReclaimTo::Donors),
            None if text == "local" => Ok(ReclaimTo::Local),
            None if text == "disk" => Ok(ReclaimTo::Disk(DEFAULT_DIR.into())),
            Some(("disk", dir)) if Path::new(dir).is_dir() => Ok(ReclaimTo::Disk(dir.into())),
            Some(("disk", dir)) => Err(format!("{dir:?} is not a directory")),
            _ => Err(format!("unknown place {text:?}: expected donors, local, disk or disk:DIR")),
        }
    }
}

impl std::fmt::Display for ReclaimTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReclaimTo::Disk(dir) => write!(f, "disk:{}", dir.display()),
            place => f.write_str(place.name()),
        }
    }
}

/// The local slabs, and the server that makes them reachable.
#[derive(Debug, Default)]
pub(crate) struct LocalFallback {
    grants: SharedGrants,
    server: Option<Server>,
    count: u64,
}

/// The server for local slabs.
#[derive(Debug)]
enum Server {
    Udp { udp: UdpServer, secret: Option<NodeSecret> },
    Verbs(VerbsServer),
}

impl LocalFallback {
    /// Lends local slabs, as a grant without a lease; with the shm port also their memory.
    pub(crate) fn lend(
        &mut self,
        block: &RunBlock,
        place: &ReclaimTo,
        is_locked: bool,
        slabs: usize,
    ) -> Result<(Grant, Vec<SlabFile>), RecipientError> {
        if block.port().capabilities().registers() && matches!(place, ReclaimTo::Disk(_)) {
            let why = "RDMA devices do not reach files".into();
            return Err(RecipientError::NoRoomHere { place: place.name(), why });
        }
        let slabs = make(place, is_locked, slabs)?;
        let (id, key) = (GrantId(FIRST_GRANT + self.count), GrantKey(random_word()?));
        self.count += 1;
        let mut grant = Grant {
            id,
            donor: place.name().to_owned(),
            donor_node: NodeId(HERE),
            donor_epoch: 0,
            share: Share::of_slabs(slabs.len() as u32),
            key,
            control_addr: String::new(),
            endpoints: Vec::new(),
            lease_s: f64::INFINITY,
        };
        let files = slabs.iter().map(Slab::file).collect::<Result<_, _>>();
        let files = files.map_err(system("sharing memory of this machine"))?;
        self.grants.lock().insert(id, key, slabs);
        if block.port().capabilities().mapped {
            return Ok((grant, files));
        }
        if self.server.is_none() {
            self.server = Some(serve(block, &self.grants)?);
        }
        match self.server.as_ref().expect("the server was just started") {
            Server::Udp { udp, secret } => {
                udp.share(id);
                let key = secret.map(|secret| node_key(&secret, KeyName::Grant(id)));
                grant.endpoints = Endpoint::of_memory(&udp.local_addr().to_string(), key, "");
            }
            // Queue pairs connect at the same number as datagrams.
            Server::Verbs(verbs) => {
                grant.endpoints = Endpoint::of_memory(&verbs.local_addr().to_string(), None, "");
            }
        }
        Ok((grant, Vec::new()))
    }
}

fn make(place: &ReclaimTo, is_locked: bool, count: usize) -> Result<Vec<Slab>, RecipientError> {
    let no_room = |why: String| RecipientError::NoRoomHere { place: place.name(), why };
    let made = match place {
        ReclaimTo::Disk(dir) => (0..count).map(|_| on_disk(dir)).collect::<Result<Vec<_>, _>>(),
        _ => {
            let available = available_bytes().unwrap_or(0);
            let left = (available / LEAVE_SHARE).max(LEAVE_AT_LEAST);
            if available < left + count as u64 * SLAB_BYTES {
                return Err(no_room(format!("{} are available", ByteSize(available))));
            }
            let made = || if is_locked { Slab::set_aside() } else { Slab::unlocked() };
            (0..count).map(|_| made().map_err(|error| why(&error))).collect()
        }
    };
    made.map_err(no_room)
}

/// Opens a file without a name, which ends with this process.
pub(crate) fn unnamed_file(dir: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR);
    file.map_err(|errno| format!("a file in {}: {errno}", dir.display()))
}

/// Checks that this process may write a file of this length: exceeding the limit would kill it.
pub(crate) fn check_file_limit(len_bytes: u64) -> Result<(), String> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit_bytes) if limit_bytes < len_bytes => Err(format!(
            "a file of {}: no process may write more than {} here (`ulimit -f`)",
            ByteSize(len_bytes),
            ByteSize(limit_bytes)
        )),
        _ => Ok(()),
    }
}

/// Makes a slab in a nameless file.
fn on_disk(dir: &Path) -> Result<Slab, String> {
    check_file_limit(SLAB_BYTES)?;
    Slab::in_file(unnamed_file(dir)?).map_err(|error| format!("{}: {}", dir.display(), why(&error)))
}

/// Formats the error with the kernel's reason.
fn why(error: &DonorError) -> String {
    match std::error::Error::source(error) {
        Some(why) => format!("{error}: {why}"),
        None => error.to_string(),
    }
}

/// Starts a server for local slabs.
fn serve(block: &RunBlock, grants: &SharedGrants) -> Result<Server, RecipientError> {
    match block.port() {
        PortKind::Verbs => serve_by_device(block, grants),
        PortKind::Udp | PortKind::Shm => serve_datagrams(block, grants),
    }
}

/// Serves from the address by which the donors are reached, which is one of the device.
fn serve_by_device(block: &RunBlock, grants: &SharedGrants) -> Result<Server, RecipientError> {
    let first = block.donors().first().map(|donor| donor.udp_address()).unwrap_or_default();
    let failed = system("finding this machine's address among the donors");
    let first: SocketAddr = first
        .parse()
        .map_err(|error| failed(std::io::Error::other(format!("{first:?}: {error}"))))?;
    let socket = std::net::UdpSocket::bind(unspecified_like(first)).map_err(&failed)?;
    let here = socket.connect(first).and_then(|()| socket.local_addr()).map_err(&failed)?.ip();
    let port = |error: VerbsError| RecipientError::NoServer { source: error.into() };
    let device = Device::open(None).map_err(port)?;
    let server = VerbsServer::start(device, SocketAddr::new(here, 0), grants.clone());
    Ok(Server::Verbs(server.map_err(port)?))
}

/// Serves datagrams, sealed if the donors' are.
fn serve_datagrams(block: &RunBlock, grants: &SharedGrants) -> Result<Server, RecipientError> {
    let first = block.donors().first();
    let is_sealed = first.is_some_and(|donor| donor.seal().is_some());
    let is_v6 = first.is_some_and(|donor| donor.udp_address().starts_with('['));
    let here: IpAddr = if is_v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let mut secret = NodeSecret([0; SEAL_KEY_BYTES]);
    for word in secret.0.chunks_exact_mut(8) {
        word.copy_from_slice(&random_word()?.to_le_bytes());
    }
    let secret = is_sealed.then_some(secret);
    let port = |source| RecipientError::NoServer { source };
    let service = UdpService {
        sockets: vec![UdpSocket::bind(SocketAddr::new(here, 0)).map_err(port)?],
        target: TargetConfig::new(NodeId(HERE), random_word()?),
        keys: secret.map(|secret| Arc::new(secret) as _),
        xdp: None,
    };
    let udp = UdpServer::serve(service, || grants.clone()).map_err(port)?;
    Ok(Server::Udp { udp, secret })
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> RecipientError {
    move |source| RecipientError::System { doing, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_names_roundtrip() {
        let named = |text: &str| text.parse::<ReclaimTo>();
        assert_eq!(named("donors"), Ok(ReclaimTo::Donors));
        assert_eq!(named("local"), Ok(ReclaimTo::Local));
        assert_eq!(named("disk"), Ok(ReclaimTo::Disk("/var/tmp".into())));
        assert_eq!(named("disk:/"), Ok(ReclaimTo::Disk("/".into())));
        assert!(named("disk:/no/such").unwrap_err().contains("not a directory"));
        assert!(named("tape").unwrap_err().contains("expected donors"));
        assert!(named("donors:x").is_err());
        let places = [ReclaimTo::Donors, ReclaimTo::Local, ReclaimTo::Disk("/".into())];
        let written = places.each_ref().map(ReclaimTo::to_string).join(",");
        assert_eq!(
            (&*written, ReclaimTo::list(&written)),
            ("donors,local,disk:/", Ok(places.into()))
        );
        assert_eq!(ReclaimTo::list("donors, local"), Ok(ReclaimTo::by_default()));
        assert!(ReclaimTo::list("").is_err() && ReclaimTo::list("donors,,local").is_err());
    }

    #[test]
    fn no_room_error_names_the_place() {
        let error = make(&ReclaimTo::Disk("/proc".into()), false, 1).unwrap_err().to_string();
        assert!(error.contains("disk") && error.contains("/proc"), "{error}");
        let error = make(&ReclaimTo::Local, false, 1 << 30).unwrap_err().to_string();
        assert!(error.contains("available"), "{error}");
    }

    #[test]
    fn disk_slabs_behave_like_memory() {
        let folder = tempfile::tempdir().unwrap();
        let slabs = make(&ReclaimTo::Disk(folder.path().into()), false, 2).unwrap();
        slabs[1].write(4090, b"on disk");
        let mut back = [0; 7];
        slabs[1].read(4090, &mut back);
        assert_eq!(&back, b"on disk");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
    }
}
