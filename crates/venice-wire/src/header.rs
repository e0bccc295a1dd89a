//! The header as a plain struct, and the code that writes it.

use crate::{
    Channel, GrantId, GrantKey, HEADER_BYTES, LinkId, MAGIC, MAX_PAYLOAD_BYTES, NodeId, Opcode,
    Sequence, VERSION, WireError,
    checksum::{Checksum, checksum_without},
};

/// Bit of `flags`: this frame was sent before and is replayed. Serves captures and statistics; it
/// does not change the meaning of the frame.
pub const REPLAY_FLAG: u8 = 1 << 0;

/// Bit of `flags`: the frame carries no checksum, because its port guarantees integrity in another
/// way. Only such a port accepts it: see [`crate::Integrity`].
pub const UNCHECKED_FLAG: u8 = 1 << 1;

/// Offset of each field in bytes. `docs/reference/wire.md` describes the same layout.
pub(crate) mod offset {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 2;
    pub const CHANNEL: usize = 3;
    pub const OPCODE: usize = 4;
    pub const FLAGS: usize = 5;
    pub const PAYLOAD_LEN: usize = 6;
    pub const SOURCE: usize = 8;
    pub const DESTINATION: usize = 12;
    pub const LINK: usize = 16;
    pub const CHECKSUM: usize = 20;
    pub const SEQUENCE: usize = 24;
    pub const ACK: usize = 28;
    pub const TRANSACTION: usize = 32;
    pub const ACCESS_LEN: usize = 36;
    pub const DETAIL: usize = 38;
    pub const ADDRESS: usize = 40;
    pub const GRANT: usize = 48;
    pub const KEY: usize = 56;
}

/// All fields of a header, as a plain struct. Magic, version, payload length and checksum are
/// absent: [`HeaderRepr::emit`] writes them, [`crate::Frame::parse`] checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRepr {
    /// The channel of the frame.
    pub channel: Channel,
    /// The operation requested or reported.
    pub opcode: Opcode,
    /// Bits such as [`REPLAY_FLAG`] and [`UNCHECKED_FLAG`]; unnamed bits are sent as zero and
    /// ignored.
    pub flags: u8,
    /// The sending node.
    pub source: NodeId,
    /// The receiving node.
    pub destination: NodeId,
    /// The link on which the frame travels.
    pub link: LinkId,
    /// Position in the sender's stream; on link frames, the sender's next position.
    pub sequence: Sequence,
    /// The first position the sender has not received from the other side.
    pub ack: Sequence,
    /// Number of a request; its answer repeats it.
    pub transaction: u32,
    /// Bytes of the access; in a handshake, frames the sender can buffer.
    pub access_len: u16,
    /// A small extra word: the [`crate::Refusal`] code of a refusal.
    pub detail: u16,
    /// Remote address: byte offset into the grant.
    pub address: u64,
    /// The grant that is accessed.
    pub grant: GrantId,
    /// The key of the grant.
    pub key: GrantKey,
}

impl HeaderRepr {
    /// Returns a header with the given fields and zero in the rest.
    pub const fn new(
        channel: Channel,
        opcode: Opcode,
        source: NodeId,
        destination: NodeId,
    ) -> Self {
        Self {
            channel,
            opcode,
            flags: 0,
            source,
            destination,
            link: LinkId(0),
            sequence: Sequence(0),
            ack: Sequence(0),
            transaction: 0,
            access_len: 0,
            detail: 0,
            address: 0,
            grant: GrantId(0),
            key: GrantKey(0),
        }
    }

    /// Writes header, payload and checksum (0 under [`UNCHECKED_FLAG`]) to the front of `buf`;
    /// returns the length of the frame in bytes.
    ///
    /// # Errors
    /// [`WireError::PayloadTooLong`] over [`MAX_PAYLOAD_BYTES`], [`WireError::BufferTooSmall`] when
    /// `buf` cannot hold the frame, [`WireError::UnknownOpcode`] when the opcode does not belong to
    /// the channel.
    pub fn emit(&self, payload: &[u8], buf: &mut [u8]) -> Result<usize, WireError> {
        self.emit_with(payload.len(), |room| room.copy_from_slice(payload), buf)
    }

