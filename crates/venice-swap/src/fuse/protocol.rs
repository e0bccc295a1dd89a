//! The part of the FUSE protocol that a file system of one file needs (`linux/fuse.h`, version
//! 7.31): requests taken apart, answers put together, all in the machine's byte order.

/// Length of the header before every answer.
pub(super) const ANSWER_HEADER_BYTES: usize = 16;
/// Length of what comes before the bytes of a write.
pub(super) const WRITE_HEADER_BYTES: usize = REQUEST_HEADER_BYTES + 40;
/// What one request carries at most. Larger ones would have readers wait behind writers.
pub(super) const MAX_TRANSFER_BYTES: usize = 256 << 10;

const REQUEST_HEADER_BYTES: usize = 40;
const VERSION: (u32, u32) = (7, 31);
/// Requests on their way at a time; the kernel's default of 12 would let read-ahead and write-out
/// starve each other.
const MAX_BACKGROUND: u16 = 256;
/// Mode of the one file: a regular file for root.
pub(super) const FILE_MODE: u32 = libc::S_IFREG | 0o600;

const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
const OPEN_DIRECT_IO: u32 = 1 << 0;
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// Named by its answer.
    pub unique: u64,
    pub call: Call<'a>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call<'a> {
    Init {
        minor: u32,
        max_readahead: u32,
        flags: u32,
    },
    GetAttr,
    Open,
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        bytes: &'a [u8],
    },
    /// Zeros or nothing from here on.
    Punch {
        offset: u64,
        len_bytes: u64,
    },
    StatFs,
    /// Nothing to do.
    Done,
    /// No answer is wanted.
    Silent,
    /// This file system has none of that.
    Unknown,
    /// Shorter than it should be, or longer than was agreed.
    Malformed,
}

impl<'a> Request<'a> {
    /// Takes apart what one read of the device brought.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let opcode = u32_at(bytes, 4)?;
        let unique = u64_at(bytes, 8)?;
        let body = bytes.get(REQUEST_HEADER_BYTES..)?;
        Some(Self { unique, call: Call::parse(opcode, body).unwrap_or(Call::Malformed) })
    }
}

impl<'a> Call<'a> {
    fn parse(opcode: u32, body: &'a [u8]) -> Option<Self> {
        Some(match opcode {
            3 => Self::GetAttr,
            14 => Self::Open,
            15 => {
                let len = u32_at(body, 16)? as usize;
                if len > MAX_TRANSFER_BYTES {
                    return None;
                }
                Self::Read { offset: u64_at(body, 8)?, len }
            }
            16 => {
                let len = u32_at(body, 16)? as usize;
                Self::Write { offset: u64_at(body, 8)?, bytes: body.get(40..)?.get(..len)? }
            }
            17 => Self::StatFs,
            26 => Self::Init {
                minor: u32_at(body, 4)?,
                max_readahead: u32_at(body, 8)?,
                flags: u32_at(body, 12)?,
            },
            43 => {
                let mode = u32_at(body, 24)? as libc::c_int;
                let zeroes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
                if mode & zeroes == 0 {
                    return Some(Self::Unknown);
                }
                Self::Punch { offset: u64_at(body, 8)?, len_bytes: u64_at(body, 16)? }
            }
            // RELEASE, FSYNC, DESTROY. FLUSH is unknown on purpose: the kernel then asks no more, and
            // no close waits for the server.
            18 | 20 | 38 => Self::Done,
            // FORGET, INTERRUPT, BATCH_FORGET
            2 | 36 | 42 => Self::Silent,
            _ => Self::Unknown,
        })
    }
}

/// An answer in the making, in a buffer of the caller.
pub(super) struct Answer<'a> {
    buffer: &'a mut [u8],
    unique: u64,
}

impl<'a> Answer<'a> {
    pub(super) fn new(buffer: &'a mut [u8], unique: u64) -> Self {
        Self { buffer, unique }
    }

    /// Where `len` bytes of the answer go.
    pub(super) fn body(&mut self, len: usize) -> &mut [u8] {
        &mut self.buffer[ANSWER_HEADER_BYTES..ANSWER_HEADER_BYTES + len]
    }

    /// It went well, and the first `len` bytes of the body are the answer; its whole length.
    pub(super) fn ok(self, len: usize) -> usize {
        self.finish(0, len)
    }

    /// It failed with this error number.
    pub(super) fn error(self, errno: i32) -> usize {
        self.finish(-errno, 0)
    }

