//! The hop header: messages between two neighbouring switches, packets included.

use crate::{
    HOP_VERSION, MAX_PACKET_BYTES, NodeId, Sequence, WireError, bytes::get, bytes::put,
    checksum::checksum_without,
};

/// First two bytes of every hop datagram, read as a little-endian `u16`: the letters `VH`.
pub const HOP_MAGIC: u16 = u16::from_le_bytes(*b"VH");
/// Length of the hop header, the same for every kind.
pub const HOP_HEADER_BYTES: usize = 40;
/// The longest hop datagram: a buffer of this size holds any.
pub const MAX_HOP_BYTES: usize = HOP_HEADER_BYTES + MAX_PACKET_BYTES;
/// Virtual channels of a hop link: separate buffers over the same wire.
pub const VIRTUAL_CHANNELS: usize = 4;
/// Bit of a hop's `flags`: this packet was sent before. Serves captures and statistics.
pub const HOP_REPLAY_FLAG: u8 = 1 << 0;
/// Bit of a hop's `flags`: the checksum is 0 and is not verified, because the port detects damage
/// itself (it is reliable, or seals its datagrams).
pub const HOP_UNCHECKED_FLAG: u8 = 1 << 1;

/// Offset of each field in bytes. `docs/reference/wire.md` describes the same layout.
mod offset {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 2;
    pub const KIND: usize = 3;
    pub const FLAGS: usize = 4;
    pub const CHANNEL: usize = 5;
    pub const PAYLOAD_LEN: usize = 6;
    pub const LINK: usize = 8;
    pub const CHECKSUM: usize = 12;
    pub const SEQUENCE: usize = 16;
    pub const ACK: usize = 20;
    pub const CREDITS: usize = 24;
    pub const WORD: usize = 32;
}

/// The kind of a hop datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HopKind {
    /// Carries one packet. Sequenced.
    Data = 1,
    /// Reports what has arrived, and the credits for more.
    Ack = 2,
    /// Like `Ack`, and requests the missing packets: `word` is a bitmap of what came after the gap.
    Nak = 3,
    /// Requests a `Pong` at once; `word` numbers it.
    Ping = 4,
    /// Answers a `Ping`; `word` repeats its number.
    Pong = 5,
    /// Opens the link or checks that it is still open; carries a [`Greeting`]. Answered by
    /// `Welcome`.
    Hello = 6,
    /// Answers a `Hello`; carries a [`Greeting`].
    Welcome = 7,
    /// Reports to the neighbour which links of the network are down. `word` is the version of the
    /// report, `sequence` the position of the switch it describes, the payload a bitmap of that
    /// switch's ports (bit set: up).
    LinkState = 8,
}

impl HopKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::Ack,
            3 => Self::Nak,
            4 => Self::Ping,
            5 => Self::Pong,
            6 => Self::Hello,
            7 => Self::Welcome,
            8 => Self::LinkState,
            _ => return None,
        })
    }
}

/// The credit counts of a link's virtual channels: how many packets the other side may have sent on
/// each since the link opened, modulo 2¹⁶. The whole count is always sent, so a later one replaces
/// an earlier one and the next one makes up for a lost one.
pub type Credits = [u16; VIRTUAL_CHANNELS];

/// All fields of a hop header, as a plain struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopRepr {
    /// The kind of datagram.
    pub kind: HopKind,
    /// Bits such as [`HOP_REPLAY_FLAG`]; unnamed bits are sent as zero and ignored.
    /// [`HOP_UNCHECKED_FLAG`] decides whether [`HopRepr::emit`] computes a checksum.
    pub flags: u8,
    /// The virtual channel of a `Data`; otherwise 0.
    pub channel: u8,
    /// The link, made of both ends' incarnations; in a Hello or Welcome the link known to the
    /// sender, 0 if none.
    pub link: u32,
    /// Position of a `Data` in the sender's stream; otherwise the position it will use next.
    pub sequence: Sequence,
    /// The first position the sender has not received.
    pub ack: Sequence,
    /// The credits the sender gives.
    pub credits: Credits,
    /// A word whose meaning depends on the kind.
    pub word: u64,
}

