//! Replies to the kernel.

use crate::numbers::{put16, put32, put64};
use crate::{BY_RING, MAX_TRANSFER_BYTES, MORE_FLAGS};

/// Length of the header before every reply, bytes.
pub const REPLY_HEADER_BYTES: usize = 16;

const VERSION: (u32, u32) = (7, 31);
const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
/// Every change of a file passes the kernel, so its cached attributes hold for an hour.
const ATTRIBUTES_VALID_S: u64 = 3600;
/// No cache of the kernel's, parallel writes. The kernel refuses to map such a file shared.
const OPEN_FLAGS: u32 = 1 << 0 | 1 << 6;
const BLOCK_BYTES: u32 = 4096;
const MOST_NAME_BYTES: u32 = 255;

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub inode: u64,
    /// Kind and mode bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Names.
    pub links: u32,
    /// Length, bytes.
    pub len_bytes: u64,
    /// Time of the last change of contents: seconds, nanoseconds.
    pub modified: (u64, u32),
}

/// The features of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Requests outstanding at a time; by the kernel's default of 12 read-ahead and write-out starve
    /// each other.
    pub most_outstanding: u16,
    /// True if requests come by io_uring.
    pub by_ring: bool,
}

/// A reply under construction, in buffers of the caller.
#[derive(Debug)]
pub struct Reply<'a> {
    header: &'a mut [u8],
    body: &'a mut [u8],
    unique: u64,
}

impl<'a> Reply<'a> {
    /// Makes a reply to the request `unique`. The header has [`REPLY_HEADER_BYTES`], the body
    /// [`MAX_TRANSFER_BYTES`].
    pub fn new(header: &'a mut [u8], body: &'a mut [u8], unique: u64) -> Reply<'a> {
        Reply { header, body, unique }
    }

    /// Returns the room for the first `len` bytes of the body.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn body(&mut self, len: usize) -> &mut [u8] {
        &mut self.body[..len]
    }

    /// Completes a reply with the first `len` bytes of the body; returns that length.
    pub fn ok(self, len: usize) -> usize {
        self.finish(0, len)
    }

    /// Completes a reply with an error number; returns the length of the body, 0.
    pub fn error(self, errno: i32) -> usize {
        self.finish(-errno, 0)
    }

    fn finish(self, error: i32, body_len: usize) -> usize {
        put32(self.header, 0, (REPLY_HEADER_BYTES + body_len) as u32);
        self.header[4..8].copy_from_slice(&error.to_ne_bytes());
        put64(self.header, 8, self.unique);
        body_len
    }

    /// Negotiates the version and the features, of those that the kernel's `flags` offer.
    pub fn init(mut self, max_readahead: u32, flags: u32, features: Features) -> usize {
        let Features { most_outstanding, by_ring } = features;
        let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
        let more = if by_ring { MORE_FLAGS } else { 0 };
        let body = self.zeroed(64);
        put32(body, 0, VERSION.0);
        put32(body, 4, VERSION.1);
        put32(body, 8, max_readahead);
        put32(body, 12, flags & wanted | more);
        put16(body, 16, most_outstanding);
        put16(body, 18, most_outstanding);
        put32(body, 20, MAX_TRANSFER_BYTES as u32);
        put32(body, 24, 1);
        put16(body, 28, (MAX_TRANSFER_BYTES / BLOCK_BYTES as usize) as u16);
        put32(body, 32, if by_ring { BY_RING } else { 0 });
        self.ok(64)
    }

    /// Gives the attributes of a file.
    pub fn attributes(mut self, attributes: &Attributes) -> usize {
        let body = self.zeroed(104);
        put64(body, 0, ATTRIBUTES_VALID_S);
        attributes.put(&mut body[16..]);
        self.ok(104)
    }

    /// Gives a file that was found. The kernel does not keep its name: a file without one is made
    /// under the same name again and again.
    pub fn entry(mut self, attributes: &Attributes) -> usize {
        attributes.put_entry(self.zeroed(128));
        self.ok(128)
    }

    /// Gives a file that was made, and is open.
    pub fn created(mut self, attributes: &Attributes) -> usize {
        let body = self.zeroed(144);
        attributes.put_entry(body);
        put32(body, 128 + 8, OPEN_FLAGS);
        self.ok(144)
    }

    /// The file is open: no cache of the kernel's, parallel writes, no shared mapping.
    pub fn open(mut self) -> usize {
        put32(self.zeroed(16), 8, OPEN_FLAGS);
        self.ok(16)
    }

    /// Gives the number of bytes written.
    pub fn written(mut self, len: usize) -> usize {
        put32(self.zeroed(8), 0, len as u32);
        self.ok(8)
    }

    /// Gives the facts of a file system of `len_bytes`. Its block is a page, so discards come in
    /// whole pages.
    pub fn file_system(mut self, len_bytes: u64) -> usize {
        let body = self.zeroed(80);
        put64(body, 0, len_bytes / u64::from(BLOCK_BYTES));
        put32(body, 40, BLOCK_BYTES);
        put32(body, 44, MOST_NAME_BYTES);
        put32(body, 48, BLOCK_BYTES);
        self.ok(80)
    }

    fn zeroed(&mut self, len: usize) -> &mut [u8] {
        let body = self.body(len);
        body.fill(0);
        body
    }
}

