//! Borrowed memory as a device's backing.

use venice_memory::paged::direct::{Lane, LaneError};

use crate::backing::{Backing, BackingError};

impl Backing for Lane {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackingError> {
        Lane::read(self, offset, into).map_err(|error| told(&error))
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackingError> {
        Lane::write(self, offset, from).map_err(|error| told(&error))
    }
}

fn told(error: &LaneError) -> BackingError {
    let reason = match error {
        LaneError::OutOfRange { .. } | LaneError::Unaligned(_) => "beyond what was borrowed",
        LaneError::Unanswered { .. } => "not answered for",
        LaneError::Lost { .. } => "lost with its donor",
    };
    BackingError { reason }
}