impl HopRepr {
    /// Returns a header of this kind on `link` with zero in the rest.
    pub const fn new(kind: HopKind, link: u32) -> Self {
        Self {
            kind,
            flags: 0,
            channel: 0,
            link,
            sequence: Sequence(0),
            ack: Sequence(0),
            credits: [0; VIRTUAL_CHANNELS],
            word: 0,
        }
    }

    /// Writes header, payload and checksum to the front of `buf`; returns the length of the
    /// datagram in bytes.
    ///
    /// # Errors
    /// [`WireError::PayloadTooLong`] over [`MAX_PACKET_BYTES`], [`WireError::BufferTooSmall`] when
    /// `buf` cannot hold the datagram, [`WireError::BadVirtualChannel`].
    pub fn emit(&self, payload: &[u8], buf: &mut [u8]) -> Result<usize, WireError> {
        if payload.len() > MAX_PACKET_BYTES {
            return Err(WireError::PayloadTooLong(payload.len()));
        }
        if usize::from(self.channel) >= VIRTUAL_CHANNELS {
            return Err(WireError::BadVirtualChannel(self.channel));
        }
        let (len, needed) = (buf.len(), HOP_HEADER_BYTES + payload.len());
        let hop = buf.get_mut(..needed).ok_or(WireError::BufferTooSmall { len, needed })?;
        hop[HOP_HEADER_BYTES..].copy_from_slice(payload);
        put(hop, offset::MAGIC, HOP_MAGIC.to_le_bytes());
        put(hop, offset::VERSION, [HOP_VERSION]);
        put(hop, offset::KIND, [self.kind as u8]);
        put(hop, offset::FLAGS, [self.flags]);
        put(hop, offset::CHANNEL, [self.channel]);
        put(hop, offset::PAYLOAD_LEN, (payload.len() as u16).to_le_bytes());
        put(hop, offset::LINK, self.link.to_le_bytes());
        put(hop, offset::SEQUENCE, self.sequence.0.to_le_bytes());
        put(hop, offset::ACK, self.ack.0.to_le_bytes());
        for (channel, credits) in self.credits.iter().enumerate() {
            put(hop, offset::CREDITS + 2 * channel, credits.to_le_bytes());
        }
        put(hop, offset::WORD, self.word.to_le_bytes());
        let unchecked = self.flags & HOP_UNCHECKED_FLAG != 0;
        let checksum = if unchecked { 0 } else { checksum(hop) };
        put(hop, offset::CHECKSUM, checksum.to_le_bytes());
        Ok(needed)
    }
}

/// A hop datagram that has passed every check of the format. Reading a field cannot fail. Its
/// payload is not checked here.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    bytes: &'a [u8],
    kind: HopKind,
}

impl<'a> Hop<'a> {
    /// Checks `bytes`, one whole datagram, and wraps them. `accept_unchecked` accepts a datagram
    /// whose flags declare that it has no checksum; a port that detects damage itself sets it.
    ///
    /// # Errors
    /// Returns the first way in which the bytes are not a hop datagram of this version. No input
    /// panics.
    pub fn parse(bytes: &'a [u8], accept_unchecked: bool) -> Result<Self, WireError> {
        let len = bytes.len();
        if len < HOP_HEADER_BYTES {
            return Err(WireError::Truncated { len, needed: HOP_HEADER_BYTES });
        }
        let magic = u16::from_le_bytes(get(bytes, offset::MAGIC));
        if magic != HOP_MAGIC {
            return Err(WireError::BadMagic(magic));
        }
        if bytes[offset::VERSION] != HOP_VERSION {
            return Err(WireError::UnsupportedVersion(bytes[offset::VERSION]));
        }
        let payload_len = usize::from(u16::from_le_bytes(get(bytes, offset::PAYLOAD_LEN)));
        if payload_len > MAX_PACKET_BYTES {
            return Err(WireError::PayloadTooLong(payload_len));
        }
        let needed = HOP_HEADER_BYTES + payload_len;
        match len.cmp(&needed) {
            std::cmp::Ordering::Less => return Err(WireError::Truncated { len, needed }),
            std::cmp::Ordering::Greater => return Err(WireError::TrailingBytes { len, needed }),
            std::cmp::Ordering::Equal => {}
        }
        let told = u32::from_le_bytes(get(bytes, offset::CHECKSUM));
        let unchecked = bytes[offset::FLAGS] & HOP_UNCHECKED_FLAG != 0;
        if !(unchecked && accept_unchecked) && told != checksum(bytes) {
            return Err(WireError::BadChecksum);
        }
        if usize::from(bytes[offset::CHANNEL]) >= VIRTUAL_CHANNELS {
            return Err(WireError::BadVirtualChannel(bytes[offset::CHANNEL]));
        }
        let kind = bytes[offset::KIND];
        let kind = HopKind::from_byte(kind).ok_or(WireError::UnknownHopKind(kind))?;
        Ok(Self { bytes, kind })
    }

