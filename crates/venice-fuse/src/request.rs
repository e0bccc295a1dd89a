//! Requests of the kernel.

use crate::numbers::{u32_at, u64_at};
use crate::{BY_RING, MAX_TRANSFER_BYTES, MORE_FLAGS};

/// Length of the header before every request, bytes.
pub const REQUEST_HEADER_BYTES: usize = 40;
/// Length of a write's argument, before its bytes.
pub const WRITE_ARGUMENT_BYTES: usize = 40;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its number, which the reply repeats.
    pub unique: u64,
    /// The inode that it is about.
    pub inode: u64,
    /// User and group of the process that makes it.
    pub owner: (u32, u32),
    /// The operation that it requests.
    pub call: Call<'a>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// The first request of a connection.
    Init {
        /// Most bytes that the kernel reads ahead.
        max_readahead: u32,
        /// The features that the kernel has.
        flags: u32,
        /// True if requests can come by io_uring.
        offers_rings: bool,
    },
    /// Find a file by its name.
    Lookup {
        /// The name.
        name: &'a [u8],
    },
    /// The kernel drops references to the inode.
    Forget {
        /// Their number.
        lookups: u64,
    },
    /// The same for several inodes: pairs of an inode number and its references.
    ForgetAll(Forgotten<'a>),
    /// Get the attributes of a file.
    GetAttributes,
    /// Change the attributes of a file.
    SetAttributes(Changes),
    /// Make a file, and open it.
    Create {
        /// Its name.
        name: &'a [u8],
        /// Its mode bits.
        mode: u32,
    },
    /// Remove a name.
    Unlink {
        /// The name.
        name: &'a [u8],
    },
    /// Open a file.
    Open,
    /// Read.
    Read {
        /// Offset in the file, bytes.
        offset: u64,
        /// Bytes, at most [`MAX_TRANSFER_BYTES`].
        len: usize,
    },
    /// Write the bytes that follow the argument.
    Write {
        /// Offset in the file, bytes.
        offset: u64,
        /// Bytes, at most [`MAX_TRANSFER_BYTES`]; there are as many.
        len: usize,
    },
    /// Allocate, or punch out (`fallocate(2)`).
    Allocate {
        /// Offset in the file, bytes.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Its flags.
        mode: u32,
    },
    /// Get the facts of the file system.
    StatFs,
    /// Needs no action.
    Done,
    /// Expects no reply.
    Silent,
    /// None of these.
    Unknown,
    /// Shorter than it must be, or longer than negotiated.
    Malformed,
}

/// Inodes that the kernel drops references to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten<'a> {
    pairs: &'a [u8],
}

impl Forgotten<'_> {
    /// Each inode number, and the number of its references.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.pairs.chunks_exact(16).filter_map(|pair| Some((u64_at(pair, 0)?, u64_at(pair, 8)?)))
    }
}

/// Changes of a file's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Mode bits.
    pub mode: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Length, bytes.
    pub len_bytes: Option<u64>,
    /// Time of the last change of contents: seconds, nanoseconds.
    pub modified: Option<(u64, u32)>,
}

