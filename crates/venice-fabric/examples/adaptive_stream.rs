//! One stream over all channels, on the fabric of the paper: 1.4 µs and 5 Gb/s each way, in virtual
//! time. Prints the estimates of the adaptive library, and its choices.
//!
//! ```text
//! cargo run -p venice-fabric --example adaptive_stream
//! ```

use std::collections::BTreeMap;

use venice_fabric::{
    EmulatedLink, EndConfig, GrantedMemory, Initiator, InitiatorConfig, LinkConfig, LinkModel,
    PeerAddr, PeerIndex, QPairConfig, QPairEvent, Refusal, Target, TargetConfig,
    adaptive::{
        AdaptiveReceiver, AdaptiveSender, ChannelKind, ChoiceReason, ChooserConfig, Estimate,
        Pattern, StreamConfig, StreamError,
    },
};
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

const SERVICE: u32 = 1;
const LANDING_ADDR: u64 = 0x10_0000;
const SIZES: [usize; 6] = [64, 256, 1024, 4096, 16_384, 65_536];

/// The receiver's landing region.
struct Landing(Vec<u8>);

impl GrantedMemory for Landing {
    fn read(&mut self, _: GrantId, _: GrantKey, _: u64, _: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::ReadOnly)
    }

    fn write(&mut self, _: GrantId, _: GrantKey, at: u64, from: &[u8]) -> Result<(), Refusal> {
        let at = usize::try_from(at).map_err(|_| Refusal::OutOfRange)?;
        let place = self.0.get_mut(at..).and_then(|rest| rest.get_mut(..from.len()));
        place.ok_or(Refusal::OutOfRange)?.copy_from_slice(from);
        Ok(())
    }
}

/// Both nodes and the two directions between them.
struct Rack {
    now_ns: u64,
    initiator: Initiator,
    target: Target,
    peer: PeerIndex,
    landing: Landing,
    there: EmulatedLink,
    back: EmulatedLink,
    /// Frames in flight, by time of arrival and number; true if they go to the target.
    frames: BTreeMap<(u64, u64), (bool, Vec<u8>)>,
    sent: u64,
}

