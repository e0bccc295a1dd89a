//! Tests of a recipient and a donor over a real socket, with real memfds.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use venice_ports::PortError;
use venice_ports::shm::{MappedSlab, ShmServer, SlabBatch, SlabSource, fetch_slabs};
use venice_testkit::wait::wait_until;
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

const ID: GrantId = GrantId(7);
const KEY: GrantKey = GrantKey(0xfeed);

/// One grant of a few memfds (not locked, which makes many of them cheap).
struct OneGrant {
    fds: Vec<OwnedFd>,
}

impl OneGrant {
    fn new(slabs: usize, seals: SealFlags) -> Self {
        let fds = (0..slabs).map(|_| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = memfd_create("test-slab", flags).unwrap();
            ftruncate(&fd, SLAB_BYTES).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            fd
        });
        Self { fds: fds.collect() }
    }

    fn sealed(slabs: usize) -> Self {
        Self::new(slabs, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    }
}

impl SlabSource for OneGrant {
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        if (id, key) != (ID, KEY) {
            return Err("no such grant or wrong key".into());
        }
        let wanted = self.fds.get(first..first + count).ok_or("no such slabs")?;
        let files = wanted.iter().map(|fd| fd.try_clone().unwrap().into()).collect();
        Ok(SlabBatch { total: self.fds.len(), files })
    }
}

fn start(grant: OneGrant) -> (tempfile::TempDir, PathBuf, ShmServer) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shm.sock");
    let server = ShmServer::start(&path, grant).unwrap();
    (dir, path, server)
}

/// Waits a bounded time for `condition`.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    wait_until(what, Duration::from_secs(10), condition);
}

#[test]
fn maps_slabs_in_order() {
    let grant = OneGrant::sealed(150); // Three messages.
    let view = |fd: &OwnedFd| MappedSlab::map(&fd.try_clone().unwrap().into(), 4096).unwrap();
    let donors_view: Vec<_> = grant.fds.iter().map(view).collect();
    let (_dir, path, _server) = start(grant);

    let connection = fetch_slabs(&path, ID, KEY, 150).unwrap();
    assert_eq!(connection.slabs.len(), 150);
    assert!(!connection.is_closed());
    for (index, slab) in connection.slabs.iter().enumerate() {
        let mine = MappedSlab::map(slab, SLAB_BYTES as usize).unwrap();
        // SAFETY: both mappings are live and longer than 200 bytes; no references are formed.
        unsafe {
            mine.as_ptr().add(100).write_volatile(index as u8 + 1);
            assert_eq!(donors_view[index].as_ptr().add(100).read_volatile(), index as u8 + 1);
        }
    }
}

/// A source whose slab is in a character device.
struct InDevice;

impl SlabSource for InDevice {
    fn slabs(&self, _: GrantId, _: GrantKey, _: usize, _: usize) -> Result<SlabBatch, String> {
        let device = std::fs::File::open("/dev/null").unwrap();
        Ok(SlabBatch { total: 1, files: vec![OwnedFd::from(device).into()] })
    }
}

/// The descriptor reaches more than the slab.
#[test]
fn device_descriptor_requires_privileged_user() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shm.sock");
    let _server = ShmServer::start(&path, InDevice).unwrap();
    let own = fetch_slabs(&path, ID, KEY, 1).unwrap_err().to_string();
    assert!(own.contains("no memory"), "the descriptor arrived and was rejected here: {own}");
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: device_descriptor_requires_privileged_user: no root");
        return;
    }
    for path in [dir.path(), &path] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let others = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        // For this thread alone.
        rustix::thread::set_thread_uid(nobody).unwrap();
        fetch_slabs(&path, ID, KEY, 1).unwrap_err().to_string()
    });
    let others = others.join().unwrap();
    assert!(others.contains("--port udp"), "{others}");
}

#[test]
fn refuses_wrong_key_grant_or_count() {
    let (_dir, path, _server) = start(OneGrant::sealed(2));
    for (id, key) in [(ID, GrantKey(1)), (GrantId(8), KEY)] {
        let error = fetch_slabs(&path, id, key, 2).unwrap_err();
        assert!(
            matches!(&error, PortError::Refused { reason } if reason.contains("no such grant"))
        );
    }
    assert!(matches!(fetch_slabs(&path, ID, KEY, 1), Err(PortError::Protocol { .. })));
    assert!(matches!(fetch_slabs(&path, ID, KEY, 3), Err(PortError::Refused { .. })));
    fetch_slabs(&path, ID, KEY, 2).unwrap();
}

#[test]
fn rejects_unsealed_slab() {
    let (_dir, path, _server) = start(OneGrant::new(1, SealFlags::GROW));
    let error = fetch_slabs(&path, ID, KEY, 1).unwrap_err();
    assert!(error.to_string().contains("not sealed"), "{error}");
}

#[test]
fn detects_revocation_and_donor_death() {
    let (_dir, path, server) = start(OneGrant::sealed(1));
    let first = fetch_slabs(&path, ID, KEY, 1).unwrap();
    server.revoke(GrantId(99));
    let second = fetch_slabs(&path, ID, KEY, 1).unwrap();
    assert!(!first.is_closed() && !second.is_closed());

    server.revoke(ID);
    eventually("the revoked connections close", || first.is_closed() && second.is_closed());

    let third = fetch_slabs(&path, ID, KEY, 1).unwrap();
    drop(server);
    eventually("the dead donor's connection closes", || third.is_closed());
    assert!(matches!(fetch_slabs(&path, ID, KEY, 1), Err(PortError::NoAgent { .. })));
}

#[test]
fn invalid_client_disturbs_no_other() {
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket,
    };
    let (_dir, path, _server) = start(OneGrant::sealed(1));
    let nonsense = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&nonsense, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    send(&nonsense, &[0xa5; 300], SendFlags::NOSIGNAL).unwrap();
    let silent = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&silent, &SocketAddrUnix::new(&path).unwrap()).unwrap();

    fetch_slabs(&path, ID, KEY, 1).unwrap();
}
