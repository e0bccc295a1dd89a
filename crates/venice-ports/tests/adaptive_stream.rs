//! One stream over several channels at once, through real rings between two threads: every byte comes
//! out once and in order, whichever way its segment went.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{ID, KEY, OneGrant};
use venice_fabric::adaptive::{
    AdaptiveReceiver, AdaptiveSender, ChannelKind, ChooserConfig, Pattern, StreamConfig,
    StreamError,
};
use venice_fabric::{
    EndConfig, InitiatorConfig, LinkConfig, LinkModel, PeerAddr, QPairConfig, QPairEvent, Target,
    TargetConfig,
};
use venice_ports::monotonic_ns;
use venice_ports::ring::{RingConfig, RingDriver, RingPort};
use venice_wire::NodeId;

const DONOR: NodeId = NodeId(2);
const SERVICE: u32 = 1;
const LANDING_ADDR: u64 = 0x10_0000;
const STREAM_BYTES: usize = 4 << 20;
const PATIENCE_NS: u64 = 60_000_000_000;

/// The byte at a place of the stream.
fn byte_at(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ at as u8
}

fn config() -> StreamConfig {
    StreamConfig { inline_bytes: 64 << 10, ..StreamConfig::default() }
}

/// The reader, until told to stop; returns how many bytes it read up to the stream's end.
fn read_all(mut port: RingPort, stop: &AtomicBool) -> usize {
    let mut asked = TargetConfig::new(DONOR, 2);
    // A ring answers for its bytes and their order.
    asked.link = LinkConfig { checksum: false, replay: false, ..asked.link };
    let mut target = Target::new(asked);
    target.qpairs_mut().listen(SERVICE, 1).unwrap();
    let mut memory = OneGrant(vec![0; config().landing_bytes as usize]);
    let (mut receiver, mut read, mut buffer) = (None, 0, vec![0; 64 << 10]);
    while !stop.load(Ordering::Acquire) {
        let now_ns = monotonic_ns();
        if target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            target.handle_timeout(now_ns);
        }
        let mut any = false;
        while let Some(frame) = port.receive(now_ns).unwrap() {
            target.handle_frame(now_ns, PeerAddr(0), frame, &mut memory);
            any = true;
        }
        let receiver = match &mut receiver {
            Some(receiver) => Some(receiver),
            None => match target.qpairs_mut().poll_event() {
                Some(QPairEvent::Incoming { qpair, .. }) => {
                    target.qpairs_mut().accept(qpair, EndConfig::default()).unwrap();
                    Some(receiver.insert(AdaptiveReceiver::new(config(), qpair)))
                }
                _ => None,
            },
        };
        if let Some(receiver) = receiver {
            receiver.handle(now_ns, target.qpairs_mut()).unwrap();
            let from_landing = |offset: u64, into: &mut [u8]| {
                into.copy_from_slice(&memory.0[offset as usize..][..into.len()]);
            };
            match receiver.read(&mut buffer, from_landing) {
                Ok(len) => {
                    let is_right = |(n, byte): (usize, &u8)| *byte == byte_at(read + n);
                    assert!(buffer[..len].iter().enumerate().all(is_right), "after byte {read}");
                    read += len;
                }
                Err(StreamError::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
            receiver.handle(now_ns, target.qpairs_mut()).unwrap();
        }
        while let Some(frame) = port.reserve().unwrap()
            && let Some((_, len)) = target.poll_transmit(now_ns, frame)
        {
            port.commit(now_ns, len);
        }
        port.announce();
        if !any {
            thread::sleep(Duration::from_micros(20));
        }
    }
    read
}

/// Sends the stream in pieces of all lengths; returns how often each channel was chosen.
fn write_all(port: RingPort) -> [u32; 3] {
    let mut driver = RingDriver::new(InitiatorConfig::new(NodeId(1), 1)).unwrap();
    let peer = driver.add_peer(monotonic_ns(), DONOR, port).unwrap();
    let landing_bytes = config().landing_bytes;
    driver.initiator().map_window(LANDING_ADDR, landing_bytes, peer, 0, ID, KEY).unwrap();
    let asked = QPairConfig::messages();
    let qpair =
        driver.initiator().qpair_connect(monotonic_ns(), peer, SERVICE, asked).expect("room");
    let chooser = ChooserConfig { explore_percent: 5, ..ChooserConfig::default() };
    let mut sender = AdaptiveSender::new(config(), chooser, qpair, LANDING_ADDR, 0);

    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    let (mut is_connected, mut written, mut chosen) = (false, 0, [0; 3]);
    let mut lens = [64, 700, 4096, 20_000, 65_536].into_iter().cycle();
    let mut len = 64;
    while !sender.is_done() {
        let now_ns = monotonic_ns();
        assert!(now_ns < deadline_ns, "{written} bytes written, {chosen:?}");
        driver.pump(now_ns).unwrap();
        let initiator = driver.initiator();
        while let Some(completion) = initiator.poll_completion() {
            assert!(sender.handle_completion(&completion), "nobody else has accesses");
        }
        while let Some(completion) = initiator.poll_rdma_completion() {
            assert!(sender.handle_rdma_completion(completion).is_none(), "nor transfers");
        }
        if !is_connected {
            let event = initiator.qpairs_mut().poll_event();
            is_connected = matches!(event, Some(QPairEvent::Connected { .. }));
            continue;
        }
        sender.handle(now_ns, initiator).unwrap();
        if written < STREAM_BYTES {
            let end = STREAM_BYTES.min(written + len);
            let bytes: Vec<u8> = (written..end).map(byte_at).collect();
            match sender.write(now_ns, initiator, &bytes, Some(Pattern::Sequential)) {
                Ok(taken) => {
                    written += taken;
                    len = lens.next().expect("without end");
                }
                Err(StreamError::WouldBlock) => driver.wait(1_000_000).unwrap(),
                Err(error) => panic!("{error}"),
            }
            if written == STREAM_BYTES {
                sender.finish();
            }
        }
        for choice in std::iter::from_fn(|| sender.poll_choice()) {
            // Each says why.
            assert!(choice.to_string().starts_with(&format!("{:?} for ", choice.channel)));
            chosen[choice.channel.index()] += 1;
        }
    }
    chosen
}

fn a_stream_over(link: Option<LinkModel>) {
    let (near, far) = RingPort::pair(&RingConfig { ring_bytes: 0, link }).unwrap();
    let stop = AtomicBool::new(false);
    let (chosen, read) = thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(far, &stop));
        // The reader ends even if the writer fails.
        let written = thread::scope(|inner| inner.spawn(|| write_all(near)).join());
        stop.store(true, Ordering::Release);
        (written.expect("the writer is done"), reader.join().expect("no byte was wrong"))
    });
    assert_eq!(read, STREAM_BYTES);
    for channel in ChannelKind::ALL {
        assert!(chosen[channel.index()] > 0, "{channel:?} was never tried: {chosen:?}");
    }
}

#[test]
fn a_stream_over_rings_takes_all_channels() {
    a_stream_over(None);
}

#[test]
fn and_over_an_emulated_link() {
    a_stream_over(Some(LinkModel::PAPER));
}
