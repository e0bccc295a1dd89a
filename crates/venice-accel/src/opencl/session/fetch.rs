//! Bytes on their way from donor to donor, past this process.

use venice_ports::random_u64;
use venice_service::Status;

use super::{Session, SessionError};
use crate::opencl::wire::{AdmitRequest, FetchRequest, Place, decode, encode, opcode};
use crate::region::Ticket;
use crate::stream::RequestKind;

/// Error of a fetch.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// One of the sessions is lost, or refuses.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The donors do not reach each other, or one has no room for it now.
    #[error("{0}")]
    Apart(String),
}

impl Session {
    /// True if this donor can fetch bytes from that of another session, and neither is this machine:
    /// else the shorter way leads through this process.
    pub fn can_fetch_from(&self, source: &Self) -> bool {
        let is_here = self.region().is_mapped() || source.region().is_mapped();
        !is_here && self.description.can_fetch
    }

    /// Has the donor fetch bytes from a range of another donor's region into a range of its own,
    /// from `to` on, and waits for them. Nothing may store in either meanwhile.
    ///
    /// # Errors
    /// [`FetchError`]: any part may have been stored.
    pub fn fetch(&self, source: &Self, from: Place, to: u64) -> Result<(), FetchError> {
        let drawn = random_u64().map_err(|error| FetchError::Apart(error.to_string()))?;
        // The upper half is the regions' own.
        let number = drawn >> 1;
        let Some(ticket) = source.region().ticket(number, from.offset, from.bytes) else {
            return Err(FetchError::Apart("a donor is this machine".to_owned()));
        };
        let bytes = from.bytes;
        source.call(opcode::ADMIT, &encode(&AdmitRequest { number, place: from }))?;
        let fetched = self.fetch_by(&ticket, Place { offset: to, bytes });
        source.request(RequestKind::Posted, opcode::REVOKE, &encode(&number))?;
        fetched
    }

    fn fetch_by(&self, ticket: &Ticket, place: Place) -> Result<(), FetchError> {
        let address = ticket.address.to_string();
        let &Ticket { number, window_bytes, start, key, seal, .. } = ticket;
        let address = address.as_str();
        let request = FetchRequest { number, address, window_bytes, start, key, seal, place };
        let answer = match self.call(opcode::FETCH, &encode(&request)) {
            Err(SessionError::Refused(Status::BUSY)) => {
                return Err(FetchError::Apart("too many fetches wait".to_owned()));
            }
            answer => answer?,
        };
        match decode::<Option<String>>(&answer) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(FetchError::Apart(why)),
            Err(_) => Err(self.lose("malformed answer").into()),
        }
    }
}
