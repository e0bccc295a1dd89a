//! Borrowed memory as a device's backing.

use venice_memory::paged::direct::{Lane, LaneError};

use crate::backing::{Backing, BackingError};

impl Backing for Lane {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackingError> {
        Lane::read(self, offset, into).map_err(|error| backing_error(&error))
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackingError> {
        Lane::write(self, offset, from).map_err(|error| backing_error(&error))
    }
}

fn backing_error(error: &LaneError) -> BackingError {
    let reason = match error {
        LaneError::OutOfRange { .. } | LaneError::Unaligned(_) => "beyond the borrowed memory",
        LaneError::Unanswered { .. } => "not answered",
        LaneError::Lost { .. } => "lost with its donor",
    };
    BackingError { reason }
}
