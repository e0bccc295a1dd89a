//! The part of the FUSE protocol that shared files need (`linux/fuse.h`, version 7.31): parses
//! requests and builds replies, all in the machine's byte order.

/// Most bytes of a read or a write.
pub(super) const MOST_BYTES: usize = 256 << 10;
/// Length of the header before every request.
pub(super) const REQUEST_HEADER_BYTES: usize = 40;
/// Length of the header before every reply.
pub(super) const REPLY_HEADER_BYTES: usize = 16;
/// Mode of the root: a directory in which everyone makes files, and removes their own.
pub(super) const ROOT_MODE: u32 = 0o041777;
/// Inode number of the root.
pub(super) const ROOT: u64 = 1;
/// Mode bits of a regular file.
pub(super) const REGULAR: u32 = 0o100000;

const VERSION: (u32, u32) = (7, 31);
const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
const MOST_OUTSTANDING: u16 = 64;
/// Every change of a file passes the kernel, so its cached attributes hold for an hour.
const ATTRIBUTES_VALID_S: u64 = 3600;
/// No cache of the kernel's, parallel writes. The kernel refuses to map such a file shared.
const OPEN_FLAGS: u32 = 1 << 0 | 1 << 6;
const WRITE_ARGUMENT_BYTES: usize = 40;

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// Its number, which the reply repeats.
    pub unique: u64,
    /// The inode that it is about.
    pub inode: u64,
    /// User and group of the process that makes it.
    pub owner: (u32, u32),
    pub call: Call<'a>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call<'a> {
    Init {
        max_readahead: u32,
        flags: u32,
    },
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    /// Pairs of an inode number and its lookups, 16 bytes each.
    ForgetAll {
        pairs: &'a [u8],
    },
    GetAttributes,
    SetAttributes(Changes),
    Create {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Open,
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        bytes: &'a [u8],
    },
    Allocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    StatFs,
    /// Needs no action.
    Done,
    /// Expects no reply.
    Silent,
    Unknown,
    Malformed,
}

/// Changes of a file's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub mode: Option<u32>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub len_bytes: Option<u64>,
    /// Time of the last change of contents: seconds, nanoseconds.
    pub modified: Option<(u64, u32)>,
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub inode: u64,
    pub mode: u32,
    pub owner: (u32, u32),
    pub links: u32,
    pub len_bytes: u64,
    pub modified: (u64, u32),
}

impl<'a> Request<'a> {
    /// Parses a request; `None`: it is shorter than its header.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (header, argument) = bytes.split_at_checked(REQUEST_HEADER_BYTES)?;
        let call = Call::parse(u32_at(header, 4)?, argument).unwrap_or(Call::Malformed);
        let owner = (u32_at(header, 24)?, u32_at(header, 28)?);
        Some(Request { unique: u64_at(header, 8)?, inode: u64_at(header, 16)?, owner, call })
    }
}

impl<'a> Call<'a> {
    fn parse(opcode: u32, argument: &'a [u8]) -> Option<Call<'a>> {
        Some(match opcode {
            1 => Call::Lookup { name: name_at(argument, 0)? },
            2 => Call::Forget { lookups: u64_at(argument, 0)? },
            3 => Call::GetAttributes,
            4 => Call::SetAttributes(Changes::parse(argument)?),
            10 => Call::Unlink { name: name_at(argument, 0)? },
            14 => Call::Open,
            15 => {
                let len = u32_at(argument, 16)? as usize;
                let offset = u64_at(argument, 8)?;
                (len <= MOST_BYTES).then_some(Call::Read { offset, len })?
            }
            16 => {
                let len = u32_at(argument, 16)? as usize;
                let bytes = argument.get(WRITE_ARGUMENT_BYTES..)?.get(..len)?;
                Call::Write { offset: u64_at(argument, 8)?, bytes }
            }
            17 => Call::StatFs,
            26 => Call::Init { max_readahead: u32_at(argument, 8)?, flags: u32_at(argument, 12)? },
            35 => Call::Create { name: name_at(argument, 16)?, mode: u32_at(argument, 4)? },
            42 => {
                let count = u32_at(argument, 0)? as usize;
                Call::ForgetAll { pairs: argument.get(8..)?.get(..count.checked_mul(16)?)? }
            }
            43 => Call::Allocate {
                offset: u64_at(argument, 8)?,
                len: u64_at(argument, 16)?,
                mode: u32_at(argument, 24)?,
            },
            // RELEASE, FSYNC, DESTROY. FLUSH is unknown on purpose: the kernel then stops sending
            // it, and no close waits for the server.
            18 | 20 | 38 => Call::Done,
            // INTERRUPT
            36 => Call::Silent,
            _ => Call::Unknown,
        })
    }
}

impl Changes {
    fn parse(argument: &[u8]) -> Option<Changes> {
        const MODIFIED_NOW: u32 = 1 << 8;
        let valid = u32_at(argument, 0)?;
        let word = |bit: u32, at: usize| Some(u32_at(argument, at)?).filter(|_| valid & bit != 0);
        let modified = (u64_at(argument, 40)?, u32_at(argument, 60)?);
        u32_at(argument, 84)?;
        Some(Changes {
            mode: word(1 << 0, 68),
            user: word(1 << 1, 76),
            group: word(1 << 2, 80),
            len_bytes: u64_at(argument, 16).filter(|_| valid & 1 << 3 != 0),
            modified: (valid & 1 << 5 != 0 && valid & MODIFIED_NOW == 0).then_some(modified),
        })
    }
}

/// A reply under construction.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    bytes: &'a mut [u8],
}

