//! Channels between programs: each kind, over each port that this machine has.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use venice_client::channel::{
    Address, Connection, Error, Key, Kind, LentRegion, Listener, Options, RemoteRegion,
};
use venice_testkit::guest::{GuestPlan, Room, inside};
use venice_testkit::own_test::this_program;
use venice_wire::SLAB_BYTES;

const PATIENCE: Duration = Duration::from_secs(60);

/// An address on each port, with the options for it.
fn places(dir: &tempfile::TempDir) -> Vec<(Address, Options)> {
    let mut sealed = Options::default();
    sealed.key = Some(Key::generate().unwrap());
    let mut plain = Options::default();
    plain.plain = true;
    let udp = || "udp:127.0.0.1:0".parse().unwrap();
    vec![
        (Address::shm(dir.path().join("channel.sock")), Options::default()),
        (udp(), sealed),
        (udp(), plain),
    ]
}

/// Joins both ends: the connecting one first.
fn pair(address: &Address, kind: Kind, options: Options) -> (Connection, Connection) {
    let listener = Listener::bind(address, kind, &options).unwrap();
    let address = listener.address().clone();
    let connecting = thread::spawn(move || Connection::connect(&address, kind, &options).unwrap());
    let theirs = listener.accept(Some(PATIENCE)).unwrap();
    let ours = connecting.join().unwrap();
    ours.set_timeout(Some(PATIENCE));
    theirs.set_timeout(Some(PATIENCE));
    (ours, theirs)
}

#[test]
fn messages_arrive_whole() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in places(&dir) {
        let (ours, theirs) = pair(&address, Kind::Messages, options);
        let echo = thread::spawn(move || {
            while let Some(message) = theirs.recv_vec().unwrap() {
                theirs.send(&message).unwrap();
            }
        });
        let longest: u32 = if address.capabilities().leaves_machine { 200_000 } else { 5_000_000 };
        for len in [1, 64, 4096, 5000, 100_000, longest] {
            let message: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
            ours.send(&message).unwrap();
            assert_eq!(ours.recv_vec().unwrap().unwrap(), message, "{address}: {len} bytes");
        }
        ours.shutdown().unwrap();
        assert_eq!(ours.recv_vec().unwrap(), None, "{address}: the end");
        echo.join().unwrap();
    }
}

#[test]
fn streams_deliver_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [Kind::Stream, Kind::Adaptive] {
        for (address, options) in places(&dir) {
            let (mut ours, mut theirs) = pair(&address, kind, options);
            let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 253) as u8).collect();
            let sent = bytes.clone();
            let writing = thread::spawn(move || {
                ours.write_all(&sent).unwrap();
                ours.flush().unwrap();
                ours.shutdown().unwrap();
                ours
            });
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).unwrap();
            assert!(read == bytes, "{address} {kind:?}: {} bytes", read.len());
            let ours = writing.join().unwrap();
            assert_eq!(ours.segments().is_ok(), kind == Kind::Adaptive);
        }
    }
}

#[test]
fn futures_need_no_reactor() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for (address, options) in places(&dir) {
        for kind in [Kind::Messages, Kind::Stream, Kind::Adaptive] {
            let (ours, theirs) = pair(&address, kind, options);
            runtime.block_on(async {
                let sending = tokio::spawn(async move {
                    for number in 0..200u8 {
                        match kind {
                            Kind::Messages => ours.send_async(&[number; 3000]).await.unwrap(),
                            Kind::Stream | Kind::Adaptive => {
                                let mut at = 0;
                                while at < 3000 {
                                    at += ours.write_async(&vec![number; 3000 - at]).await.unwrap();
                                }
                            }
                        }
                    }
                    ours.shutdown().unwrap();
                    ours
                });
                let (mut total, mut buffer) = (0, [0; 4096]);
                loop {
                    let received = match kind {
                        Kind::Messages => theirs.recv_async(&mut buffer).await.unwrap(),
                        Kind::Stream | Kind::Adaptive => {
                            theirs.read_async(&mut buffer).await.unwrap()
                        }
                    };
                    for (at, byte) in buffer[..received].iter().enumerate() {
                        assert_eq!(usize::from(*byte), (total + at) / 3000, "{address} {kind:?}");
                    }
                    total += received;
                    if received == 0 {
                        break;
                    }
                }
                assert_eq!(total, 600_000, "{address} {kind:?}");
                sending.await.unwrap();
            });
        }
    }
}

