//! Computes the time at which an access on mapped memory would end if the donor were behind a link.

use venice_fabric::{EmulatedLink, LinkModel};
use venice_wire::{HEADER_BYTES, MAX_PAYLOAD_BYTES};

/// Emulated link to one donor, in both directions. Frame sizes are those of the fabric.
#[derive(Debug)]
pub struct AccessLink {
    there: EmulatedLink,
    back: EmulatedLink,
}

impl AccessLink {
    /// Returns a link with both directions idle.
    pub fn new(model: LinkModel) -> Self {
        Self { there: EmulatedLink::new(model), back: EmulatedLink::new(model) }
    }

    /// Returns the time at which a request with `request_bytes` of payload is answered with
    /// `answer_bytes`.
    pub fn single_ns(&mut self, now_ns: u64, request_bytes: usize, answer_bytes: usize) -> u64 {
        let arrives_ns = self.there.depart(now_ns, HEADER_BYTES + request_bytes);
        self.back.depart(arrives_ns, HEADER_BYTES + answer_bytes)
    }

    /// Returns the time at which the last chunk of a bulk read arrives. The requests are sent
    /// together; each answer is sent when its request has arrived.
    pub fn bulk_read_ns(&mut self, now_ns: u64, len_bytes: usize) -> u64 {
        chunks(len_bytes).map(|chunk| self.single_ns(now_ns, 0, chunk)).last().unwrap_or(now_ns)
    }

    /// Returns the time at which the last chunk of a bulk write is acknowledged; one answer
    /// acknowledges all chunks.
    pub fn bulk_write_ns(&mut self, now_ns: u64, len_bytes: usize) -> u64 {
        let arrives_ns =
            chunks(len_bytes).map(|chunk| self.there.depart(now_ns, HEADER_BYTES + chunk)).last();
        self.back.depart(arrives_ns.unwrap_or(now_ns), HEADER_BYTES)
    }
}

/// Yields the payload lengths of the frames of a bulk transfer.
fn chunks(len_bytes: usize) -> impl Iterator<Item = usize> {
    (0..len_bytes).step_by(MAX_PAYLOAD_BYTES).map(move |at| (len_bytes - at).min(MAX_PAYLOAD_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_takes_one_round_trip() {
        let model = LinkModel::PAPER;
        let mut link = AccessLink::new(model);
        assert_eq!(link.single_ns(1000, 0, 64) - 1000, model.round_trip_ns(64, 128));
        let mut link = AccessLink::new(model);
        assert_eq!(link.single_ns(1000, 4096, 0) - 1000, model.round_trip_ns(4160, 64));
    }

    #[test]
    fn bulk_transfer_saturates_link() {
        let model = LinkModel::PAPER;
        for transfer in [AccessLink::bulk_read_ns, AccessLink::bulk_write_ns] {
            let took_ns = transfer(&mut AccessLink::new(model), 0, 1 << 20);
            let wire_ns = model.serialisation_ns(256 * (4096 + 64));
            let most_ns = wire_ns + model.round_trip_ns(64, 64);
            assert!((wire_ns..=most_ns).contains(&took_ns), "{took_ns} {wire_ns}");
        }
    }
}
