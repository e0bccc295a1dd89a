//! Tests of forked children: a child cannot seal with its parent's objects (both would continue
//! from the same nonce), and closes none of them.

use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use venice_fabric::{InitiatorConfig, PeerState};
use venice_ports::qpair::{
    QPairAddress, QPairListener, QPairMessages, QPairOptions, QPairSocketError,
};
use venice_ports::ring::{RingConfig, RingDriver, RingPort};
use venice_ports::seal::{SealedAs, Sealer, node_key};
use venice_ports::udp::UdpDriver;
use venice_ports::{PortError, monotonic_ns};
use venice_wire::{GrantId, KeyName, NodeId, NodeSecret, SEAL_OVERHEAD_BYTES};

/// Returns the exit status of a child that runs `what`, which must neither allocate nor panic:
/// other threads of the parent may have been anywhere.
fn status_of_child(what: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls nothing but `what`, and ends.
    match unsafe { libc::fork() } {
        -1 => panic!("cannot fork"),
        // SAFETY: it ends the process; no other thread of it runs.
        0 => unsafe { libc::_exit(what()) },
        child => {
            let mut status = 0;
            // SAFETY: `status` lives until the call returns.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn forked_child_cannot_seal_or_send() {
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
        // A sealer of the child's own works, and is not its parent's, whose mark the kernel has
        // wiped.
        let Ok(mut own) = Sealer::new(name, &key) else { return 100 };
        let works = own.seal(&mut datagram, 5).is_ok() && own.salt() != sealer.salt();
        let still = matches!(sealer.seal(&mut datagram, 5), Err(PortError::Forked));
        let outcomes = [refused, untouched, sealed, plain, works, still];
        outcomes.iter().position(|fine| !fine).map_or(0, |at| at as i32 + 1)
    });
    assert_eq!(status, 0, "index of the child's wrong outcome");
    sealer.seal(&mut datagram, 5).unwrap();
    sealed.pump(monotonic_ns()).unwrap();
    plain.pump(monotonic_ns()).unwrap();
}

#[test]
fn drop_in_child_keeps_parent_socket() {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::ring(dir.path().join("qpair.sock"));
    let listener = QPairListener::bind(&address, 7).unwrap();
    let connecting =
        std::thread::spawn(move || QPairMessages::connect(&address, 7, &QPairOptions::default()));
    let minute = Some(Duration::from_secs(60));
    let theirs = listener.accept_messages(minute).unwrap();
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

/// The child's copies of a socket and its listener are unusable. Those that it makes itself work,
/// served by a thread of the child.
#[test]
fn forked_child_uses_own_sockets_only() {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::ring(dir.path().join("qpair.sock"));
    let minute = Some(Duration::from_secs(60));
    let listener = QPairListener::bind(&address, 7).unwrap();
    let mut listener = ManuallyDrop::new(listener);
    let connect = || QPairMessages::connect(&address, 7, &QPairOptions::default());
    let (ours, theirs) = std::thread::scope(|scope| {
        let connecting = scope.spawn(connect);
        let theirs = listener.accept_messages(minute).unwrap();
        (connecting.join().unwrap().unwrap(), theirs)
    });
    let (mut ours, mut theirs) = (ManuallyDrop::new(ours), ManuallyDrop::new(theirs));
    let own_path = dir.path().join("own.sock");
    let status = status_of_child(|| {
        let dead = |outcome| matches!(outcome, Err(QPairSocketError::Port(PortError::Forked)));
        let mut outcomes = vec![
            dead(ours.send(b"child")),
            dead(theirs.try_recv(&mut [0; 8]).map(|_| ())),
            dead(listener.accept_messages(Some(Duration::ZERO)).map(drop)),
            !ours.arm(),
        ];
        ours.attend();
        // SAFETY: the child's copies, which it does not use any more.
        unsafe {
            ManuallyDrop::drop(&mut ours);
            ManuallyDrop::drop(&mut theirs);
            ManuallyDrop::drop(&mut listener);
        }
        outcomes.push(dir.path().join("qpair.sock").exists());
        outcomes.push(delivers_own_message(&QPairAddress::ring(&own_path)));
        outcomes
            .push(delivers_own_message(&QPairAddress::plain_udp("127.0.0.1:0".parse().unwrap())));
        outcomes.iter().position(|fine| !fine).map_or(0, |at| at as i32 + 1)
    });
    assert_eq!(status, 0, "index of the child's wrong outcome");
    ours.send(b"parent").unwrap();
    theirs.set_timeout(minute);
    assert_eq!(theirs.recv(&mut [0; 16]).unwrap(), 6);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(connect);
        let _theirs = listener.accept_messages(minute).unwrap();
        connecting.join().unwrap().unwrap();
    });
    drop((ManuallyDrop::into_inner(ours), ManuallyDrop::into_inner(theirs)));
    drop(ManuallyDrop::into_inner(listener));
}

/// A thread that accepts in the parent holds no call of the child up.
#[test]
fn child_waits_for_no_accept() {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::ring(dir.path().join("qpair.sock"));
    let listener = QPairListener::bind(&address, 7).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = listener.accept_messages(Some(Duration::from_millis(1)));
            }
        });
        for _ in 0..100 {
            let status = status_of_child(|| {
                listener.attend();
                let dead = listener.accept_messages(None).map(drop);
                let is_dead = matches!(dead, Err(QPairSocketError::Port(PortError::Forked)));
                i32::from(!is_dead || listener.arm())
            });
            assert_eq!(status, 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Sends a message between both ends of a QPair in this process. The receiver sleeps as a task
/// does, and only the keeper thread wakes it.
fn delivers_own_message(address: &QPairAddress) -> bool {
    let minute = Some(Duration::from_secs(60));
    let Ok(listener) = QPairListener::bind(address, 7) else { return false };
    let address = match listener.local_addr() {
        Some(local) => QPairAddress::plain_udp(local),
        None => address.clone(),
    };
    let connecting =
        std::thread::spawn(move || QPairMessages::connect(&address, 7, &QPairOptions::default()));
    let Ok(theirs) = listener.accept_messages(minute) else { return false };
    let Ok(Ok(ours)) = connecting.join() else { return false };
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut buffer = [0; 8];
    if theirs.poll_recv(&mut context, &mut buffer).is_ready() || ours.send(b"own").is_err() {
        return false;
    }
    let begin = Instant::now();
    loop {
        while !woken.0.swap(false, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            if begin.elapsed() > Duration::from_secs(20) {
                return false;
            }
        }
        if theirs.poll_recv(&mut context, &mut buffer).is_ready() {
            return &buffer[..3] == b"own";
        }
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn forked_child_cannot_use_parent_rings() {
    let (near, _far) = RingPort::pair(&RingConfig::default()).unwrap();
    let mut driver = RingDriver::new(InitiatorConfig::new(NodeId(1), 1)).unwrap();
    let peer = driver.add_peer(monotonic_ns(), NodeId(2), near).unwrap();
    let status = status_of_child(|| {
        let pumped = matches!(driver.pump(monotonic_ns()), Err(PortError::Forked));
        let waited = matches!(driver.wait(u64::MAX), Err(PortError::Forked));
        let outcomes = [pumped, waited, !driver.prepare_wait()];
        outcomes.iter().position(|fine| !fine).map_or(0, |at| at as i32 + 1)
    });
    assert_eq!(status, 0, "index of the child's wrong outcome");
    driver.pump(monotonic_ns()).unwrap();
    assert!(!matches!(driver.initiator().peer_state(peer), PeerState::Down { .. }));
}
