//! The part of the FUSE protocol that a file system of one file needs.

use venice_fuse::Attributes;

/// Mode of the one file: a regular file for root.
pub(super) const FILE_MODE: u32 = libc::S_IFREG | 0o600;

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Number of the request, repeated by its reply.
    pub unique: u64,
    pub call: Call,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Init {
        max_readahead: u32,
        flags: u32,
        offers_rings: bool,
    },
    GetAttributes,
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
    /// Expects no reply.
    Silent,
    /// Not supported by this file system.
    Unknown,
    /// Shorter than required, or longer than negotiated.
    Malformed,
}

impl From<venice_fuse::Request<'_>> for Request {
    fn from(request: venice_fuse::Request<'_>) -> Self {
        use venice_fuse::Call as Fuse;
        let call = match request.call {
            Fuse::Init { max_readahead, flags, offers_rings } => {
                Call::Init { max_readahead, flags, offers_rings }
            }
            Fuse::GetAttributes => Call::GetAttributes,
            Fuse::Open => Call::Open,
            Fuse::Read { offset, len } => Call::Read { offset, len },
            Fuse::Write { offset, len } => Call::Write { offset, len },
            Fuse::Allocate { offset, len, mode } if zeroes(mode) => {
                Call::Punch { offset, len_bytes: len }
            }
            Fuse::StatFs => Call::StatFs,
            Fuse::Done => Call::Done,
            Fuse::Silent | Fuse::Forget { .. } | Fuse::ForgetAll(_) => Call::Silent,
            Fuse::Unknown
            | Fuse::Allocate { .. }
            | Fuse::Lookup { .. }
            | Fuse::SetAttributes(_)
            | Fuse::Create { .. }
            | Fuse::Unlink { .. } => Call::Unknown,
            Fuse::Malformed => Call::Malformed,
        };
        Self { unique: request.unique, call }
    }
}

/// True for the modes of `fallocate(2)` after which a range reads as zeros.
fn zeroes(mode: u32) -> bool {
    mode as libc::c_int & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0
}

/// Returns the attributes of the one file.
pub(super) fn attributes(len_bytes: u64) -> Attributes {
    let (inode, owner, modified) = (venice_fuse::ROOT, (0, 0), (0, 0));
    Attributes { inode, mode: FILE_MODE, owner, links: 1, len_bytes, modified }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(call: venice_fuse::Call<'_>) -> Call {
        let request = venice_fuse::Request { unique: 77, inode: 1, owner: (0, 0), call };
        let request = Request::from(request);
        assert_eq!(request.unique, 77);
        request.call
    }

    #[test]
    fn only_zeroing_allocations_are_known() {
        let allocate = |mode| call(venice_fuse::Call::Allocate { offset: 4096, len: 8192, mode });
        let punch = Call::Punch { offset: 4096, len_bytes: 8192 };
        assert_eq!([allocate(3), allocate(0), allocate(1)], [punch, Call::Unknown, Call::Unknown]);
    }

    #[test]
    fn one_file_has_no_names() {
        assert_eq!(call(venice_fuse::Call::Lookup { name: b"x" }), Call::Unknown);
        assert_eq!(call(venice_fuse::Call::Forget { lookups: 1 }), Call::Silent);
    }
}