impl Rack {
    fn new(landing_bytes: u64) -> Self {
        // The links of the paper lose nothing.
        let link = LinkConfig::reliable();
        let config = InitiatorConfig { link: link.clone(), ..InitiatorConfig::new(NodeId(1), 1) };
        let mut initiator = Initiator::new(config);
        let peer = initiator.add_peer(NodeId(2), 0);
        let (grant, key) = (GrantId(1), GrantKey(1));
        let mapped = initiator.map_window(LANDING_ADDR, landing_bytes, peer, 0, grant, key);
        mapped.expect("nothing else is mapped");
        Self {
            now_ns: 0,
            initiator,
            target: Target::new(TargetConfig { link, ..TargetConfig::new(NodeId(2), 2) }),
            peer,
            landing: Landing(vec![0; landing_bytes as usize]),
            there: EmulatedLink::new(LinkModel::PAPER),
            back: EmulatedLink::new(LinkModel::PAPER),
            frames: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Sends all pending frames, and advances to the next arrival or time-out.
    fn step(&mut self) {
        let mut buf = [0; MAX_FRAME_BYTES];
        while let Some((_, len)) = self.initiator.poll_transmit(self.now_ns, &mut buf) {
            let at_ns = self.there.depart(self.now_ns, len);
            self.sent += 1;
            self.frames.insert((at_ns, self.sent), (true, buf[..len].to_vec()));
        }
        while let Some((_, len)) = self.target.poll_transmit(self.now_ns, &mut buf) {
            let at_ns = self.back.depart(self.now_ns, len);
            self.sent += 1;
            self.frames.insert((at_ns, self.sent), (false, buf[..len].to_vec()));
        }
        let arrival_ns = self.frames.first_key_value().map(|(&(at_ns, _), _)| at_ns);
        let timeouts = [self.initiator.poll_timeout(), self.target.poll_timeout(), arrival_ns];
        let next_ns = timeouts.into_iter().flatten().min().expect("a link has time-outs");
        self.now_ns = self.now_ns.max(next_ns);
        while let Some(entry) = self.frames.first_entry().filter(|e| e.key().0 <= self.now_ns) {
            let (is_there, frame) = entry.remove();
            if is_there {
                self.target.handle_frame(self.now_ns, PeerAddr(1), &frame, &mut self.landing);
            } else {
                self.initiator.handle_frame(self.now_ns, self.peer, &frame);
            }
        }
        self.initiator.handle_timeout(self.now_ns);
        self.target.handle_timeout(self.now_ns);
    }

    fn connect(&mut self, config: StreamConfig) -> (AdaptiveSender, AdaptiveReceiver) {
        self.target.qpairs_mut().listen(SERVICE, 1).expect("the service is free");
        let asked = QPairConfig::messages();
        let near = self.initiator.qpair_connect(self.now_ns, self.peer, SERVICE, asked);
        let near = near.expect("there is room");
        let mut far = None;
        loop {
            self.step();
            let qpairs = self.target.qpairs_mut();
            if let Some(QPairEvent::Incoming { qpair, .. }) = qpairs.poll_event() {
                qpairs.accept(qpair, EndConfig::default()).expect("it waits");
                far = Some(qpair);
            }
            if let Some(QPairEvent::Connected { .. }) = self.initiator.qpairs_mut().poll_event() {
                break;
            }
        }
        let chooser = ChooserConfig { explore_percent: 5, ..ChooserConfig::default() };
        let far = far.expect("it was accepted");
        (
            AdaptiveSender::new(config, chooser, near, LANDING_ADDR, 0),
            AdaptiveReceiver::new(config, far),
        )
    }
}

fn main() -> Result<(), StreamError> {
    let config = StreamConfig { inline_bytes: 64 << 10, ..StreamConfig::default() };
    let mut rack = Rack::new(config.landing_bytes);
    let (mut sender, mut receiver) = rack.connect(config);
    println!(
        "{:>7} {:>10} {:>28} {:>24}  chosen",
        "bytes", "what counts", "latency ns", "next after ns"
    );
    for hint in [Pattern::Message, Pattern::Sequential] {
        for len in SIZES {
            let chosen = send(&mut rack, &mut sender, &mut receiver, len, hint)?;
            report(&sender, len, hint, &chosen);
        }
    }
    sender.finish();
    while !sender.is_done() {
        turn(&mut rack, &mut sender, &mut receiver)?;
    }
    println!("{} segments had overtaken another", receiver.early_segments());
    Ok(())
}

/// Sends 400 segments of one length, one at a time if each is waited for; returns how often each
/// channel was chosen on its merits.
fn send(
    rack: &mut Rack,
    sender: &mut AdaptiveSender,
    receiver: &mut AdaptiveReceiver,
    len: usize,
    hint: Pattern,
) -> Result<[u32; 3], StreamError> {
    let (bytes, mut chosen) = (vec![7; len], [0; 3]);
    let mut left = 400;
    let mut unread = 0;
    while left > 0 || unread > 0 {
        while left > 0 && (sender.unread_segments() == 0 || hint.is_stream()) {
            match sender.write(rack.now_ns, &mut rack.initiator, &bytes, Some(hint)) {
                Ok(taken) => unread += taken,
                Err(StreamError::WouldBlock) => break,
                Err(error) => return Err(error),
            }
            left -= 1;
        }
        unread -= turn(rack, sender, receiver)?;
        // A user would log these: `tracing::trace!(?choice)`.
        for choice in std::iter::from_fn(|| sender.poll_choice()) {
            let is_judged = matches!(choice.reason, ChoiceReason::Best | ChoiceReason::Incumbent);
            chosen[choice.channel.index()] += u32::from(is_judged);
        }
    }
    Ok(chosen)
}

/// Advances by one event; returns the bytes read.
fn turn(
    rack: &mut Rack,
    sender: &mut AdaptiveSender,
    receiver: &mut AdaptiveReceiver,
) -> Result<usize, StreamError> {
    rack.step();
    while let Some(completion) = rack.initiator.poll_completion() {
        assert!(sender.handle_completion(&completion), "all accesses are the sender's");
    }
    while let Some(completion) = rack.initiator.poll_rdma_completion() {
        assert!(
            sender.handle_rdma_completion(completion).is_none(),
            "all transfers are the sender's"
        );
    }
    sender.handle(rack.now_ns, &mut rack.initiator)?;
    receiver.handle(rack.now_ns, rack.target.qpairs_mut())?;
    let mut into = vec![0; 64 << 10];
    let mut read = 0;
    loop {
        let landing = &rack.landing.0;
        let from_landing = |offset: u64, into: &mut [u8]| {
            into.copy_from_slice(&landing[offset as usize..][..into.len()]);
        };
        match receiver.read(&mut into, from_landing) {
            Ok(0) | Err(StreamError::WouldBlock) => break,
            Ok(len) => read += len,
            Err(error) => return Err(error),
        }
    }
    receiver.handle(rack.now_ns, rack.target.qpairs_mut())?;
    Ok(read)
}

fn report(sender: &AdaptiveSender, len: usize, hint: Pattern, chosen: &[u32; 3]) {
    let estimates = ChannelKind::ALL.map(|kind| sender.chooser().estimate(kind, len));
    let show = |value: fn(&Estimate) -> Option<u64>| {
        let one = |at: usize| match estimates[at].as_ref().and_then(value) {
            Some(value) => format!("{value:>8}"),
            None => format!("{:>8}", "-"),
        };
        [one(0), one(1), one(2)].concat()
    };
    let counts = if hint.is_stream() { "throughput" } else { "latency" };
    let latency = show(|estimate| Some(estimate.latency_ns));
    let service = show(|estimate| estimate.service_ns);
    let [crma, rdma, qpair] = chosen;
    println!(
        "{len:>7} {counts:>11} {latency:>27} {service:>24}  crma {crma}, rdma {rdma}, qpair {qpair}"
    );
}