    /// Returns the whole header as a plain struct.
    pub fn repr(&self) -> HopRepr {
        HopRepr {
            kind: self.kind,
            flags: self.bytes[offset::FLAGS],
            channel: self.channel(),
            link: self.link(),
            sequence: self.sequence(),
            ack: self.ack(),
            credits: self.credits(),
            word: self.word(),
        }
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HOP_HEADER_BYTES..]
    }

    /// See [`HopRepr::kind`].
    pub fn kind(&self) -> HopKind {
        self.kind
    }

    /// See [`HopRepr::channel`].
    pub fn channel(&self) -> u8 {
        self.bytes[offset::CHANNEL]
    }

    /// See [`HopRepr::link`].
    pub fn link(&self) -> u32 {
        u32::from_le_bytes(get(self.bytes, offset::LINK))
    }

    /// See [`HopRepr::sequence`].
    pub fn sequence(&self) -> Sequence {
        Sequence(u32::from_le_bytes(get(self.bytes, offset::SEQUENCE)))
    }

    /// See [`HopRepr::ack`].
    pub fn ack(&self) -> Sequence {
        Sequence(u32::from_le_bytes(get(self.bytes, offset::ACK)))
    }

    /// See [`HopRepr::credits`].
    pub fn credits(&self) -> Credits {
        std::array::from_fn(|channel| {
            u16::from_le_bytes(get(self.bytes, offset::CREDITS + 2 * channel))
        })
    }

    /// See [`HopRepr::word`].
    pub fn word(&self) -> u64 {
        u64::from_le_bytes(get(self.bytes, offset::WORD))
    }
}

/// Computes CRC-32C over the whole datagram except the checksum field itself.
fn checksum(hop: &[u8]) -> u32 {
    checksum_without(offset::CHECKSUM, hop)
}

/// Length of a [`Greeting`].
pub const GREETING_BYTES: usize = 32;

/// The payload of a Hello or a Welcome: the sender's identity, and a proof that the message does
/// not stem from an earlier session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// The sending node.
    pub node: NodeId,
    /// Packets the node can hold for replay and out of order, over all virtual channels.
    pub window: u16,
    /// 64 random bits drawn when the node starts. A restarted node draws new ones.
    pub incarnation: u64,
    /// A number of the sender that the other side must repeat.
    pub challenge: u64,
    /// The other side's challenge; 0 before one was received.
    pub answer: u64,
}

impl Greeting {
    /// Returns the greeting as it travels.
    pub fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        put(&mut bytes, 0, self.node.0.to_le_bytes());
        put(&mut bytes, 4, self.window.to_le_bytes());
        put(&mut bytes, 8, self.incarnation.to_le_bytes());
        put(&mut bytes, 16, self.challenge.to_le_bytes());
        put(&mut bytes, 24, self.answer.to_le_bytes());
        bytes
    }

    /// Reads the payload of a Hello or Welcome.
    ///
    /// # Errors
    /// [`WireError::Truncated`]. Bytes after the greeting belong to later versions and are ignored.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let len = payload.len();
        if len < GREETING_BYTES {
            return Err(WireError::Truncated { len, needed: GREETING_BYTES });
        }
        Ok(Self {
            node: NodeId(u32::from_le_bytes(get(payload, 0))),
            window: u16::from_le_bytes(get(payload, 4)),
            incarnation: u64::from_le_bytes(get(payload, 8)),
            challenge: u64::from_le_bytes(get(payload, 16)),
            answer: u64::from_le_bytes(get(payload, 24)),
        })
    }
}