#[test]
fn wrong_call_names_kind() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::shm(dir.path().join("kind.sock"));
    let (stream, _theirs) = pair(&address, Kind::Stream, Options::default());
    let said = stream.send(b"x").unwrap_err();
    assert!(matches!(said, Error::WrongKind { call: "send", .. }), "{said}");
    let (messages, _theirs) = pair(&address, Kind::Messages, Options::default());
    assert!(matches!(messages.try_read(&mut [0]), Err(Error::WrongKind { .. })));
    let long = vec![0; 8 << 20];
    let (udp, _theirs) = pair(&"udp:127.0.0.1:0".parse().unwrap(), Kind::Messages, plain());
    let said = udp.send(&long).unwrap_err().to_string();
    assert!(said.contains("raise the buffer"), "{said}");
    assert!(matches!(messages.send(&[]), Err(Error::Empty)));
}

fn plain() -> Options {
    let mut options = Options::default();
    options.plain = true;
    options
}

#[test]
fn failed_connection_names_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = Address::shm(dir.path().join("nowhere.sock"));
    let connect = |address: &Address, kind, options: &Options| {
        Connection::connect(address, kind, options).unwrap_err().to_string()
    };
    let said = connect(&nowhere, Kind::Messages, &Options::default());
    assert!(said.contains("start the listening one"), "{said}");

    let listener = Listener::bind(&nowhere, Kind::Messages, &Options::default()).unwrap();
    for kind in [Kind::Stream, Kind::Adaptive] {
        thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept(Some(Duration::from_secs(1))));
            let said = connect(&nowhere, kind, &Options::default());
            assert!(said.contains("another kind"), "{said}");
            assert_eq!(accepting.join().unwrap().unwrap_err(), Error::TimedOut);
        });
    }
    let said = Listener::bind(&nowhere, Kind::Stream, &Options::default()).unwrap_err();
    assert!(said.to_string().contains("another program"), "{said}");

    let udp: Address = "udp:127.0.0.1:9".parse().unwrap();
    let said = connect(&udp, Kind::Messages, &Options::default());
    assert!(said.contains("the same key"), "{said}");
    let verbs: Address = "verbs:127.0.0.1:9".parse().unwrap();
    let said = connect(&verbs, Kind::Messages, &plain());
    assert!(said.contains("use shm: or udp:"), "{said}");
    let said = LentRegion::bind(&verbs, 1, &Options::default()).unwrap_err().to_string();
    assert!(said.contains("use udp with a key"), "{said}");
}

#[test]
fn failed_region_names_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in sealed_and_local(&dir) {
        let listener = Listener::bind(&address, Kind::Messages, &options).unwrap();
        thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept(Some(Duration::from_secs(1))));
            let said = RemoteRegion::connect(listener.address(), SLAB_BYTES, &options).unwrap_err();
            assert!(said.to_string().contains("carries messages, not lent memory"), "{said}");
            assert_eq!(accepting.join().unwrap().unwrap_err(), Error::TimedOut);
        });
        let mut hasty = options;
        hasty.connect_timeout = Duration::from_millis(100);
        let said = Connection::connect(listener.address(), Kind::Messages, &hasty).unwrap_err();
        assert!(said.to_string().contains("accept"), "{said}");
        drop(listener);
        let lent = LentRegion::bind(&address, SLAB_BYTES, &options).unwrap();
        let said = RemoteRegion::connect(lent.address(), 2 * SLAB_BYTES, &options).unwrap_err();
        let said = said.to_string();
        assert!(said.contains("has only 16 MiB") || said.contains("lends less than"), "{said}");
        assert!(said.matches("refused").count() <= 1, "{said}");
    }
}

