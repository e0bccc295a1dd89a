//! Tests of QPair sockets over rings and udp: blocking, polled and as futures.

use std::future::Future;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::common::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use venice_fabric::{CloseReason, LinkModel, QPairError, RejectReason};
use venice_ports::PortError;
use venice_ports::qpair::{
    QPairAddress, QPairListener, QPairMessages, QPairOptions, QPairSocketError, QPairStream,
};

const SERVICE: u32 = 7;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// A listener and its address, for rings and for udp.
struct Place {
    listener: QPairListener,
    address: QPairAddress,
    _dir: tempfile::TempDir,
}

fn ring() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::ring(dir.path().join("qpair.sock"));
    Place { listener: QPairListener::bind(&address, SERVICE).unwrap(), address, _dir: dir }
}

fn emulated() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::emulated(dir.path().join("qpair.sock"), LinkModel::PAPER);
    Place { listener: QPairListener::bind(&address, SERVICE).unwrap(), address, _dir: dir }
}

fn udp() -> Place {
    let any = QPairAddress::plain_udp("127.0.0.1:0".parse().unwrap());
    let listener = QPairListener::bind(&any, SERVICE).unwrap();
    let address = QPairAddress::plain_udp(listener.local_addr().unwrap());
    Place { listener, address, _dir: tempfile::tempdir().unwrap() }
}

fn connect(address: &QPairAddress) -> QPairMessages {
    let socket = QPairMessages::connect(address, SERVICE, &QPairOptions::default()).unwrap();
    socket.set_timeout(PATIENCE);
    socket
}

/// Draws a message of any length.
fn message(random: &mut Random) -> Vec<u8> {
    let longest = if random.below(20) == 0 { 60_000 } else { 300 };
    let len = 1 + random.below(longest) as usize;
    let first = random.below(256);
    (0..len).map(|at| (first + at as u64) as u8).collect()
}

