//! Messages on the socket: one request, one reply, little-endian, a fixed layout each.
//!
//! | bytes | request | reply |
//! |---|---|---|
//! | 0..4 | magic `VSHM` | magic `VSHM` |
//! | 4..6 | version, 1 | version, 1 |
//! | 6..8 | zero: slabs of a grant | status: 0 = slabs follow, 1 = refused, 3 = slabs of a device follow |
//! | 8..16 | grant id | total: slabs in the whole grant |
//! | 16..24 | grant key | first: index of the first slab here |
//! | 24..28 | first: index of the first slab wanted | count: descriptors with this message |
//! | 28..32 | count: slabs wanted, 1..=64 | length of the text that follows |
//! | 32.. | | UTF-8: the reason of a refusal; with slabs the link to emulate, if any |
//!
//! Slabs of a device begin at any offset in it: before the text there are eight bytes for each
//! slab, its offset in its descriptor.
//!
//! A *ring offer* is the first message of a ring listener, sent without a request, or to a caller
//! that has shown what admits it, at most 64 bytes in its first message ([`crate::ring`]): status 2, total = lines of each ring, first = 1 if the rings carry the records
//! of a pipe and 0 if they carry frames, count = 1 for the memory's descriptor, text = the emulated
//! link or none. After it the connection carries bells only: any message means
//! "look at the ring".

use venice_wire::{GrantId, GrantKey};

/// Most descriptors in one message.
pub(crate) const SLABS_PER_MESSAGE: usize = 64;
/// Length of a request, and of a reply without its text, in bytes.
pub(crate) const HEADER_LEN: usize = 32;
/// Longest text of a refusal, in bytes.
pub(crate) const TEXT_LEN: usize = 480;
/// Longest reply, in bytes.
pub(crate) const REPLY_LEN: usize = HEADER_LEN + SLABS_PER_MESSAGE * OFFSET_LEN + TEXT_LEN;

const OFFSET_LEN: usize = 8;

const MAGIC: [u8; 4] = *b"VSHM";
const VERSION: u16 = 1;
const REFUSED: u16 = 1;
const RING: u16 = 2;
const DEVICE_SLABS: u16 = 3;

/// Request of a recipient to the donor for slabs of its grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) grant: GrantId,
    pub(crate) key: GrantKey,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Request {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.grant.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.first.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Decodes a request. The error describes the violation.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: &[u8; HEADER_LEN] =
            bytes.try_into().map_err(|_| "request is not 32 bytes long")?;
        check_start(bytes)?;
        let request = Self {
            grant: GrantId(u64_at(bytes, 8)),
            key: GrantKey(u64_at(bytes, 16)),
            first: u32_at(bytes, 24),
            count: u32_at(bytes, 28),
        };
        match request.count as usize {
            1..=SLABS_PER_MESSAGE => Ok(request),
            _ => Err("slab count is not 1 to 64"),
        }
    }
}

/// Reply of the donor to a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Slabs `first..first + count` of `total`: `count` descriptors come with this message. A
    /// recipient that maps them must behave as if the donor were at the end of `link`. `offsets`
    /// holds the start of each slab in its descriptor; empty: all start at 0.
    Slabs { total: u64, first: u64, count: u32, link: String, offsets: Vec<u64> },
    /// Refusal, with its reason.
    Refused { reason: String },
    /// The memory of a pair of rings of `lines` lines each comes with this message. `is_pipe`: they
    /// carry the records of a pipe, not frames.
    Ring { lines: u64, is_pipe: bool, link: String },
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        match self {
            Self::Slabs { total, first, count, link, offsets } => {
                assert!(offsets.is_empty() || offsets.len() == *count as usize, "one for each");
                if !offsets.is_empty() {
                    bytes[6..8].copy_from_slice(&DEVICE_SLABS.to_le_bytes());
                }
                bytes[8..16].copy_from_slice(&total.to_le_bytes());
                bytes[16..24].copy_from_slice(&first.to_le_bytes());
                bytes[24..28].copy_from_slice(&count.to_le_bytes());
                bytes.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
                append_text(&mut bytes, link);
            }
            Self::Refused { reason } => {
                bytes[6..8].copy_from_slice(&REFUSED.to_le_bytes());
                append_text(&mut bytes, reason);
            }
            Self::Ring { lines, is_pipe, link } => {
                bytes[6..8].copy_from_slice(&RING.to_le_bytes());
                bytes[8..16].copy_from_slice(&lines.to_le_bytes());
                bytes[16..24].copy_from_slice(&u64::from(*is_pipe).to_le_bytes());
                bytes[24..28].copy_from_slice(&1u32.to_le_bytes());
                append_text(&mut bytes, link);
            }
        }
        bytes
    }

    /// Decodes a reply. The error describes the violation.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (header, text) = bytes.split_first_chunk::<HEADER_LEN>().ok_or("reply too short")?;
        check_start(header)?;
        let status = u16::from_le_bytes([header[6], header[7]]);
        let (offsets, text) = match status {
            DEVICE_SLABS => take_offsets(text, u32_at(header, 24))?,
            _ => (Vec::new(), text),
        };
        if text.len() != u32_at(header, 28) as usize {
            return Err("text length differs from its header");
        }
        match status {
            0 | DEVICE_SLABS => Ok(Self::Slabs {
                total: u64_at(header, 8),
                first: u64_at(header, 16),
                count: u32_at(header, 24),
                link: String::from_utf8_lossy(text).into_owned(),
                offsets,
            }),
            REFUSED => Ok(Self::Refused { reason: String::from_utf8_lossy(text).into_owned() }),
            RING => Ok(Self::Ring {
                lines: u64_at(header, 8),
                is_pipe: u64_at(header, 16) == 1,
                link: String::from_utf8_lossy(text).into_owned(),
            }),
            _ => Err("unknown status"),
        }
    }
}