#[test]
fn wrong_key_is_not_answered() {
    let keyed = || {
        let mut options = Options::default();
        options.key = Some(Key::generate().unwrap());
        options
    };
    let address = "udp:127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&address, Kind::Messages, &keyed()).unwrap();
    let mut asking = keyed();
    asking.connect_timeout = Duration::from_millis(500);
    let said = Connection::connect(listener.address(), Kind::Messages, &asking).unwrap_err();
    assert!(said.to_string().contains("the same key"), "{said}");
}

#[test]
fn unused_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::shm(dir.path().join("unused.sock"));
    let (mut buffer, mut timeout) = (Options::default(), Options::default());
    buffer.buffer_bytes = 1 << 20;
    timeout.connect_timeout = Duration::from_secs(1);
    let refused = [
        ("buffer", Listener::bind(&address, Kind::Adaptive, &buffer).map(drop)),
        ("buffer", Connection::connect(&address, Kind::Adaptive, &buffer).map(drop)),
        ("buffer", LentRegion::bind(&address, SLAB_BYTES, &buffer).map(drop)),
        ("buffer", RemoteRegion::connect(&address, SLAB_BYTES, &buffer).map(drop)),
        ("connect_timeout", Listener::bind(&address, Kind::Messages, &timeout).map(drop)),
        ("connect_timeout", LentRegion::bind(&address, SLAB_BYTES, &timeout).map(drop)),
    ];
    for (named, outcome) in refused {
        let is_named =
            matches!(&outcome, Err(Error::UnusedOption { option, .. }) if *option == named);
        assert!(is_named, "{named}: {outcome:?}");
    }
}

#[test]
fn sizes_have_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::shm(dir.path().join("sizes.sock"));
    let of = |bytes| {
        let mut options = Options::default();
        options.buffer_bytes = bytes;
        options
    };
    let listen = |bytes| Listener::bind(&address, Kind::Messages, &of(bytes)).map(drop);
    let connect = |bytes| Connection::connect(&address, Kind::Stream, &of(bytes)).map(drop);
    let unset = Options::default();
    let mut refused = vec![
        LentRegion::bind(&address, 0, &unset).map(drop),
        RemoteRegion::connect(&address, 0, &unset).map(drop),
        RemoteRegion::connect(&address, SLAB_BYTES + 1, &unset).map(drop),
    ];
    for wrong in [0, 1, (4 << 10) - 1, (16 << 20) + 1, 1 << 30, u32::MAX] {
        refused.extend([listen(wrong), connect(wrong)]);
    }
    for outcome in refused {
        assert!(matches!(outcome, Err(Error::Size { .. })), "{outcome:?}");
    }
    for right in [4 << 10, 16 << 20] {
        listen(right).unwrap();
    }
}

/// Each attempt waits for a silent lender as long as its own time-out says.
#[test]
fn connect_timeout_bounds_memory() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::shm(dir.path().join("silent.sock"));
    // It never accepts.
    let silent = Listener::bind(&address, Kind::Messages, &Options::default()).unwrap();
    let connect = |timeout| {
        let (address, mut options) = (address.clone(), Options::default());
        options.connect_timeout = timeout;
        thread::spawn(move || RemoteRegion::connect(&address, SLAB_BYTES, &options).unwrap_err())
    };
    let (short, long) = (connect(Duration::from_millis(50)), connect(PATIENCE));
    let said = short.join().unwrap().to_string();
    assert!(said.contains("no answer"), "{said}");
    thread::sleep(Duration::from_millis(500));
    assert!(!long.is_finished(), "the longer one waits");
    drop(silent);
    long.join().unwrap();
}

/// Waits for input on the descriptor, as a program with a loop of its own does.
fn poll(fd: std::os::fd::BorrowedFd<'_>) {
    let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    let ready = nix::poll::poll(&mut fds, nix::poll::PollTimeout::from(10_000u16)).unwrap();
    assert_eq!(ready, 1, "the descriptor never became readable");
}