    fn finish(self, error: i32, body_len: usize) -> usize {
        let len = ANSWER_HEADER_BYTES + body_len;
        self.buffer[0..4].copy_from_slice(&(len as u32).to_ne_bytes());
        self.buffer[4..8].copy_from_slice(&error.to_ne_bytes());
        self.buffer[8..16].copy_from_slice(&self.unique.to_ne_bytes());
        len
    }

    /// Agrees on the version and on what is used of it.
    pub(super) fn init(mut self, max_readahead: u32, flags: u32) -> usize {
        let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
        let body = zeroed(self.body(64));
        put32(body, 0, VERSION.0);
        put32(body, 4, VERSION.1);
        put32(body, 8, max_readahead);
        put32(body, 12, flags & wanted);
        put16(body, 16, MAX_BACKGROUND);
        put16(body, 18, MAX_BACKGROUND);
        put32(body, 20, MAX_TRANSFER_BYTES as u32);
        put32(body, 24, 1);
        put16(body, 28, (MAX_TRANSFER_BYTES / 4096) as u16);
        self.ok(64)
    }

    /// The file's attributes, good for an hour.
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

    /// The file is open: no cache of the kernel's, writes side by side.
    pub(super) fn open(mut self) -> usize {
        let body = zeroed(self.body(16));
        put32(body, 8, OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES);
        self.ok(16)
    }

    /// So many bytes were written.
    pub(super) fn written(mut self, len: usize) -> usize {
        put32(zeroed(self.body(8)), 0, len as u32);
        self.ok(8)
    }

    /// The block size is that of a page: discards come in whole pages.
    pub(super) fn file_system(mut self, len_bytes: u64) -> usize {
        let body = zeroed(self.body(80));
        put64(body, 0, len_bytes / 4096);
        put32(body, 40, 4096);
        put32(body, 44, 255);
        put32(body, 48, 4096);
        self.ok(80)
    }
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

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; REQUEST_HEADER_BYTES];
        put32(&mut bytes, 4, opcode);
        put64(&mut bytes, 8, 77);
        bytes.extend_from_slice(body);
        bytes
    }

    fn call(bytes: &[u8]) -> Call<'_> {
        let request = Request::parse(bytes).unwrap();
        assert_eq!(request.unique, 77);
        request.call
    }

    #[test]
    fn requests_are_taken_apart() {
        let mut body = [0u8; 40];
        put64(&mut body, 8, 1 << 40);
        put32(&mut body, 16, 8192);
        assert_eq!(call(&request(15, &body)), Call::Read { offset: 1 << 40, len: 8192 });
        let write = [&body[..], &[5; 8192]].concat();
        let wanted = Call::Write { offset: 1 << 40, bytes: &[5; 8192] };
        assert_eq!(call(&request(16, &write)), wanted);
        put64(&mut body, 16, 1 << 21);
        put32(&mut body, 24, 3);
        let wanted = Call::Punch { offset: 1 << 40, len_bytes: 1 << 21 };
        assert_eq!(call(&request(43, &body)), wanted);
        put32(&mut body, 24, 0);
        assert_eq!(call(&request(43, &body)), Call::Unknown);
        assert_eq!(call(&request(1, &[])), Call::Unknown);
    }

    #[test]
    fn requests_cut_short_or_too_long_are_malformed() {
        for opcode in [15, 16, 26, 43] {
            for len in 0..16 {
                assert_eq!(call(&request(opcode, &vec![0; len])), Call::Malformed);
            }
        }
        let mut body = [0u8; 40];
        put32(&mut body, 16, 1);
        assert_eq!(call(&request(16, &body)), Call::Malformed);
        put32(&mut body, 16, MAX_TRANSFER_BYTES as u32 + 1);
        assert_eq!(call(&request(15, &body)), Call::Malformed);
        assert_eq!(Request::parse(&[0; REQUEST_HEADER_BYTES - 1]), None);
    }

    #[test]
    fn an_answer_says_whose_it_is_and_how_long() {
        let mut buffer = [9u8; 256];
        let len = Answer::new(&mut buffer, 77).attributes(1 << 30);
        assert_eq!((len, u32_at(&buffer, 0), u64_at(&buffer, 8)), (120, Some(120), Some(77)));
        // ino, size and mode of `struct fuse_attr`.
        assert_eq!((u64_at(&buffer, 32), u64_at(&buffer, 40)), (Some(1), Some(1 << 30)));
        assert_eq!(u32_at(&buffer, 32 + 60), Some(FILE_MODE));
        let len = Answer::new(&mut buffer, 78).error(libc::EIO);
        assert_eq!((len, u32_at(&buffer, 4)), (16, Some((-libc::EIO) as u32)));
    }
}