/// Echoes messages to several concurrent clients.
fn echo(place: Place, clients: u64, messages: u64) {
    let Place { listener, address, _dir } = place;
    std::thread::scope(|scope| {
        for seed in 0..clients {
            let address = &address;
            scope.spawn(move || {
                let socket = connect(address);
                let (mut sent, mut awaited) = (Random(seed), Random(seed));
                let mut buffer = vec![0; 1 << 17];
                for number in 0..messages + 8 {
                    // Up to eight outstanding.
                    if number < messages {
                        socket.send(&message(&mut sent)).unwrap();
                    }
                    if number >= 8 {
                        let len = socket.recv(&mut buffer).unwrap();
                        assert!(buffer[..len] == message(&mut awaited), "client {seed}");
                    }
                }
            });
        }
        for _ in 0..clients {
            let socket = listener.accept_messages(PATIENCE).unwrap();
            scope.spawn(move || {
                socket.set_timeout(PATIENCE);
                let mut buffer = vec![0; 1 << 17];
                loop {
                    match socket.recv(&mut buffer) {
                        Ok(0) | Err(QPairSocketError::Closed) => break,
                        Err(QPairSocketError::QPair(QPairError::Closed(reason))) => {
                            assert_eq!(reason, CloseReason::PeerClosed);
                            break;
                        }
                        Ok(len) => socket.send(&buffer[..len]).unwrap(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
}

#[test]
fn messages_over_rings() {
    echo(ring(), 4, 2000);
}

#[test]
fn messages_over_an_emulated_link() {
    echo(emulated(), 1, 500);
}

#[test]
fn messages_over_udp() {
    echo(udp(), 4, 500);
}

/// Sends megabytes one way, then the end, then an answer the other way.
fn stream(place: Place) {
    const BYTES: usize = 5 << 20;
    let Place { listener, address, _dir } = place;
    let reader = std::thread::spawn(move || {
        let mut socket = listener.accept_stream(PATIENCE).unwrap();
        socket.set_timeout(PATIENCE);
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        let sum: u64 = all.iter().map(|&byte| u64::from(byte)).sum();
        socket.write_all(&sum.to_le_bytes()).unwrap();
        all.len()
    });
    let mut socket = QPairStream::connect(&address, SERVICE, &QPairOptions::default()).unwrap();
    socket.set_timeout(PATIENCE);
    let bytes = Random(5).bytes(BYTES);
    for piece in bytes.chunks(77_777) {
        socket.write_all(piece).unwrap();
    }
    socket.shutdown().unwrap();
    let mut sum = [0; 8];
    socket.read_exact(&mut sum).unwrap();
    let expected: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
    assert_eq!(u64::from_le_bytes(sum), expected);
    assert_eq!(reader.join().unwrap(), BYTES);
}

#[test]
fn stream_over_rings() {
    stream(ring());
}

#[test]
fn stream_over_udp() {
    stream(udp());
}

/// Connects to a service without a listener.
fn refused(place: &mut Place) {
    let address = place.address.clone();
    let asking = std::thread::spawn(move || {
        QPairMessages::connect(&address, SERVICE + 1, &QPairOptions::default())
    });
    let short = Some(Duration::from_millis(10));
    while !asking.is_finished() {
        let accepted = place.listener.accept_messages(short);
        assert!(matches!(accepted, Err(QPairSocketError::TimedOut)));
    }
    let error = asking.join().unwrap().unwrap_err();
    let reason = CloseReason::Refused(RejectReason::NoListener);
    let expected = QPairError::Closed(reason);
    assert!(matches!(error, QPairSocketError::QPair(error) if error == expected), "{error}");
}

#[test]
fn unknown_service_is_refused() {
    refused(&mut ring());
    refused(&mut udp());
}

/// Callers that never request a QPair; the newest connections stay open.
fn stay_silent(path: &std::path::Path, stop: &AtomicBool) {
    let address = SocketAddrUnix::new(path).unwrap();
    let mut open = std::collections::VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)
                .unwrap();
        // The backlog may be full.
        match rustix::net::connect(&socket, &address) {
            Ok(()) => open.push_back(socket),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        if open.len() > 200 {
            open.pop_front();
        }
    }
}

#[test]
fn silent_callers_give_way() {
    let Place { mut listener, address, _dir } = ring();
    listener.set_max_waiting(16);
    let path = _dir.path().join("qpair.sock");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| stay_silent(&path, &stop));
        let connecting = scope.spawn(|| {
            // A connection that comes too late to its request is closed: a newer one may be faster.
            (0..100).find_map(|_| {
                QPairMessages::connect(&address, SERVICE, &QPairOptions::default()).ok()
            })
        });
        let accepted = listener.accept_messages(PATIENCE);
        stop.store(true, Ordering::Relaxed);
        assert!(accepted.is_ok(), "{accepted:?}");
        assert!(connecting.join().unwrap().is_some());
    });
}

#[test]
fn only_admitted_callers_connect() {
    let Place { mut listener, address, _dir } = ring();
    listener.set_admission(|shown| shown == b"password");
    let asking = std::thread::spawn(move || {
        let options = QPairOptions::default();
        let ask = |shown| QPairMessages::connect_admitted(&address, SERVICE, &options, shown);
        for wrong in [&b"pass"[..], &[b'x'; 65], b"password "] {
            let refused = ask(wrong).unwrap_err();
            assert!(matches!(refused, QPairSocketError::Port(PortError::Refused { .. })));
        }
        ask(b"password").unwrap()
    });
    listener.accept_messages(PATIENCE).unwrap();
    asking.join().unwrap();
}

#[test]
fn unanswered_caller_times_out() {
    let place = ring();
    let options = QPairOptions::default();
    let error = QPairMessages::connect(&place.address, SERVICE, &options).unwrap_err();
    assert!(matches!(error, QPairSocketError::TimedOut), "{error}");
}

#[test]
fn call_respects_timeout() {
    let Place { listener, address, _dir } = ring();
    let connecting = std::thread::spawn(move || connect(&address));
    let theirs = listener.accept_messages(PATIENCE).unwrap();
    let ours = connecting.join().unwrap();
    assert!(matches!(ours.try_recv(&mut [0; 9]), Err(QPairSocketError::WouldBlock)));
    ours.set_timeout(Some(Duration::from_millis(20)));
    assert!(matches!(ours.recv(&mut [0; 9]), Err(QPairSocketError::TimedOut)));
    // The other side reads nothing: eventually there is no room.
    let error = loop {
        if let Err(error) = ours.send(&[1; 4000]) {
            break error;
        }
    };
    assert!(matches!(error, QPairSocketError::TimedOut), "{error}");
    drop(theirs);
    ours.set_timeout(PATIENCE);
    let error = loop {
        if let Err(error) = ours.send(&[1; 4000]) {
            break error;
        }
    };
    assert!(!matches!(error, QPairSocketError::TimedOut), "{error}");
}

/// Polls the descriptor instead of blocking.
fn polled(place: Place) {
    let Place { listener, address, _dir } = place;
    let sender = std::thread::spawn(move || {
        let socket = connect(&address);
        for number in 0..200u32 {
            socket.send(&number.to_le_bytes()).unwrap();
            if number % 10 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4);
    });
    let socket = listener.accept_messages(PATIENCE).unwrap();
    let (mut number, mut buffer) = (0u32, [0; 8]);
    while number < 200 {
        match socket.try_recv(&mut buffer) {
            Ok(len) => {
                assert_eq!(buffer[..len], number.to_le_bytes());
                number += 1;
            }
            Err(QPairSocketError::WouldBlock) => {
                if socket.arm() {
                    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
                    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
                    assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "nothing came");
                }
                socket.attend();
            }
            Err(error) => panic!("{error}"),
        }
    }
    socket.try_send(b"done").unwrap();
    sender.join().unwrap();
}

#[test]
fn polls_descriptor_over_rings() {
    polled(ring());
}

#[test]
fn polls_descriptor_over_udp() {
    polled(udp());
}

/// True if `socket` becomes readable.
fn is_readable(socket: &QPairMessages) -> bool {
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// All sockets accepted from one UDP address share its descriptors: frames that one of them takes
/// in for another wake that one.
#[test]
fn shared_arrivals_wake_every_socket() {
    let Place { listener, address, _dir } = udp();
    let connecting = std::thread::spawn(move || [connect(&address), connect(&address)]);
    let first = listener.accept_messages(PATIENCE).unwrap();
    let second = listener.accept_messages(PATIENCE).unwrap();
    let [to_first, _to_second] = connecting.join().unwrap();
    let mut buffer = [0; 8];
    for is_armed in [false, true] {
        assert!(matches!(first.try_recv(&mut buffer), Err(QPairSocketError::WouldBlock)));
        while is_armed && !first.arm() {}
        to_first.send(b"hello").unwrap();
        // The other socket takes in frames until that one's message has come.
        let mut is_here = false;
        while !is_here {
            if second.arm() {
                assert!(is_readable(&second), "nothing came");
            }
            second.attend();
            is_here = first
                .try_recv(&mut [])
                .is_err_and(|error| !matches!(error, QPairSocketError::WouldBlock));
        }
        if is_armed {
            assert!(is_readable(&first), "the arrival does not wake it");
            first.attend();
        } else {
            assert!(!first.arm(), "it would sleep despite a waiting message");
        }
        assert_eq!(first.try_recv(&mut buffer).unwrap(), 5);
    }
}

/// A sent message arrives even if its datagrams are lost and the socket is dropped at once.
#[test]
fn sent_message_outlives_socket() {
    let Place { listener, address, _dir } = udp();
    let QPairAddress::Udp { address: behind, .. } = address else { unreachable!() };
    // A proxy between the two drops datagrams on command.
    let between = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = QPairAddress::plain_udp(between.local_addr().unwrap());
    between.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (losses, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut caller, mut buffer) = (None, [0; 1 << 16]);
            while !is_over.load(Ordering::Relaxed) {
                let Ok((len, from)) = between.recv_from(&mut buffer) else { continue };
                let to = if from == behind { caller } else { Some(behind) };
                if from != behind {
                    caller = Some(from);
                    let lose = |left: u32| left.checked_sub(1);
                    let order = Ordering::Relaxed;
                    if losses.fetch_update(order, order, lose).is_ok() {
                        continue;
                    }
                }
                let _ = to.map(|to| between.send_to(&buffer[..len], to));
            }
        });
        let asking = scope.spawn(|| connect(&address));
        let theirs = listener.accept_messages(PATIENCE).unwrap();
        let ours = asking.join().unwrap();
        losses.store(3, Ordering::Relaxed);
        ours.send(b"last").unwrap();
        drop(ours);
        theirs.set_timeout(PATIENCE);
        let received = theirs.recv(&mut [0; 8]);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(received.unwrap(), 4);
    });
}

