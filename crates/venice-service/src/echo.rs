//! The smallest service: it sends back what it gets. The example of
//! `docs/internals/adding-a-service.md`.

use std::collections::VecDeque;

use crate::entry::ServiceEntry;
use crate::service::{Answer, ConnectionId, Request, Service, ServiceLimits, Status};
use crate::wire::MAX_PAYLOAD_BYTES;

/// Sends the payload back.
pub const ECHO: u16 = 1;
/// Sends the number of payload bytes back, as 8 bytes.
pub const COUNT: u16 = 2;

/// Entry of the service in a host's list.
pub const ENTRY: ServiceEntry =
    ServiceEntry { name: Echo::NAME, make: |_| Ok(Box::new(Echo::default())) };

/// The service.
#[derive(Debug, Default)]
pub struct Echo {
    answers: VecDeque<(Answer, Vec<u8>)>,
}

impl Echo {
    /// The service's name.
    pub const NAME: &'static str = "echo";
}

impl Service for Echo {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn limits(&self) -> ServiceLimits {
        let most = MAX_PAYLOAD_BYTES as u32;
        ServiceLimits { max_request_bytes: most, max_answer_bytes: most, max_outstanding: 64 }
    }

    fn handle_request(&mut self, _now_ns: u64, request: Request<'_>) {
        let Request { connection, id, opcode, payload } = request;
        let (status, bytes) = match opcode {
            ECHO => (Status::OK, payload.to_vec()),
            COUNT => (Status::OK, (payload.len() as u64).to_le_bytes().to_vec()),
            _ => (Status::UNKNOWN_OPCODE, Vec::new()),
        };
        self.answers.push_back((Answer { connection, id, status }, bytes));
    }

    fn handle_disconnect(&mut self, _now_ns: u64, connection: ConnectionId) {
        self.answers.retain(|(answer, _)| answer.connection != connection);
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        let (answer, bytes) = self.answers.pop_front()?;
        payload.extend_from_slice(&bytes);
        Some(answer)
    }
}
