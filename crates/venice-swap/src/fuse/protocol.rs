//! The part of the FUSE protocol that a file system of one file needs (`linux/fuse.h`, version
//! 7.31): parses requests and builds answers, all in the machine's byte order.

/// Length of the header before every request.
pub(super) const REQUEST_HEADER_BYTES: usize = 40;
/// Length of a write's argument, before its bytes.
pub(super) const WRITE_ARGUMENT_BYTES: usize = 40;
/// Length of the header before every answer.
pub(super) const ANSWER_HEADER_BYTES: usize = 16;
/// The most bytes of one request. Larger ones would make readers wait behind writers.
pub(super) const MAX_TRANSFER_BYTES: usize = 256 << 10;

const VERSION: (u32, u32) = (7, 31);
/// Requests outstanding at a time; the kernel's default of 12 would let read-ahead and write-out
/// starve each other.
const MAX_BACKGROUND: u16 = 256;
/// Mode of the one file: a regular file for root.
pub(super) const FILE_MODE: u32 = libc::S_IFREG | 0o600;

const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
/// A second word of flags follows.
const MORE_FLAGS: u32 = 1 << 30;
/// `FUSE_OVER_IO_URING`, in the second word (Linux 6.14).
const BY_RING: u32 = 1 << (41 - 32);
const OPEN_DIRECT_IO: u32 = 1 << 0;
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Number of the request, repeated by its answer.
    pub unique: u64,
    pub call: Call,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Init {
        minor: u32,
        max_readahead: u32,
        flags: u32,
        more_flags: u32,
    },
    GetAttr,
    Open,
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        len: usize,
    },
    /// The range becomes zeros or a hole.
    Punch {
        offset: u64,
        len_bytes: u64,
    },
    StatFs,
    /// Needs no action.
    Done,
    /// Expects no answer.
    Silent,
    /// Not supported by this file system.
    Unknown,
    /// Shorter than required, or longer than negotiated.
    Malformed,
}

impl Request {
    /// Parses a request from its header, its argument, and the number of bytes that follow.
    pub(super) fn parse(header: &[u8], argument: &[u8], bytes: usize) -> Option<Self> {
        let (opcode, unique) = (u32_at(header, 4)?, u64_at(header, 8)?);
        let call = Call::parse(opcode, argument, bytes).unwrap_or(Call::Malformed);
        Some(Self { unique, call })
    }
}

impl Call {
    fn parse(opcode: u32, argument: &[u8], bytes: usize) -> Option<Self> {
        Some(match opcode {
            3 => Self::GetAttr,
            14 => Self::Open,
            15 => {
                let len = u32_at(argument, 16)? as usize;
                if len > MAX_TRANSFER_BYTES {
                    return None;
                }
                Self::Read { offset: u64_at(argument, 8)?, len }
            }
            16 => {
                let len = u32_at(argument, 16)? as usize;
                if len > MAX_TRANSFER_BYTES || len > bytes {
                    return None;
                }
                Self::Write { offset: u64_at(argument, 8)?, len }
            }
            17 => Self::StatFs,
            26 => Self::Init {
                minor: u32_at(argument, 4)?,
                max_readahead: u32_at(argument, 8)?,
                flags: u32_at(argument, 12)?,
                // Older kernels have one word.
                more_flags: u32_at(argument, 16).unwrap_or(0),
            },
            43 => {
                let mode = u32_at(argument, 24)? as libc::c_int;
                let zeroes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
                if mode & zeroes == 0 {
                    return Some(Self::Unknown);
                }
                Self::Punch { offset: u64_at(argument, 8)?, len_bytes: u64_at(argument, 16)? }
            }
            // RELEASE, FSYNC, DESTROY. FLUSH is unknown on purpose: the kernel then stops sending
            // it, and no close waits for the server.
            18 | 20 | 38 => Self::Done,
            // FORGET, INTERRUPT, BATCH_FORGET
            2 | 36 | 42 => Self::Silent,
            _ => Self::Unknown,
        })
    }
}

/// An answer under construction, in buffers of the caller.
pub(super) struct Answer<'a> {
    header: &'a mut [u8],
    body: &'a mut [u8],
    unique: u64,
}

impl<'a> Answer<'a> {
    pub(super) fn new(header: &'a mut [u8], body: &'a mut [u8], unique: u64) -> Self {
        Self { header, body, unique }
    }

    /// Returns the buffer for `len` bytes of the body.
    pub(super) fn body(&mut self, len: usize) -> &mut [u8] {
        &mut self.body[..len]
    }

    /// Completes a successful answer with the first `len` bytes of the body; returns that length.
    pub(super) fn ok(self, len: usize) -> usize {
        self.finish(0, len)
    }

    /// Completes a failed answer with this error number.
    pub(super) fn error(self, errno: i32) -> usize {
        self.finish(-errno, 0)
    }

    fn finish(self, error: i32, body_len: usize) -> usize {
        put32(self.header, 0, (ANSWER_HEADER_BYTES + body_len) as u32);
        self.header[4..8].copy_from_slice(&error.to_ne_bytes());
        put64(self.header, 8, self.unique);
        body_len
    }

    /// Negotiates the version and the features used.
    pub(super) fn init(mut self, max_readahead: u32, flags: u32, by_ring: bool) -> usize {
        let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
        let more = if by_ring { MORE_FLAGS } else { 0 };
        let body = zeroed(self.body(64));
        put32(body, 0, VERSION.0);
        put32(body, 4, VERSION.1);
        put32(body, 8, max_readahead);
        put32(body, 12, flags & wanted | more);
        put16(body, 16, MAX_BACKGROUND);
        put16(body, 18, MAX_BACKGROUND);
        put32(body, 20, MAX_TRANSFER_BYTES as u32);
        put32(body, 24, 1);
        put16(body, 28, (MAX_TRANSFER_BYTES / 4096) as u16);
        put32(body, 32, if by_ring { BY_RING } else { 0 });
        self.ok(64)
    }