/// Minimal executor.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(60)),
        }
    }
}

fn tasks(place: Place) {
    let Place { listener, address, _dir } = place;
    let echo = std::thread::spawn(move || {
        let socket = listener.accept_messages(PATIENCE).unwrap();
        block_on(async {
            let mut buffer = [0; 5000];
            while let Ok(len @ 1..) = socket.recv_async(&mut buffer).await {
                socket.send_async(&buffer[..len]).await.unwrap();
            }
        });
    });
    let socket = connect(&address);
    block_on(async {
        let mut buffer = [0; 5000];
        for number in 0..300u32 {
            socket.send_async(&[number as u8; 4000]).await.unwrap();
            let len = socket.recv_async(&mut buffer).await.unwrap();
            assert_eq!(buffer[..len], [number as u8; 4000]);
        }
        socket.shutdown().unwrap();
    });
    echo.join().unwrap();
}

#[test]
fn futures_over_rings() {
    tasks(ring());
}

#[test]
fn futures_over_udp() {
    tasks(udp());
}

/// Sends `count` messages that name sender and number, in the way that the sender's number chooses:
/// blocking, with a time-out that passes in the middle of messages, polled, or as a task.
fn send_numbered(socket: &QPairMessages, sender: u8, count: u8, len: usize) -> u8 {
    for number in 0..count {
        let mut message = vec![number; len];
        message[0] = sender;
        loop {
            let sent = match sender % 3 {
                0 => socket.send(&message),
                1 => block_on(socket.send_async(&message)),
                _ => socket.try_send(&message),
            };
            match sent {
                Ok(()) => break,
                Err(QPairSocketError::TimedOut | QPairSocketError::WouldBlock) => {
                    std::thread::yield_now();
                }
                Err(QPairSocketError::QPair(QPairError::Ended)) => return number,
                Err(error) => panic!("sender {sender}: {error}"),
            }
        }
    }
    count
}

