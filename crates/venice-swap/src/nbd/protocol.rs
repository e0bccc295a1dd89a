//! The part of the NBD protocol that the kernel uses once a device is set up: requests and simple
//! replies, in network byte order.

/// Length of a request, without the bytes of a write.
pub(super) const REQUEST_BYTES: usize = 28;
/// Length of a reply, without the bytes of a read.
pub(super) const REPLY_BYTES: usize = 16;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Flags of the device: it has flags, supports trim, and its connections share one state.
pub(super) const DEVICE_FLAGS: libc::c_ulong = 1 | 1 << 5 | 1 << 8;

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Number of the request, repeated by the reply.
    pub cookie: [u8; 8],
    pub call: Call,
    pub offset: u64,
    pub len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
    Trim,
    /// All earlier writes are stored when they are answered.
    Flush,
    Disconnect,
    Unknown,
}

impl Request {
    /// Parses a request; `None` if it is invalid, and nothing behind it can be trusted.
    pub(super) fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| bytes[at + index]));
        if number(0) != REQUEST_MAGIC {
            return None;
        }
        // The upper half holds flags of the command.
        let call = match number(4) & 0xffff {
            0 => Call::Read,
            1 => Call::Write,
            2 => Call::Disconnect,
            3 => Call::Flush,
            4 => Call::Trim,
            _ => Call::Unknown,
        };
        let cookie = [0, 1, 2, 3, 4, 5, 6, 7].map(|index| bytes[8 + index]);
        let offset = u64::from(number(16)) << 32 | u64::from(number(20));
        Some(Self { cookie, call, offset, len: number(24) })
    }
}

/// Writes the header of a reply; `errno` 0: success.
pub(super) fn reply(into: &mut [u8], cookie: [u8; 8], errno: i32) {
    into[0..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    into[4..8].copy_from_slice(&(errno as u32).to_be_bytes());
    into[8..16].copy_from_slice(&cookie);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed() {
        let mut bytes = [0u8; REQUEST_BYTES];
        assert_eq!(Request::parse(&bytes), None);
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&(1 << 16 | 4u32).to_be_bytes());
        bytes[8..16].copy_from_slice(b"a cookie");
        bytes[16..24].copy_from_slice(&(5u64 << 33).to_be_bytes());
        bytes[24..28].copy_from_slice(&8192u32.to_be_bytes());
        let wanted = Request { cookie: *b"a cookie", call: Call::Trim, offset: 5 << 33, len: 8192 };
        assert_eq!(Request::parse(&bytes), Some(wanted));
        let mut head = [9u8; REPLY_BYTES];
        reply(&mut head, *b"a cookie", libc::EIO);
        assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, libc::EIO as u8]);
    }
}
