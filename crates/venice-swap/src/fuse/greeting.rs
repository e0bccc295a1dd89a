//! The first request of a connection: it negotiates the features of both ends.

use std::fs::File;

use venice_fuse::Features;

use super::carry_out::Exchange;
use super::protocol::Call;
use super::queue::Buffers;
use crate::SwapError;

/// Requests outstanding at a time.
const MOST_OUTSTANDING: u16 = 256;

/// Answers it, and negotiates whether requests come by rings.
pub(super) fn greet(device: &mut File, by_ring: bool) -> Result<(), SwapError> {
    let at = SwapError::file("greet", "/dev/fuse");
    let mut buffers = Buffers::new();
    let request = match buffers.take(device) {
        Ok(request) => request,
        Err(error) => return Err(at(error)),
    };
    let Some((unique, Call::Init { max_readahead, flags, offers_rings })) =
        request.map(|request| (request.unique, request.call))
    else {
        return Err(at(std::io::ErrorKind::InvalidData.into()));
    };
    if by_ring && !offers_rings {
        return Err(SwapError::no_fuse_rings());
    }
    let features = Features { most_outstanding: MOST_OUTSTANDING, by_ring };
    let len = buffers.reply(unique).init(max_readahead, flags, features);
    buffers.give(device, len).map_err(at)
}