/// Receives until the end; returns the number of messages of each sender.
fn receive_numbered(socket: &QPairMessages, mut on_message: impl FnMut(usize)) -> [u8; 3] {
    let (mut counts, mut into) = ([0; 3], vec![0; 1 << 21]);
    loop {
        let len = socket.recv(&mut into).unwrap();
        if len == 0 {
            return counts;
        }
        let sender = usize::from(into[0]);
        assert!(into[1..len].iter().all(|&byte| byte == counts[sender]), "sender {sender}");
        counts[sender] += 1;
        on_message(counts.iter().map(|&count| usize::from(count)).sum());
    }
}

fn many_senders(place: Place, len: usize) {
    const EACH: u8 = 40;
    for timeout in [PATIENCE, Some(Duration::from_micros(300))] {
        for end_at in [None, Some(5), Some(17)] {
            let address = place.address.clone();
            let ours = std::thread::spawn(move || connect(&address));
            let theirs = place.listener.accept_messages(PATIENCE).unwrap();
            let ours = ours.join().unwrap();
            ours.set_timeout(timeout);
            theirs.set_timeout(PATIENCE);
            let (ours, ends) = (&ours, std::sync::mpsc::channel());
            std::thread::scope(|scope| {
                let senders =
                    [0, 1, 2].map(|id| scope.spawn(move || send_numbered(ours, id, EACH, len)));
                let receiving = scope.spawn(|| {
                    receive_numbered(&theirs, |total| {
                        if Some(total) == end_at {
                            ends.0.send(()).unwrap();
                        }
                    })
                });
                if end_at.is_some() {
                    ends.1.recv().unwrap();
                    ours.shutdown().unwrap();
                }
                let sent = senders.map(|sender| sender.join().unwrap());
                if end_at.is_none() {
                    assert_eq!(sent, [EACH; 3]);
                    ours.shutdown().unwrap();
                }
                assert_eq!(receiving.join().unwrap(), sent);
            });
        }
    }
}

#[test]
fn many_senders_over_rings() {
    many_senders(ring(), 1 << 20);
}

#[test]
fn many_senders_over_emulated_link() {
    many_senders(emulated(), 50_000);
}

#[test]
fn many_senders_over_udp() {
    many_senders(udp(), 50_000);
}

/// Polls once for `wait`; returns true if the listener's descriptor is readable.
fn has_request(listener: &QPairListener, wait: Duration) -> bool {
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    poll(&mut [PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

/// Threads that wait in an accept hold no other call up, and leave a poller its wake-up.
fn accepting_threads(place: &Place) {
    let (listener, zero) = (&place.listener, Some(Duration::ZERO));
    for round in 0..20 {
        std::thread::scope(|scope| {
            let accepting =
                [0, 1].map(|_| scope.spawn(move || listener.accept_messages(PATIENCE).unwrap()));
            std::thread::sleep(Duration::from_millis(round % 3));
            let nothing = listener.accept_messages(zero);
            assert!(matches!(nothing, Err(QPairSocketError::TimedOut)), "{nothing:?}");
            let polling = scope.spawn(move || {
                loop {
                    listener.attend();
                    match listener.accept_messages(zero) {
                        Err(QPairSocketError::TimedOut) if listener.arm() => {
                            assert!(has_request(listener, PATIENCE.unwrap()), "no wake-up");
                        }
                        Err(QPairSocketError::TimedOut) => {}
                        accepted => break accepted.unwrap(),
                    }
                }
            });
            let callers = [0, 1, 2].map(|_| scope.spawn(|| connect(&place.address)));
            let _accepted = accepting.map(|accepted| accepted.join().unwrap());
            let _polled = polling.join().unwrap();
            let _callers = callers.map(|caller| caller.join().unwrap());
        });
    }
}

#[test]
fn accepting_threads_over_rings() {
    accepting_threads(&ring());
}

#[test]
fn accepting_threads_over_emulated_link() {
    accepting_threads(&emulated());
}

#[test]
fn accepting_threads_over_udp() {
    accepting_threads(&udp());
}
