//! Messages between recipient and donor over TCP before the devices talk: little-endian, described
//! field by field in `docs/reference/wire.md`.

use venice_wire::{GrantId, GrantKey};

use super::abi::Gid;
use super::device::PortAddress;
use super::queue::QueuePairAddress;

/// Magic number: `VNRC` in memory order.
const MAGIC: [u8; 4] = *b"VNRC";
const VERSION: u16 = 1;
/// Length of a queue pair's address: GID, LID, MTU, reads, number, first packet.
const ADDRESS_LEN: usize = 16 + 2 + 1 + 1 + 4 + 4;
/// Length of [`Hello`].
pub(super) const HELLO_LEN: usize = 8 + 16 + ADDRESS_LEN;
/// Length of the front of [`Welcome`].
pub(super) const WELCOME_LEN: usize = 16 + ADDRESS_LEN;
/// Most slabs of a grant: 16 TiB.
const MAX_SLABS: u64 = 1 << 20;
/// Longest reason of a refusal, in bytes.
const MAX_TEXT: u64 = 512;

/// Byte that the donor sends, once only, when it revokes a grant. Then it closes the connection.
pub(super) const REVOKED: u8 = b'R';

/// Request of a recipient: its grant and its own queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub grant: GrantId,
    pub key: GrantKey,
    pub address: QueuePairAddress,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        let mut at = Writer(&mut bytes);
        at.put(&MAGIC);
        at.put(&VERSION.to_le_bytes());
        at.put(&[0; 2]);
        at.put(&self.grant.0.to_le_bytes());
        at.put(&self.key.0.to_le_bytes());
        at.put_address(&self.address);
        bytes
    }

    /// Decodes a request. The error describes the violation.
    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, &'static str> {
        let mut from = Reader(bytes);
        from.take_front()?;
        let _reserved: [u8; 2] = from.take();
        Ok(Self {
            grant: GrantId(u64::from_le_bytes(from.take())),
            key: GrantKey(u64::from_le_bytes(from.take())),
            address: from.take_address(),
        })
    }
}

/// Front of the donor's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Welcome {
    /// The donor's queue pair; `slabs` keys follow, 4 bytes each.
    Granted { slabs: u64, address: QueuePairAddress },
    /// Refusal; a reason of `text_len` bytes follows.
    Refused { text_len: u64 },
}

impl Welcome {
    pub(super) fn encode(&self) -> [u8; WELCOME_LEN] {
        let mut bytes = [0; WELCOME_LEN];
        let mut at = Writer(&mut bytes);
        at.put(&MAGIC);
        at.put(&VERSION.to_le_bytes());
        match self {
            Self::Granted { slabs, address } => {
                at.put(&0u16.to_le_bytes());
                at.put(&slabs.to_le_bytes());
                at.put_address(address);
            }
            Self::Refused { text_len } => {
                at.put(&1u16.to_le_bytes());
                at.put(&text_len.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes the front of an answer. The error describes the violation.
    pub(super) fn decode(bytes: &[u8; WELCOME_LEN]) -> Result<Self, &'static str> {
        let mut from = Reader(bytes);
        from.take_front()?;
        let status = u16::from_le_bytes(from.take());
        let len = u64::from_le_bytes(from.take());
        match status {
            0 if len <= MAX_SLABS => Ok(Self::Granted { slabs: len, address: from.take_address() }),
            1 if len <= MAX_TEXT => Ok(Self::Refused { text_len: len }),
            _ => Err("invalid answer"),
        }
    }

    /// Encodes a whole refusal.
    pub(super) fn refusal(reason: &str) -> Vec<u8> {
        let mut end = reason.len().min(MAX_TEXT as usize);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = Self::Refused { text_len: end as u64 }.encode().to_vec();
        bytes.extend_from_slice(&reason.as_bytes()[..end]);
        bytes
    }
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.0 = rest;
    }

    fn put_address(&mut self, address: &QueuePairAddress) {
        self.put(&address.port.gid.0);
        self.put(&address.port.lid.to_le_bytes());
        self.put(&[address.port.mtu, address.reads]);
        self.put(&address.number.to_le_bytes());
        self.put(&address.first_packet.to_le_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (here, rest) = self.0.split_first_chunk().expect("the messages have fixed lengths");
        self.0 = rest;
        *here
    }

    fn take_front(&mut self) -> Result<(), &'static str> {
        if self.take() != MAGIC {
            return Err("wrong magic number (is it a Venice agent?)");
        }
        if u16::from_le_bytes(self.take()) != VERSION {
            return Err("another protocol version");
        }
        Ok(())
    }

    fn take_address(&mut self) -> QueuePairAddress {
        let gid = Gid(self.take());
        let lid = u16::from_le_bytes(self.take());
        let [mtu, reads] = self.take();
        QueuePairAddress {
            // The index in the table is local to each side.
            port: PortAddress { gid, gid_index: 0, lid, mtu },
            reads,
            number: u32::from_le_bytes(self.take()),
            first_packet: u32::from_le_bytes(self.take()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> impl Strategy<Value = QueuePairAddress> {
        let port = (any::<[u8; 16]>(), any::<u16>(), any::<u8>());
        (port, any::<u8>(), any::<u32>(), any::<u32>()).prop_map(
            |((gid, lid, mtu), reads, number, first_packet)| QueuePairAddress {
                port: PortAddress { gid: Gid(gid), gid_index: 0, lid, mtu },
                reads,
                number,
                first_packet,
            },
        )
    }

    proptest! {
        #[test]
        fn messages_roundtrip(
            address in address(), grant in any::<u64>(), key in any::<u64>(), slabs in 0..MAX_SLABS
        ) {
            let hello = Hello { grant: GrantId(grant), key: GrantKey(key), address };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            let welcome = Welcome::Granted { slabs, address };
            prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        }

        #[test]
        fn decode_rejects_garbage(bytes in any::<[u8; HELLO_LEN]>()) {
            if bytes[..4] != MAGIC {
                prop_assert!(Hello::decode(&bytes).is_err());
            }
            let _ = Welcome::decode(bytes.first_chunk().expect("it is shorter"));
        }

        #[test]
        fn refusal_truncates_long_reason(reason in ".{0,600}") {
            let bytes = Welcome::refusal(&reason);
            let (front, text) = bytes.split_first_chunk().expect("a front");
            let text_len = text.len() as u64;
            prop_assert_eq!(Welcome::decode(front), Ok(Welcome::Refused { text_len }));
            prop_assert!(reason.starts_with(std::str::from_utf8(text).unwrap()));
        }
    }
}