impl Attributes {
    /// Writes a `struct fuse_attr`.
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
        put32(to, 80, BLOCK_BYTES);
    }

    /// Writes a `struct fuse_entry_out`.
    fn put_entry(&self, to: &mut [u8]) {
        put64(to, 0, self.inode);
        put64(to, 24, ATTRIBUTES_VALID_S);
        self.put(&mut to[40..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::{u32_at, u64_at};
    use crate::request::{Call, Request};

    const FILE: Attributes = Attributes {
        inode: 5,
        mode: 0o100600,
        owner: (1, 2),
        links: 1,
        len_bytes: 1 << 30,
        modified: (9, 8),
    };

    #[test]
    fn reply_carries_id_and_length() {
        let (mut header, mut body) = ([9u8; REPLY_HEADER_BYTES], [9u8; 256]);
        let len = Reply::new(&mut header, &mut body, 77).attributes(&FILE);
        assert_eq!((len, u32_at(&header, 0), u64_at(&header, 8)), (104, Some(120), Some(77)));
        // Offsets of ino, size and mode in `struct fuse_attr`.
        assert_eq!((u64_at(&body, 16), u64_at(&body, 24)), (Some(5), Some(1 << 30)));
        assert_eq!(u32_at(&body, 16 + 60), Some(FILE.mode));
        let len = Reply::new(&mut header, &mut body, 78).error(5);
        assert_eq!((len, u32_at(&header, 0)), (0, Some(16)));
        assert_eq!(u32_at(&header, 4), Some(-5i32 as u32));
    }

    #[test]
    fn made_file_is_entry_and_open() {
        let (mut header, mut body) = ([0u8; REPLY_HEADER_BYTES], [9u8; 256]);
        assert_eq!(Reply::new(&mut header, &mut body, 1).created(&FILE), 144);
        assert_eq!((u64_at(&body, 0), u64_at(&body, 16)), (Some(5), Some(0)));
        assert_eq!((u64_at(&body, 40), u32_at(&body, 136)), (Some(5), Some(OPEN_FLAGS)));
    }

    #[test]
    fn features_are_of_those_offered() {
        for by_ring in [true, false] {
            let (mut header, mut body) = ([0u8; REPLY_HEADER_BYTES], [0u8; 64]);
            let features = Features { most_outstanding: 64, by_ring };
            Reply::new(&mut header, &mut body, 1).init(0, ASYNC_READ, features);
            // The kernel's request has the flags at the same places, but the second word.
            let mut argument = body;
            argument.copy_within(32..36, 16);
            let mut request = [0u8; 40];
            put32(&mut request, 4, 26);
            let request = Request::parse(&request, &argument, 0).unwrap();
            let Call::Init { flags, offers_rings, .. } = request.call else { panic!("no init") };
            assert_eq!(offers_rings, by_ring);
            assert_eq!((flags & ASYNC_READ, flags & BIG_WRITES), (ASYNC_READ, 0));
        }
    }
}
