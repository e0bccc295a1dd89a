//! The data of a ring (`linux/fuse.h`, version 7.42), in the machine's byte order.

/// A command to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Registers a slot for a request.
    Register = 1,
    /// Answers the request in the slot; the next one may come there.
    CommitAndFetch = 2,
}

/// The command area of a 128-byte SQE.
pub(super) type TurnBytes = [u8; 80];

/// Builds `struct fuse_uring_cmd_req`: the request answered, and its queue.
pub(super) fn turn(queue: u16, commit_id: u64) -> TurnBytes {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

/// `struct fuse_uring_req_header`: the header of a request or an answer, a request's argument, and
/// the length of the payload beside it.
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

    /// Compares with `linux/fuse.h` of Linux 6.18.
    #[test]
    fn layout_matches_kernel_header() {
        assert_eq!((offset_of!(Head, argument), offset_of!(Head, commit_id)), (128, 264));
        assert_eq!((offset_of!(Head, payload_bytes), size_of::<Head>()), (272, 288));
        let bytes = turn(0x0102, 77);
        assert_eq!(bytes[8..16], 77u64.to_ne_bytes());
        assert_eq!(bytes[16..18], 0x0102u16.to_ne_bytes());
        assert!(bytes[..8].iter().chain(&bytes[18..]).all(|byte| *byte == 0));
    }
}