/// Splits the offsets before the text from the text.
fn take_offsets(bytes: &[u8], count: u32) -> Result<(Vec<u64>, &[u8]), &'static str> {
    let count = count as usize;
    if count > SLABS_PER_MESSAGE {
        return Err("too many slabs in one message");
    }
    let (offsets, text) = bytes.split_at_checked(count * OFFSET_LEN).ok_or("offsets missing")?;
    Ok(((0..count).map(|at| u64_at(offsets, at * OFFSET_LEN)).collect(), text))
}

fn append_text(bytes: &mut Vec<u8>, text: &str) {
    let text = &text.as_bytes()[..text.len().min(TEXT_LEN)];
    bytes[28..32].copy_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text);
}

fn check_start(header: &[u8; HEADER_LEN]) -> Result<(), &'static str> {
    if header[0..4] != MAGIC {
        return Err("wrong magic number (is it a Venice agent?)");
    }
    if header[4..6] != VERSION.to_le_bytes() {
        return Err("another version of the shm protocol");
    }
    Ok(())
}

fn u32_at(header: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(header: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn request_roundtrip(grant: u64, key: u64, first: u32, count in 1u32..=64) {
            let request = Request { grant: GrantId(grant), key: GrantKey(key), first, count };
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn reply_roundtrip(
            total: u64,
            first: u64,
            count: u32,
            reason in ".{0,100}",
            offsets in proptest::collection::vec(any::<u64>(), 1..=SLABS_PER_MESSAGE),
        ) {
            let link = reason.clone();
            let slabs = Reply::Slabs { total, first, count, link: link.clone(), offsets: Vec::new() };
            prop_assert_eq!(Reply::decode(&slabs.encode()), Ok(slabs.clone()));
            let count = offsets.len() as u32;
            let in_device = Reply::Slabs { total, first, count, link, offsets };
            prop_assert_eq!(Reply::decode(&in_device.encode()), Ok(in_device.clone()));
            let mut short = in_device.encode();
            short.truncate(HEADER_LEN + 7);
            prop_assert!(Reply::decode(&short).is_err());
            let ring = Reply::Ring { lines: total, is_pipe: count % 2 == 1, link: reason.clone() };
            prop_assert_eq!(Reply::decode(&ring.encode()), Ok(ring.clone()));
            let refused = Reply::Refused { reason };
            prop_assert_eq!(Reply::decode(&refused.encode()), Ok(refused.clone()));
        }

        #[test]
        fn decode_survives_garbage(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Request::decode(&bytes);
            let _ = Reply::decode(&bytes);
        }
    }

    #[test]
    fn request_rejects_bad_slab_count() {
        for count in [0, 65, u32::MAX] {
            let request = Request { grant: GrantId(1), key: GrantKey(2), first: 0, count };
            assert!(Request::decode(&request.encode()).is_err());
        }
    }

    #[test]
    fn long_reason_is_truncated() {
        let reply = Reply::Refused { reason: "x".repeat(10_000) };
        let Ok(Reply::Refused { reason }) = Reply::decode(&reply.encode()) else { panic!() };
        assert_eq!(reason.len(), TEXT_LEN);
    }
}
