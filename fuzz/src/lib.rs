//! What the fuzz targets share: a small donor's memory, frames that are well formed and say
//! anything, and a link opened by hand.
#![forbid(unsafe_code)]

use arbitrary::Arbitrary;
use venice_fabric::{
    EndConfig, GrantedMemory, Initiator, InitiatorConfig, LinkConfig, PeerAddr, PeerIndex,
    QPairConfig, QPairKind, Refusal, Target, TargetConfig,
};
use venice_wire::{
    Channel, Frame, GrantId, GrantKey, HeaderRepr, Integrity, LinkId, MAX_FRAME_BYTES, NodeId,
    Opcode, Sequence,
};

/// The recipient and the donor, and where the donor sees the recipient.
pub const HERE: NodeId = NodeId(1);
/// See [`HERE`].
pub const THERE: NodeId = NodeId(2);
/// See [`HERE`].
pub const ADDR: PeerAddr = PeerAddr(7);
/// The key of all grants.
pub const KEY: GrantKey = GrantKey(0x5ec2e7);
/// Bytes the donor lends; each grant leads to the same ones.
pub const LENT_BYTES: u64 = 32 << 10;
/// The service that both ends listen for.
pub const SERVICE: u32 = 3;

/// A donor's memory: grants 1 to 4, all to the same bytes.
pub struct Lent(pub Vec<u8>);

impl Default for Lent {
    fn default() -> Self {
        Self(vec![0; LENT_BYTES as usize])
    }
}

impl Lent {
    fn range(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<&mut [u8], Refusal> {
        if !(1..5).contains(&grant.0) {
            return Err(Refusal::UnknownGrant);
        }
        if key != KEY {
            return Err(Refusal::WrongKey);
        }
        let start = usize::try_from(addr).map_err(|_| Refusal::OutOfRange)?;
        let end = start.checked_add(len).ok_or(Refusal::OutOfRange)?;
        self.0.get_mut(start..end).ok_or(Refusal::OutOfRange)
    }
}

impl GrantedMemory for Lent {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        into.copy_from_slice(self.range(grant, key, addr, into.len())?);
        Ok(())
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        self.range(grant, key, addr, from.len())?.copy_from_slice(from);
        Ok(())
    }
}

/// How the link of a run is set up.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct LinkSetup {
    is_wide: bool,
    /// Whether frames carry checksums.
    pub checksum: bool,
    /// Whether frames are replayed.
    pub replay: bool,
}

impl LinkSetup {
    /// Never gives up within the time a run takes.
    pub fn config(self) -> LinkConfig {
        LinkConfig {
            window: if self.is_wide { 16 } else { 4 },
            checksum: self.checksum,
            replay: self.replay,
            silence_ns: 600_000_000_000,
            ..LinkConfig::default()
        }
    }
}

/// An initiator with small queues, and its only peer.
pub fn initiator(link: LinkConfig) -> (Initiator, PeerIndex) {
    let config = InitiatorConfig::new(HERE, 11);
    let mut initiator = Initiator::new(InitiatorConfig {
        link,
        crma_depth: 16,
        rdma_depth: 4,
        max_qpairs: 4,
        max_windows: 8,
        ..config
    });
    let peer = initiator.add_peer(THERE, 0);
    initiator.qpairs_mut().listen(SERVICE, 4).expect("the first");
    (initiator, peer)
}

/// A target with small tables.
pub fn target(link: LinkConfig) -> Target {
    let config = TargetConfig::new(THERE, 22);
    let mut target = Target::new(TargetConfig {
        link,
        max_links: 4,
        max_grants_per_link: 3,
        max_qpairs: 4,
        ..config
    });
    target.qpairs_mut().listen(SERVICE, 4).expect("the first");
    target
}

/// A QPair with the smallest buffers.
pub fn qpair(kind: QPairKind) -> QPairConfig {
    let end = EndConfig { send_bytes: 0, recv_bytes: 0, recv_messages: 8, ..EndConfig::default() };
    QPairConfig { kind, end, ..QPairConfig::default() }
}

/// Shakes hands; returns the link's number.
pub fn open_link(
    initiator: &mut Initiator,
    peer: PeerIndex,
    target: &mut Target,
    memory: &mut Lent,
) -> LinkId {
    let mut buf = [0; MAX_FRAME_BYTES];
    let (_, len) = initiator.poll_transmit(0, &mut buf).expect("a Hello");
    target.handle_frame(0, ADDR, &buf[..len], memory);
    let (_, len) = target.poll_transmit(0, &mut buf).expect("a Welcome");
    let welcome = Frame::parse_with(&buf[..len], Integrity::Port).expect("a frame");
    let link = LinkId(welcome.transaction());
    initiator.handle_frame(0, peer, &buf[..len]);
    while let Some((_, len)) = initiator.poll_transmit(0, &mut buf) {
        target.handle_frame(0, ADDR, &buf[..len], memory);
    }
    while let Some((_, len)) = target.poll_transmit(0, &mut buf) {
        initiator.handle_frame(0, peer, &buf[..len]);
    }
    link
}

/// A well-formed frame that says anything.
#[derive(Arbitrary, Clone, Debug)]
pub struct AnyFrame {
    opcode: u8,
    channel: u8,
    flags: u8,
    is_on_link: bool,
    sequence: Small,
    ack: Small,
    transaction: Small,
    access_len: u16,
    detail: u16,
    address: u64,
    grant: u8,
    has_key: bool,
    payload_len: u16,
}

/// Near zero, near the wrap, or anything.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Small {
    Low(u8),
    High(u8),
    Any(u32),
}

impl Small {
    fn value(self) -> u32 {
        match self {
            Self::Low(n) => u32::from(n % 24),
            Self::High(n) => u32::MAX - u32::from(n % 8),
            Self::Any(n) => n,
        }
    }
}

impl AnyFrame {
    /// Writes it into `buf` as from one node to the other, if there is such an opcode.
    pub fn emit(
        &self,
        source: NodeId,
        destination: NodeId,
        link: LinkId,
        buf: &mut [u8],
    ) -> Option<usize> {
        let (channel, opcode) = self.kind()?;
        let header = HeaderRepr {
            flags: self.flags,
            link: if self.is_on_link { link } else { LinkId(self.transaction.value()) },
            sequence: Sequence(self.sequence.value()),
            ack: Sequence(self.ack.value()),
            transaction: self.transaction.value(),
            access_len: self.access_len,
            detail: self.detail,
            address: self.address,
            // The last is the credit region.
            grant: if self.grant == 255 { GrantId(u64::MAX) } else { GrantId(self.grant.into()) },
            key: if self.has_key { KEY } else { GrantKey(self.address) },
            ..HeaderRepr::new(channel, opcode, source, destination)
        };
        header.emit(&[0xee; 4096][..usize::from(self.payload_len % 4097)], buf).ok()
    }

    fn kind(&self) -> Option<(Channel, Opcode)> {
        const CHANNELS: [Channel; 4] =
            [Channel::Link, Channel::Crma, Channel::Rdma, Channel::QPair];
        let opcode = Opcode::from_byte(self.opcode % 48)?;
        let channel = CHANNELS[usize::from(self.channel % 4)];
        if opcode.is_on(channel) {
            return Some((channel, opcode));
        }
        CHANNELS.into_iter().find(|channel| opcode.is_on(*channel)).map(|channel| (channel, opcode))
    }
}
