//! What passes through a ring (`linux/fuse.h`, version 7.42), in the machine's byte order.

/// What is told to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Here is a place for a request.
    Register = 1,
    /// The request in the place is answered; the next one may come there.
    CommitAndFetch = 2,
}

/// The part of an SQE of 128 bytes that is a command's own.
pub(super) type TurnBytes = [u8; 80];

/// `struct fuse_uring_cmd_req`: whose answer it is, and at which queue.
pub(super) fn turn(queue: u16, commit_id: u64) -> TurnBytes {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

/// `struct fuse_uring_req_header`: the header of a request or an answer, what a request says of
/// itself, and how many bytes lie beside it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Head {
    pub header: [u8; 128],
    pub argument: [u8; 128],
    _flags: u64,
    pub commit_id: u64,
    pub payload_bytes: u32,
    _padding: u32,
    _reserved: u64,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Against `linux/fuse.h` of Linux 6.18.
    #[test]
    fn everything_lies_where_the_kernel_looks_for_it() {
        assert_eq!((offset_of!(Head, argument), offset_of!(Head, commit_id)), (128, 264));
        assert_eq!((offset_of!(Head, payload_bytes), size_of::<Head>()), (272, 288));
        let bytes = turn(0x0102, 77);
        assert_eq!(bytes[8..16], 77u64.to_ne_bytes());
        assert_eq!(bytes[16..18], 0x0102u16.to_ne_bytes());
        assert!(bytes[..8].iter().chain(&bytes[18..]).all(|byte| *byte == 0));
    }
}
