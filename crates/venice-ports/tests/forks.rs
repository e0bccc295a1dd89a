//! A forked child seals nothing with what it has of its parent (both would count on from the same
//! place), and closes nothing of it.

use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, SocketAddr};

use venice_fabric::InitiatorConfig;
use venice_ports::qpair::{QPairAddress, QPairListener, QPairMessages, QPairOptions};
use venice_ports::seal::{SealedAs, Sealer, node_key};
use venice_ports::udp::UdpDriver;
use venice_ports::{PortError, monotonic_ns};
use venice_wire::{GrantId, KeyName, NodeId, NodeSecret, SEAL_OVERHEAD_BYTES};

/// The exit status of a child that does `what`, which must neither allocate nor panic: other
/// threads of the parent may have been anywhere.
fn status_of_child(what: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls nothing but `what`, and ends.
    match unsafe { libc::fork() } {
        -1 => panic!("cannot fork"),
        // SAFETY: it ends the process, and nothing of it runs any more.
        0 => unsafe { libc::_exit(what()) },
        child => {
            let mut status = 0;
            // SAFETY: `status` lives until the call is over.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_forked_child_seals_and_sends_nothing_of_its_parents() {
    let name = KeyName::Grant(GrantId(3));
    let key = node_key(&NodeSecret([3; 32]), name);
    let mut sealer = Sealer::new(name, &key).unwrap();
    let mut datagram = [0; 5 + SEAL_OVERHEAD_BYTES];
    sealer.seal(&mut datagram, 5).unwrap();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = InitiatorConfig::new(NodeId(1), 1);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    let named = SealedAs { name, key };
    let (mut sealed, _) =
        UdpDriver::towards(local, config.clone(), NodeId(2), to, Some(named)).unwrap();
    let (mut plain, _) = UdpDriver::towards(local, config, NodeId(2), to, None).unwrap();

    let status = status_of_child(|| {
        let before = datagram;
        let refused = matches!(sealer.seal(&mut datagram, 5), Err(PortError::Forked));
        let untouched = datagram == before;
        let sealed = matches!(sealed.pump(monotonic_ns()), Err(PortError::Forked));
        let plain = matches!(plain.pump(monotonic_ns()), Err(PortError::Forked));
        // What it makes itself is good, and not its parent's, whose mark the kernel has wiped.
        let Ok(mut own) = Sealer::new(name, &key) else { return 100 };
        let works = own.seal(&mut datagram, 5).is_ok() && own.salt() != sealer.salt();
        let still = matches!(sealer.seal(&mut datagram, 5), Err(PortError::Forked));
        let outcomes = [refused, untouched, sealed, plain, works, still];
        outcomes.iter().position(|fine| !fine).map_or(0, |at| at as i32 + 1)
    });
    assert_eq!(status, 0, "which of the child's outcomes is wrong");
    sealer.seal(&mut datagram, 5).unwrap();
    sealed.pump(monotonic_ns()).unwrap();
    plain.pump(monotonic_ns()).unwrap();
}

#[test]
fn a_forked_child_that_drops_a_socket_does_not_close_its_parents() {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::ring(dir.path().join("qpair.sock"));
    let mut listener = QPairListener::bind(&address, 7).unwrap();
    let connecting =
        std::thread::spawn(move || QPairMessages::connect(&address, 7, &QPairOptions::default()));
    let minute = Some(std::time::Duration::from_secs(60));
    let mut theirs = listener.accept_messages(minute).unwrap();
    theirs.set_timeout(minute);
    let mut ours = ManuallyDrop::new(connecting.join().unwrap().unwrap());
    let status = status_of_child(|| {
        // SAFETY: the child's copy, which it does not use any more.
        unsafe { ManuallyDrop::drop(&mut ours) };
        0
    });
    assert_eq!(status, 0);
    ours.send(b"still here").unwrap();
    assert_eq!(theirs.recv(&mut [0; 16]).unwrap(), 10);
    drop(ManuallyDrop::into_inner(ours));
}
