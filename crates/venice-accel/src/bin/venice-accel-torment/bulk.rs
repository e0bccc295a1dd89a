//! A service with nothing but a region.

use std::collections::VecDeque;

use venice_accel::region::{self, RegionHost};
use venice_service::{Answer, Request, Service, ServiceEntry, ServiceLimits, Status};

/// A service with a region of as many MiB as its options say.
pub const ENTRY: ServiceEntry = ServiceEntry {
    name: "bulk",
    make: |context| {
        let mib: u64 = context.spec.options.parse().map_err(|_| "options: expected MiB")?;
        let key = region::key_of(context.spec.secret.as_bytes());
        let region = RegionHost::serve(context, key, mib << 20)?;
        Ok(Box::new(Bulk { region, answers: VecDeque::new() }))
    },
};

/// Number of the tests' ticket.
const TICKET: u64 = 77;

struct Bulk {
    region: RegionHost,
    answers: VecDeque<(Answer, Vec<u8>)>,
}

impl Service for Bulk {
    fn name(&self) -> &'static str {
        "bulk"
    }

    fn limits(&self) -> ServiceLimits {
        ServiceLimits { max_request_bytes: 64, max_answer_bytes: 64, max_outstanding: 4 }
    }

    fn handle_request(&mut self, _now_ns: u64, request: Request<'_>) {
        let Request { connection, id, opcode, payload } = request;
        let number = |at: usize| {
            u64::from_le_bytes(payload[at..at + 8].try_into().expect("a test sends numbers"))
        };
        let bytes = match opcode {
            // The UDP port; 0: none.
            1 => self.region.udp_port().unwrap_or(0).to_le_bytes().to_vec(),
            // The sum of a range.
            2 => {
                let mut bytes = vec![0; number(8) as usize];
                assert!(self.region.read(number(0), &mut bytes));
                let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
                sum.to_le_bytes().to_vec()
            }
            // Discards a range.
            3 => {
                assert!(self.region.discard(number(0), number(8) as usize));
                Vec::new()
            }
            // Admits the ticket of the tests to a range: 1 if it is valid now.
            4 => vec![u8::from(self.region.admit(TICKET, number(0), number(8)))],
            // Makes it void.
            5 => {
                self.region.revoke(TICKET);
                Vec::new()
            }
            // Ends without a word.
            _ => std::process::abort(),
        };
        self.answers.push_back((Answer { connection, id, status: Status::OK }, bytes));
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        let (answer, bytes) = self.answers.pop_front()?;
        payload.extend_from_slice(&bytes);
        Some(answer)
    }
}