impl<'a> Reply<'a> {
    /// Makes a reply in `bytes`, which have room for the longest.
    pub(super) fn new(bytes: &'a mut [u8]) -> Reply<'a> {
        Reply { bytes }
    }

    /// Returns room for `len` bytes of the body.
    pub(super) fn body(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[REPLY_HEADER_BYTES..REPLY_HEADER_BYTES + len]
    }

    /// Completes the reply to a request, by its body's length or an error; returns its length.
    pub(super) fn finish(self, unique: u64, outcome: Result<usize, i32>) -> usize {
        let len = REPLY_HEADER_BYTES + outcome.unwrap_or(0);
        put32(self.bytes, 0, len as u32);
        put32(self.bytes, 4, outcome.err().map_or(0, |errno| -errno) as u32);
        put64(self.bytes, 8, unique);
        len
    }

    /// Negotiates the version and the features used.
    pub(super) fn init(&mut self, max_readahead: u32, flags: u32) -> usize {
        let body = self.zeroed(64);
        put32(body, 0, VERSION.0);
        put32(body, 4, VERSION.1);
        put32(body, 8, max_readahead);
        put32(body, 12, flags & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES));
        put32(body, 16, u32::from(MOST_OUTSTANDING) << 16 | u32::from(MOST_OUTSTANDING));
        put32(body, 20, MOST_BYTES as u32);
        put32(body, 24, 1);
        put32(body, 28, (MOST_BYTES / 4096) as u32);
        64
    }

    /// Gives a file found or made. Names are never cached: a file without one is made under the
    /// same name again and again.
    pub(super) fn entry(&mut self, attributes: &Attributes) -> usize {
        let body = self.zeroed(128);
        put64(body, 0, attributes.inode);
        put64(body, 24, ATTRIBUTES_VALID_S);
        attributes.put(&mut body[40..]);
        128
    }

    /// Gives a file made, and open.
    pub(super) fn created(&mut self, attributes: &Attributes) -> usize {
        self.zeroed(144);
        self.entry(attributes);
        put32(self.body(144), 136, OPEN_FLAGS);
        144
    }

    pub(super) fn attributes(&mut self, attributes: &Attributes) -> usize {
        let body = self.zeroed(104);
        put64(body, 0, ATTRIBUTES_VALID_S);
        attributes.put(&mut body[16..]);
        104
    }

    pub(super) fn open(&mut self) -> usize {
        put32(self.zeroed(16), 8, OPEN_FLAGS);
        16
    }

    pub(super) fn written(&mut self, len: usize) -> usize {
        put32(self.zeroed(8), 0, len as u32);
        8
    }

    pub(super) fn file_system(&mut self) -> usize {
        let body = self.zeroed(80);
        put32(body, 40, 4096);
        put32(body, 44, 255);
        put32(body, 48, 4096);
        80
    }

    fn zeroed(&mut self, len: usize) -> &mut [u8] {
        let body = self.body(len);
        body.fill(0);
        body
    }
}

impl Attributes {
    /// Writes them as a `struct fuse_attr`.
    fn put(&self, to: &mut [u8]) {
        let (seconds, nanoseconds) = self.modified;
        put64(to, 0, self.inode);
        put64(to, 8, self.len_bytes);
        put64(to, 16, self.len_bytes.div_ceil(512));
        [24, 32, 40].into_iter().for_each(|at| put64(to, at, seconds));
        [48, 52, 56].into_iter().for_each(|at| put32(to, at, nanoseconds));
        put32(to, 60, self.mode);
        put32(to, 64, self.links);
        put32(to, 68, self.owner.0);
        put32(to, 72, self.owner.1);
        put32(to, 80, 4096);
    }
}

fn name_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes.get(at..)?.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, argument: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; REQUEST_HEADER_BYTES];
        put32(&mut bytes, 4, opcode);
        put64(&mut bytes, 8, 77);
        put64(&mut bytes, 16, 5);
        bytes.extend(argument);
        bytes
    }

    #[test]
    fn requests_are_parsed() {
        let mut argument = [0u8; 88];
        put32(&mut argument, 0, 1 << 3 | 1);
        put64(&mut argument, 16, 4096);
        put32(&mut argument, 68, 0o600);
        let bytes = request(4, &argument);
        let found = Request::parse(&bytes).unwrap();
        assert_eq!((found.unique, found.inode), (77, 5));
        let changes = Changes { mode: Some(0o600), len_bytes: Some(4096), ..Changes::default() };
        assert_eq!(found.call, Call::SetAttributes(changes));
        let bytes = request(35, b"0123456789abcdefname\0");
        let Call::Create { name: b"name", .. } = Request::parse(&bytes).unwrap().call else {
            panic!("a file is made")
        };
    }

    #[test]
    fn short_requests_are_malformed() {
        for opcode in [1, 2, 4, 15, 16, 26, 35, 42, 43] {
            let bytes = request(opcode, &[]);
            assert_eq!(Request::parse(&bytes).unwrap().call, Call::Malformed, "{opcode}");
        }
        let mut argument = [0u8; 48];
        put32(&mut argument, 16, 9);
        assert_eq!(Request::parse(&request(16, &argument)).unwrap().call, Call::Malformed);
        put32(&mut argument, 0, u32::MAX);
        assert_eq!(Request::parse(&request(42, &argument)).unwrap().call, Call::Malformed);
        assert_eq!(Request::parse(&[0; 39]), None);
    }
}