fn polled<T>(
    mut call: impl FnMut() -> Result<T, Error>,
    arm: impl Fn() -> bool,
    fd: std::os::fd::BorrowedFd<'_>,
) -> Result<T, Error> {
    loop {
        match call() {
            Err(Error::WouldBlock) if arm() => poll(fd),
            Err(Error::WouldBlock) => {}
            done => return done,
        }
    }
}

#[test]
fn descriptor_wakes_poller() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in places(&dir) {
        let listener = Listener::bind(&address, Kind::Messages, &options).unwrap();
        let at = listener.address().clone();
        let calling = thread::spawn(move || {
            let ours = Connection::connect(&at, Kind::Messages, &options).unwrap();
            for number in 0..20u8 {
                thread::sleep(Duration::from_millis(u64::from(number % 3) * 5));
                ours.send(&[number; 3000]).unwrap();
            }
            ours
        });
        let fd = std::os::fd::AsFd::as_fd(&listener).try_clone_to_owned().unwrap();
        let theirs = loop {
            match listener.try_accept() {
                Err(Error::WouldBlock) if listener.arm() => poll(std::os::fd::AsFd::as_fd(&fd)),
                Err(Error::WouldBlock) => {}
                accepted => break accepted.unwrap(),
            }
        };
        let mut buffer = [0; 4096];
        for number in 0..20u8 {
            let len = polled(|| theirs.try_recv(&mut buffer), || theirs.arm(), theirs.fd());
            assert_eq!((len, buffer[0]), (Ok(3000), number), "{address}");
        }
        drop(calling.join().unwrap());
        let end = polled(|| theirs.try_recv(&mut buffer), || theirs.arm(), theirs.fd());
        assert_eq!(end, Ok(0), "{address}: closed in an orderly way");
    }
}

#[test]
fn full_connection_wakes_sender() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in places(&dir) {
        let (ours, theirs) = pair(&address, Kind::Messages, options);
        let mut sent = 0;
        while ours.try_send(&[7; 50_000]).is_ok() {
            sent += 1;
        }
        assert!(sent > 2, "{address}: {sent}");
        let reading = thread::spawn(move || {
            (0..=sent).for_each(|_| assert_eq!(theirs.recv_vec().unwrap().unwrap().len(), 50_000));
            theirs
        });
        polled(|| ours.try_send(&[7; 50_000]), || ours.arm(), ours.fd()).unwrap();
        drop(reading.join().unwrap());
        let start = Instant::now();
        while ours.try_send(b"x").is_ok() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ours.try_send(b"x"), Err(Error::Closed), "{address}");
    }
}

#[test]
fn blocking_call_times_out() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in places(&dir) {
        let (ours, _theirs) = pair(&address, Kind::Messages, options);
        ours.set_timeout(Some(Duration::from_millis(30)));
        let start = Instant::now();
        assert_eq!(ours.recv(&mut [0; 8]), Err(Error::TimedOut), "{address}");
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}

/// A thread that reads does not hold up one that sends.
#[test]
fn two_threads_share_connection() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in places(&dir) {
        let (ours, theirs) = pair(&address, Kind::Messages, options);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(ours.recv(&mut [0; 8]).unwrap(), 4));
            thread::sleep(Duration::from_millis(20));
            ours.send(b"ping").unwrap();
            assert_eq!(theirs.recv(&mut [0; 8]).unwrap(), 4);
            theirs.send(b"pong").unwrap();
        });
    }
}

