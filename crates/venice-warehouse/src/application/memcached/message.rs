//! Requests and answers, in the 64 bits that a simulated message says.

use venice_simkernel::random::Stream;

use super::Memcached;
use crate::traffic;

/// Bytes of memcached's own header of a datagram (`doc/protocol.txt`).
pub(super) const FRAME_BYTES: u32 = 8;
/// Most bytes of an answer in one datagram (`memcached.c`: `UDP_MAX_PAYLOAD_SIZE`).
pub(super) const DATAGRAM_BYTES: u32 = 1400;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Its number at its client.
    pub number: u32,
    pub is_read: bool,
    pub is_hit: bool,
    pub key_bytes: u32,
    pub value_bytes: u32,
}

impl Request {
    /// Draws a request.
    pub fn draw(number: u32, config: &Memcached, random: &mut Stream) -> Self {
        let most = config.largest_value.0 as u32;
        Self {
            number,
            is_read: random.chance(config.reads.0),
            is_hit: random.chance(config.hits.0),
            key_bytes: traffic::etc_key(random),
            value_bytes: traffic::etc_value(random, most),
        }
    }

    /// Bytes of the request: `get KEY`, or `set KEY FLAGS TIME BYTES` and the value.
    pub fn bytes(&self) -> u32 {
        if self.is_read { 6 + self.key_bytes } else { 20 + self.key_bytes + self.value_bytes }
    }

    /// Bytes of the answer: `VALUE KEY FLAGS BYTES`, the value and `END`; `END`; or `STORED`.
    pub fn answer_bytes(&self) -> u32 {
        match (self.is_read, self.is_hit) {
            (true, true) => 24 + self.key_bytes + self.value_bytes,
            (true, false) => 5,
            (false, _) => 8,
        }
    }

    /// Packs it: 32 bits of number, two flags, 8 bits of key length, 22 of value length.
    pub fn pack(&self) -> u64 {
        u64::from(self.number) << 32
            | u64::from(self.is_read) << 31
            | u64::from(self.is_hit) << 30
            | u64::from(self.key_bytes & 0xff) << 22
            | u64::from(self.value_bytes & 0x3f_ffff)
    }

    pub fn unpack(message: u64) -> Self {
        Self {
            number: (message >> 32) as u32,
            is_read: message >> 31 & 1 == 1,
            is_hit: message >> 30 & 1 == 1,
            key_bytes: (message >> 22) as u32 & 0xff,
            value_bytes: message as u32 & 0x3f_ffff,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_round_trip(seed in any::<u64>(), number in any::<u32>()) {
            let config = Memcached::default();
            let request = Request::draw(number, &config, &mut Stream::new(seed));
            prop_assert_eq!(Request::unpack(request.pack()), request);
        }
    }
}
