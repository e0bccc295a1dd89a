//! The first request of a connection: it negotiates the features of both ends.

use std::fs::File;

use super::carry_out::Exchange;
use super::protocol::{Call, offers_rings};
use super::queue::Buffers;
use crate::SwapError;

/// Answers it, and negotiates whether requests come by rings.
pub(super) fn greet(device: &mut File, by_ring: bool) -> Result<(), SwapError> {
    let at = SwapError::file("greet", "/dev/fuse");
    let mut buffers = Buffers::new();
    let request = match buffers.take(device) {
        Ok(request) => request,
        Err(error) => return Err(at(error)),
    };
    let Some((unique, Call::Init { max_readahead, flags, more_flags, .. })) =
        request.map(|request| (request.unique, request.call))
    else {
        return Err(at(std::io::ErrorKind::InvalidData.into()));
    };
    if by_ring && !offers_rings(flags, more_flags) {
        return Err(SwapError::no_fuse_rings());
    }
    let len = buffers.answer(unique).init(max_readahead, flags, by_ring);
    buffers.give(device, len).map_err(at)
}