impl<'a> Request<'a> {
    /// Parses a request from its header, its argument, and the number of bytes that a write has
    /// after its argument. `None`: the header is too short.
    pub fn parse(header: &[u8], argument: &'a [u8], data_bytes: usize) -> Option<Request<'a>> {
        let (opcode, unique) = (u32_at(header, 4)?, u64_at(header, 8)?);
        let (inode, owner) = (u64_at(header, 16)?, (u32_at(header, 24)?, u32_at(header, 28)?));
        let call = Call::parse(opcode, argument, data_bytes).unwrap_or(Call::Malformed);
        Some(Request { unique, inode, owner, call })
    }

    /// Parses a request as `/dev/fuse` gives it. Returns the bytes of a write too; of others they
    /// mean nothing.
    pub fn parse_whole(bytes: &'a [u8]) -> Option<(Request<'a>, &'a [u8])> {
        let (header, argument) = bytes.split_at_checked(REQUEST_HEADER_BYTES)?;
        let data = argument.get(WRITE_ARGUMENT_BYTES..).unwrap_or_default();
        Some((Request::parse(header, argument, data.len())?, data))
    }
}

impl<'a> Call<'a> {
    fn parse(opcode: u32, argument: &'a [u8], data_bytes: usize) -> Option<Call<'a>> {
        let len = |most: usize| Some(u32_at(argument, 16)? as usize).filter(|len| *len <= most);
        Some(match opcode {
            1 => Call::Lookup { name: name_at(argument, 0)? },
            2 => Call::Forget { lookups: u64_at(argument, 0)? },
            3 => Call::GetAttributes,
            4 => Call::SetAttributes(Changes::parse(argument)?),
            10 => Call::Unlink { name: name_at(argument, 0)? },
            14 => Call::Open,
            15 => Call::Read { offset: u64_at(argument, 8)?, len: len(MAX_TRANSFER_BYTES)? },
            16 => {
                let most = MAX_TRANSFER_BYTES.min(data_bytes);
                Call::Write { offset: u64_at(argument, 8)?, len: len(most)? }
            }
            17 => Call::StatFs,
            26 => {
                let flags = u32_at(argument, 12)?;
                // Older kernels have one word.
                let more_flags = u32_at(argument, 16).unwrap_or(0);
                let offers_rings = flags & MORE_FLAGS != 0 && more_flags & BY_RING != 0;
                Call::Init { max_readahead: u32_at(argument, 8)?, flags, offers_rings }
            }
            35 => Call::Create { name: name_at(argument, 16)?, mode: u32_at(argument, 4)? },
            42 => {
                let count = u32_at(argument, 0)? as usize;
                let pairs = argument.get(8..)?.get(..count.checked_mul(16)?)?;
                Call::ForgetAll(Forgotten { pairs })
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

fn name_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes.get(at..)?.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::{put32, put64};

    fn header(opcode: u32) -> [u8; REQUEST_HEADER_BYTES] {
        let mut header = [0; REQUEST_HEADER_BYTES];
        put32(&mut header, 4, opcode);
        put64(&mut header, 8, 77);
        put64(&mut header, 16, 5);
        header
    }

    fn call(opcode: u32, argument: &[u8], data_bytes: usize) -> Call<'_> {
        let request = Request::parse(&header(opcode), argument, data_bytes).unwrap();
        assert_eq!((request.unique, request.inode), (77, 5));
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
        let wanted = Call::Allocate { offset: 1 << 40, len: 1 << 21, mode: 3 };
        assert_eq!(call(43, &argument, 0), wanted);
        let made = call(35, b"0123456789abcdefname\0", 0);
        assert!(matches!(made, Call::Create { name: b"name", .. }));
        assert_eq!(call(25, &[], 0), Call::Unknown);
    }

    #[test]
    fn changes_are_those_marked() {
        let mut argument = [0u8; 88];
        put32(&mut argument, 0, 1 << 3 | 1);
        put64(&mut argument, 16, 4096);
        put32(&mut argument, 68, 0o600);
        let changes = Changes { mode: Some(0o600), len_bytes: Some(4096), ..Changes::default() };
        assert_eq!(call(4, &argument, 0), Call::SetAttributes(changes));
    }

    #[test]
    fn wrong_length_requests_are_malformed() {
        for opcode in [1, 2, 4, 10, 15, 16, 26, 35, 42, 43] {
            for len in 0..4 {
                assert_eq!(call(opcode, &vec![0; len], 0), Call::Malformed, "{opcode}, {len}");
            }
        }
        let mut argument = [0u8; 40];
        put32(&mut argument, 16, 2);
        assert_eq!(call(16, &argument, 1), Call::Malformed);
        put32(&mut argument, 16, MAX_TRANSFER_BYTES as u32 + 1);
        assert_eq!(call(15, &argument, 0), Call::Malformed);
        assert_eq!(call(16, &argument, usize::MAX), Call::Malformed);
        put32(&mut argument, 0, u32::MAX);
        assert_eq!(call(42, &argument, 0), Call::Malformed);
        assert_eq!(Request::parse(&[0; 15], &argument, 0), None);
        assert_eq!(Request::parse_whole(&[0; REQUEST_HEADER_BYTES - 1]), None);
    }

    #[test]
    fn data_follow_the_argument() {
        let mut bytes = header(16).to_vec();
        bytes.extend([0; WRITE_ARGUMENT_BYTES]);
        bytes.extend(b"data");
        put32(&mut bytes, REQUEST_HEADER_BYTES + 16, 4);
        let (request, data) = Request::parse_whole(&bytes).unwrap();
        assert_eq!((request.call, data), (Call::Write { offset: 0, len: 4 }, &b"data"[..]));
    }

    #[test]
    fn forgotten_inodes_are_pairs() {
        let mut argument = [0u8; 40];
        put32(&mut argument, 0, 2);
        put64(&mut argument, 8, 9);
        put64(&mut argument, 16, 1);
        put64(&mut argument, 24, 10);
        let Call::ForgetAll(forgotten) = call(42, &argument, 0) else { panic!("not parsed") };
        assert_eq!(forgotten.iter().collect::<Vec<_>>(), [(9, 1), (10, 0)]);
    }

    #[test]
    fn rings_are_seen_in_offer() {
        let mut argument = [0u8; 64];
        let offers = |argument: &[u8]| match call(26, argument, 0) {
            Call::Init { offers_rings, .. } => offers_rings,
            other => panic!("{other:?}"),
        };
        put32(&mut argument, 16, BY_RING);
        assert!(!offers(&argument));
        put32(&mut argument, 12, MORE_FLAGS);
        assert!(offers(&argument));
        // A kernel with one word of flags.
        assert!(!offers(&argument[..16]));
    }
}