    /// Returns the file's attributes, valid for an hour.
    pub(super) fn attributes(mut self, len_bytes: u64) -> usize {
        let body = zeroed(self.body(104));
        put64(body, 0, 3600);
        let file = &mut body[16..];
        put64(file, 0, 1);
        put64(file, 8, len_bytes);
        put64(file, 16, len_bytes / 512);
        put32(file, 60, FILE_MODE);
        put32(file, 64, 1);
        put32(file, 80, 4096);
        self.ok(104)
    }

    /// Reports the file as open: no cache of the kernel's, parallel writes.
    pub(super) fn open(mut self) -> usize {
        let body = zeroed(self.body(16));
        put32(body, 8, OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES);
        self.ok(16)
    }

    /// Reports the number of bytes written.
    pub(super) fn written(mut self, len: usize) -> usize {
        put32(zeroed(self.body(8)), 0, len as u32);
        self.ok(8)
    }

    /// Reports the file system. Its block size is a page, so discards come in whole pages.
    pub(super) fn file_system(mut self, len_bytes: u64) -> usize {
        let body = zeroed(self.body(80));
        put64(body, 0, len_bytes / 4096);
        put32(body, 40, 4096);
        put32(body, 44, 255);
        put32(body, 48, 4096);
        self.ok(80)
    }
}

/// True if the flags of the first request offer requests by rings.
pub(super) fn offers_rings(flags: u32, more_flags: u32) -> bool {
    flags & MORE_FLAGS != 0 && more_flags & BY_RING != 0
}

fn zeroed(bytes: &mut [u8]) -> &mut [u8] {
    bytes.fill(0);
    bytes
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(opcode: u32, argument: &[u8], bytes: usize) -> Call {
        let mut header = [0; REQUEST_HEADER_BYTES];
        put32(&mut header, 4, opcode);
        put64(&mut header, 8, 77);
        let request = Request::parse(&header, argument, bytes).unwrap();
        assert_eq!(request.unique, 77);
        request.call
    }

    #[test]
    fn requests_are_parsed() {
        let mut argument = [0u8; 40];
        put64(&mut argument, 8, 1 << 40);
        put32(&mut argument, 16, 8192);
        assert_eq!(call(15, &argument, 0), Call::Read { offset: 1 << 40, len: 8192 });
        assert_eq!(call(16, &argument, 8192), Call::Write { offset: 1 << 40, len: 8192 });
        put64(&mut argument, 16, 1 << 21);
        put32(&mut argument, 24, 3);
        let wanted = Call::Punch { offset: 1 << 40, len_bytes: 1 << 21 };
        assert_eq!(call(43, &argument, 0), wanted);
        put32(&mut argument, 24, 0);
        assert_eq!(call(43, &argument, 0), Call::Unknown);
        assert_eq!(call(1, &[], 0), Call::Unknown);
    }

    #[test]
    fn wrong_length_requests_are_malformed() {
        for opcode in [15, 16, 26, 43] {
            for len in 0..16 {
                assert_eq!(call(opcode, &vec![0; len], 0), Call::Malformed);
            }
        }
        let mut argument = [0u8; 40];
        put32(&mut argument, 16, 2);
        assert_eq!(call(16, &argument, 1), Call::Malformed);
        put32(&mut argument, 16, MAX_TRANSFER_BYTES as u32 + 1);
        assert_eq!(call(15, &argument, 0), Call::Malformed);
        assert_eq!(call(16, &argument, usize::MAX), Call::Malformed);
        assert_eq!(Request::parse(&[0; 15], &argument, 0), None);
    }

    #[test]
    fn answer_carries_id_and_length() {
        let (mut header, mut body) = ([9u8; ANSWER_HEADER_BYTES], [9u8; 256]);
        let len = Answer::new(&mut header, &mut body, 77).attributes(1 << 30);
        assert_eq!((len, u32_at(&header, 0), u64_at(&header, 8)), (104, Some(120), Some(77)));
        // Offsets of ino, size and mode in `struct fuse_attr`.
        assert_eq!((u64_at(&body, 16), u64_at(&body, 24)), (Some(1), Some(1 << 30)));
        assert_eq!(u32_at(&body, 16 + 60), Some(FILE_MODE));
        let len = Answer::new(&mut header, &mut body, 78).error(libc::EIO);
        assert_eq!((len, u32_at(&header, 0)), (0, Some(16)));
        assert_eq!(u32_at(&header, 4), Some((-libc::EIO) as u32));
    }

    #[test]
    fn rings_are_negotiated_if_offered() {
        let mut argument = [0u8; 64];
        put32(&mut argument, 12, ASYNC_READ | MORE_FLAGS);
        put32(&mut argument, 16, BY_RING);
        let Call::Init { flags, more_flags, .. } = call(26, &argument, 0) else { panic!() };
        assert!(offers_rings(flags, more_flags) && !offers_rings(flags & !MORE_FLAGS, more_flags));
        let (mut header, mut body) = ([0u8; ANSWER_HEADER_BYTES], [0u8; 64]);
        for by_ring in [true, false] {
            Answer::new(&mut header, &mut body, 1).init(0, flags, by_ring);
            let agreed = (u32_at(&body, 12).unwrap(), u32_at(&body, 32).unwrap());
            assert_eq!(offers_rings(agreed.0, agreed.1), by_ring);
            assert_ne!(agreed.0 & ASYNC_READ, 0);
        }
        // A kernel with one word of flags.
        let Call::Init { more_flags: 0, .. } = call(26, &argument[..16], 0) else { panic!() };
    }
}