    /// Like [`HeaderRepr::emit`], with a payload of `payload_len` bytes that `fill` writes in
    /// place. Serves payloads that lie in several places.
    ///
    /// # Errors
    /// Like [`HeaderRepr::emit`].
    pub fn emit_with(
        &self,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
        buf: &mut [u8],
    ) -> Result<usize, WireError> {
        let needed = HEADER_BYTES + payload_len;
        let frame = self.room(payload_len, needed, buf)?;
        fill(&mut frame[HEADER_BYTES..]);
        self.write_fields(payload_len as u16, frame);
        let is_unchecked = self.flags & UNCHECKED_FLAG != 0;
        let checksum = if is_unchecked { 0 } else { checksum(frame) };
        put(frame, offset::CHECKSUM, checksum.to_le_bytes());
        Ok(needed)
    }

    /// Like [`HeaderRepr::emit`], for a payload of `payload_len` bytes that is sent from another
    /// place. Writes the header to the front of `buf`; `feed` adds the payload to the checksum if
    /// there is one. Returns the length of the whole frame in bytes.
    ///
    /// # Errors
    /// Like [`HeaderRepr::emit`].
    pub fn emit_apart(
        &self,
        payload_len: usize,
        feed: impl FnOnce(&mut Checksum),
        buf: &mut [u8],
    ) -> Result<usize, WireError> {
        let head = self.room(payload_len, HEADER_BYTES, buf)?;
        self.write_fields(payload_len as u16, head);
        let is_unchecked = self.flags & UNCHECKED_FLAG != 0;
        let checksum = if is_unchecked { 0 } else { checksum_of_parts(head, feed) };
        put(head, offset::CHECKSUM, checksum.to_le_bytes());
        Ok(HEADER_BYTES + payload_len)
    }

    /// Returns the first `needed` bytes of `buf`, if a frame with this payload may be written
    /// there.
    fn room<'a>(
        &self,
        payload_len: usize,
        needed: usize,
        buf: &'a mut [u8],
    ) -> Result<&'a mut [u8], WireError> {
        if payload_len > MAX_PAYLOAD_BYTES {
            return Err(WireError::PayloadTooLong(payload_len));
        }
        if !self.opcode.is_on(self.channel) {
            let (channel, opcode) = (self.channel as u8, self.opcode as u8);
            return Err(WireError::UnknownOpcode { channel, opcode });
        }
        let len = buf.len();
        buf.get_mut(..needed).ok_or(WireError::BufferTooSmall { len, needed })
    }

    fn write_fields(&self, payload_len: u16, frame: &mut [u8]) {
        put(frame, offset::MAGIC, MAGIC.to_le_bytes());
        put(frame, offset::VERSION, [VERSION]);
        put(frame, offset::CHANNEL, [self.channel as u8]);
        put(frame, offset::OPCODE, [self.opcode as u8]);
        put(frame, offset::FLAGS, [self.flags]);
        put(frame, offset::PAYLOAD_LEN, payload_len.to_le_bytes());
        put(frame, offset::SOURCE, self.source.0.to_le_bytes());
        put(frame, offset::DESTINATION, self.destination.0.to_le_bytes());
        put(frame, offset::LINK, self.link.0.to_le_bytes());
        put(frame, offset::SEQUENCE, self.sequence.0.to_le_bytes());
        put(frame, offset::ACK, self.ack.0.to_le_bytes());
        put(frame, offset::TRANSACTION, self.transaction.to_le_bytes());
        put(frame, offset::ACCESS_LEN, self.access_len.to_le_bytes());
        put(frame, offset::DETAIL, self.detail.to_le_bytes());
        put(frame, offset::ADDRESS, self.address.to_le_bytes());
        put(frame, offset::GRANT, self.grant.0.to_le_bytes());
        put(frame, offset::KEY, self.key.0.to_le_bytes());
    }
}

fn put<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    frame[at..at + N].copy_from_slice(&bytes);
}

/// Computes CRC-32C over a header and a payload that `feed` supplies from elsewhere.
fn checksum_of_parts(head: &[u8], feed: impl FnOnce(&mut Checksum)) -> u32 {
    let mut checksum = Checksum::new();
    checksum.update_without(offset::CHECKSUM, head);
    feed(&mut checksum);
    checksum.value()
}

/// Computes CRC-32C over the whole frame except the checksum field itself.
pub(crate) fn checksum(frame: &[u8]) -> u32 {
    checksum_without(offset::CHECKSUM, frame)
}