/// Each message of a random conversation arrives, whatever the lengths and who waits how.
#[test]
fn conversation_matches_model() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in places(&dir) {
        let (ours, theirs) = pair(&address, Kind::Messages, options);
        let longest: usize = if address.capabilities().leaves_machine { 200_000 } else { 900_000 };
        let len = prop_oneof![1..200usize, 3000..9000usize, 60_000..longest];
        let steps = proptest::collection::vec((len, any::<bool>()), 1..40);
        let mut runner = TestRunner::new(Config::with_cases(12));
        let outcome = runner.run(&steps, |steps| {
            thread::scope(|scope| {
                let receiving = scope.spawn(|| {
                    for (number, (len, polls)) in steps.iter().enumerate() {
                        let mut buffer = vec![0; *len];
                        let got = match polls {
                            true => polled(
                                || theirs.try_recv(&mut buffer),
                                || theirs.arm(),
                                theirs.fd(),
                            ),
                            false => theirs.recv(&mut buffer),
                        };
                        assert_eq!(got, Ok(*len), "message {number}");
                        assert!(buffer.iter().all(|byte| *byte == number as u8), "{number}");
                    }
                });
                for (number, (len, polls)) in steps.iter().enumerate() {
                    let message = vec![number as u8; *len];
                    match polls {
                        true => polled(|| ours.try_send(&message), || ours.arm(), ours.fd()),
                        false => ours.send(&message),
                    }
                    .unwrap();
                }
                receiving.join().unwrap();
            });
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{address}: {error}"));
    }
}

#[test]
fn region_is_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in places(&dir) {
        share_region(&address, options);
    }
}

/// The guest that has an RDMA device.
static RDMA_ROOM: Room = Room::new(GuestPlan {
    memory_mib: 1536,
    set_up: "ip link add venice0 type veth peer name venice1 && \
             ip addr add 10.77.0.1/24 dev venice0 && \
             ip link set venice0 up && ip link set venice1 up && \
             rdma link add rxe0 type rxe netdev venice0",
    ..GuestPlan::new("verbs", &["veth", "rdma_rxe"])
});

#[test]
fn region_over_verbs_in_guest() {
    inside(&RDMA_ROOM, "region_over_verbs_in_guest", Duration::from_secs(100), || {
        let mut options = plain();
        options.key = Some(Key::generate().unwrap());
        let address = "verbs:10.77.0.1:0".parse().unwrap();
        share_region(&address, options);
        let lent = LentRegion::bind(&address, 1, &options).unwrap();
        let other = RemoteRegion::connect(lent.address(), SLAB_BYTES, &plain());
        assert!(matches!(other, Err(Error::Connect { .. })), "without the key");
    });
}

fn share_region(address: &Address, options: Options) {
    let lent = LentRegion::bind(address, SLAB_BYTES + 1, &options).unwrap();
    assert_eq!(lent.len_bytes(), 2 * SLAB_BYTES);
    let at = lent.address().clone();
    let mut far = RemoteRegion::connect(&at, 2 * SLAB_BYTES, &options).unwrap();
    let bulk: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    let across = SLAB_BYTES - 50_000;
    far.write(across, &bulk).unwrap();
    let mut back = vec![0; bulk.len()];
    lent.read(across, &mut back).unwrap();
    assert!(back == bulk, "{address}: the lender sees the write");
    lent.write(64, b"from the lender").unwrap();
    far.read(64, &mut back[..15]).unwrap();
    assert_eq!(&back[..15], b"from the lender");
    assert_eq!(far.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(lent.fetch_add(8, 1).unwrap(), 5);
    assert_eq!(far.compare_swap(8, 6, 60).unwrap(), 6);
    for number in 0..100u64 {
        far.post(4096 + 8 * number, &number.to_le_bytes()).unwrap();
    }
    far.fence().unwrap();
    lent.read(4096 + 8 * 99, &mut back[..8]).unwrap();
    assert_eq!(back[..8], 99u64.to_le_bytes());
    assert_eq!(far.fetch_add(12, 1), Err(Error::Unaligned(12)));
    assert!(matches!(far.read(2 * SLAB_BYTES, &mut [0]), Err(Error::OutOfRange { .. })));

    far.start_read(7, 64, 4).unwrap();
    let (token, bytes) = loop {
        match far.poll().unwrap() {
            Some(done) => break (done.token, done.bytes.unwrap().to_vec()),
            None => far.wait(Duration::from_millis(10)).unwrap(),
        }
    };
    assert_eq!((token, &bytes[..]), (7, &b"from"[..]));
    let more = RemoteRegion::connect(&at, 3 * SLAB_BYTES, &options);
    assert!(matches!(more, Err(Error::Connect { .. })), "{address}: more than is lent");
    drop(lent);
    let start = Instant::now();
    let lost = loop {
        match far.read(0, &mut [0]) {
            Ok(()) => assert!(start.elapsed() < PATIENCE, "{address}: the end is not seen"),
            Err(error) => break error,
        }
    };
    assert!(matches!(lost, Error::Lost(_)), "{address}: {lost}");
}

/// Another process that runs a test of this binary as one end.
struct Peer {
    child: Child,
    address: Address,
}

impl Peer {
    fn start(address: &Address, options: &Options, role: &str) -> Self {
        let mut command = this_program("peer_of_another_test");
        command.env("CHANNEL_ROLE", role).env("CHANNEL_ADDRESS", address.to_string());
        if let Some(key) = options.key {
            command.env("CHANNEL_KEY", key.to_hex());
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines.map_while(Result::ok).find_map(|line| {
            line.split_once("LISTENING ").map(|(_, address)| address.parse().unwrap())
        });
        Self { child, address: found.expect("the peer listens") }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other end of the tests below, in a process that they kill.
#[test]
fn peer_of_another_test() {
    let Ok(role) = std::env::var("CHANNEL_ROLE") else { return };
    let address: Address = std::env::var("CHANNEL_ADDRESS").unwrap().parse().unwrap();
    let mut options = plain();
    options.key = std::env::var("CHANNEL_KEY").ok().map(|key| key.parse().unwrap());
    let listener = Listener::bind(&address, Kind::Messages, &options).unwrap();
    println!("\nLISTENING {}", listener.address());
    let theirs = listener.accept(Some(PATIENCE)).unwrap();
    let mut message = vec![9; 40_000];
    match role.as_str() {
        "silent" => thread::sleep(PATIENCE),
        "flood" => while theirs.send(&message).is_ok() {},
        "large" => {
            let message = vec![9; LARGE_BYTES];
            while theirs.send(&message).is_ok() {}
        }
        "exit" => {
            theirs.recv(&mut message).unwrap();
            theirs.send(b"last words").unwrap();
            // Nothing is dropped.
            std::process::exit(0);
        }
        other => panic!("unknown role {other}"),
    }
}

/// Bytes of a message that does not fit into the buffers.
const LARGE_BYTES: usize = 48 << 20;

/// The peer dies at any point of a long message.
#[test]
fn kill_never_delivers_partial_message() {
    let dir = tempfile::tempdir().unwrap();
    let (address, options) = places(&dir).swap_remove(0);
    for number in 0..6u64 {
        let mut peer = Peer::start(&address, &options, "large");
        let ours = Connection::connect(&peer.address, Kind::Messages, &options).unwrap();
        ours.set_timeout(Some(PATIENCE));
        let receiving = thread::spawn(move || {
            let (mut message, mut whole) = (vec![0; LARGE_BYTES], 0);
            loop {
                message.fill(0);
                match ours.recv(&mut message) {
                    Ok(len) => assert!(len == LARGE_BYTES && message.iter().all(|byte| *byte == 9)),
                    Err(error) => return (whole, error),
                }
                whole += 1;
            }
        });
        thread::sleep(Duration::from_millis(20 + 17 * number));
        peer.child.kill().unwrap();
        let (_, error) = receiving.join().unwrap();
        assert!(matches!(error, Error::Lost(_)), "{error}");
    }
}

/// The peer dies while a message waits for room.
#[test]
fn sender_learns_of_death() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in sealed_and_local(&dir) {
        let mut peer = Peer::start(&address, &options, "silent");
        let ours = Connection::connect(&peer.address, Kind::Messages, &options).unwrap();
        ours.set_timeout(Some(PATIENCE));
        let sending = thread::spawn(move || {
            let message = vec![1; 200_000];
            loop {
                if let Err(error) = ours.send(&message) {
                    return error;
                }
            }
        });
        thread::sleep(Duration::from_millis(100));
        peer.child.kill().unwrap();
        let error = sending.join().unwrap();
        assert!(matches!(error, Error::Lost(_)), "{address}: {error}");
    }
}

/// What a polled call has accepted arrives, though the program makes no further call.
#[test]
fn accepted_message_arrives_later() {
    let dir = tempfile::tempdir().unwrap();
    let (address, options) = places(&dir).swap_remove(0);
    let (ours, theirs) = pair(&address, Kind::Messages, options);
    let message: Vec<u8> = (0..3_000_000u32).map(|at| at as u8).collect();
    ours.try_send(&message).unwrap();
    assert_eq!(ours.try_send(b"more"), Err(Error::WouldBlock));
    assert!(theirs.recv_vec().unwrap().unwrap() == message);
    ours.send(b"more").unwrap();
    ours.try_send(&message).unwrap();
    let dropping = thread::spawn(move || drop(ours));
    assert_eq!(theirs.recv_vec().unwrap().unwrap(), b"more");
    assert!(theirs.recv_vec().unwrap().unwrap() == message, "the drop loses nothing");
    assert_eq!(theirs.recv_vec().unwrap(), None);
    dropping.join().unwrap();
}

fn sealed_and_local(dir: &tempfile::TempDir) -> Vec<(Address, Options)> {
    places(dir).into_iter().take(2).collect()
}

#[test]
fn killed_peer_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in sealed_and_local(&dir) {
        for role in ["silent", "flood"] {
            let mut peer = Peer::start(&address, &options, role);
            let ours = Connection::connect(&peer.address, Kind::Messages, &options).unwrap();
            ours.set_timeout(Some(PATIENCE));
            let waiting: JoinHandle<Error> = thread::spawn(move || {
                let mut message = vec![0; 40_000];
                loop {
                    match ours.recv(&mut message) {
                        Ok(0) => panic!("a killed peer has not closed"),
                        Ok(len) => assert!(len == 40_000 && message.iter().all(|byte| *byte == 9)),
                        Err(error) => return error,
                    }
                }
            });
            thread::sleep(Duration::from_millis(100));
            let killed = Instant::now();
            peer.child.kill().unwrap();
            let error = waiting.join().unwrap();
            assert!(matches!(error, Error::Lost(_)), "{address} {role}: {error}");
            assert!(killed.elapsed() < Duration::from_secs(20), "{address} {role}");
        }
    }
}

#[test]
fn exit_delivers_sent_messages() {
    let dir = tempfile::tempdir().unwrap();
    let (address, options) = places(&dir).swap_remove(0);
    let mut peer = Peer::start(&address, &options, "exit");
    let ours = Connection::connect(&peer.address, Kind::Messages, &options).unwrap();
    ours.set_timeout(Some(PATIENCE));
    ours.send(b"go").unwrap();
    peer.child.wait().unwrap();
    let mut message = [0; 16];
    assert_eq!(ours.recv(&mut message), Ok(10));
    assert!(matches!(ours.recv(&mut message), Err(Error::Lost(_))));
}

/// `cargo test` builds the examples beside the tests.
#[test]
fn example_counts_words() {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let example = || Command::new(folder.join("examples/channels"));
    let dir = tempfile::tempdir().unwrap();
    for (address, options) in sealed_and_local(&dir) {
        let keyed = |mut command: Command| {
            if let Some(key) = options.key {
                command.env("VENICE_CHANNEL_KEY", key.to_hex());
            }
            command
        };
        let mut listening = keyed(example());
        listening.args(["listen", &address.to_string()]).stdout(Stdio::piped());
        let mut child = listening.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix("listening at ").unwrap().to_owned();
        let _guard = Peer { child, address: at.parse().unwrap() };
        for (text, said) in [("to be or not", "4 words\n"), ("once", "1 words\n")] {
            let asked = keyed(example()).args(["ask", &at, text]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&asked.stdout), said, "{asked:?}");
        }
    }
    let failed = example().args(["ask", "shm:/nowhere/at/all", "x"]).output().unwrap();
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(failed.status.code() == Some(1) && said.lines().count() == 1, "{said}");
    assert_eq!(example().output().unwrap().status.code(), Some(2));
}
