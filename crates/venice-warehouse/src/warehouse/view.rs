//! The measurements of all parts of a warehouse together.

use venice_experiment::outcome::{CauseRow, Outcome};
use venice_simkernel::pcapng;

use super::queues;
use crate::application::sum;
use crate::capture::Captured;
use crate::config::Config;
use crate::journey::Stage;
use crate::part::{Shared, WarehousePart};
use crate::records::{Drop, Records};

/// All parts of a warehouse; their hosts are not looked at.
pub(super) struct View<'a> {
    pub(super) config: &'a Config,
    pub(super) shared: &'a Shared,
    /// By node.
    pub(super) part_of: &'a [u16],
    pub(super) parts: Vec<&'a WarehousePart>,
    pub(super) events: u64,
    pub(super) trace: u64,
}

impl View<'_> {
    pub(super) fn records(&self) -> Records {
        let mut records = Records::default();
        self.parts.iter().for_each(|part| records.merge(part.records()));
        records
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.parts.iter().map(|part| part.in_flight() as u64).sum()
    }

    /// Returns the packets of `link` as a pcapng file, and their number.
    pub(super) fn captured(&self, link: &str) -> (Vec<u8>, usize) {
        let parts = self.parts.iter().map(|part| part.records().captured());
        let mut packets: Vec<&Captured> = parts.flatten().collect();
        packets.sort_by_key(|packet| packet.order());
        let blocks: Vec<u8> = packets.iter().flat_map(|packet| packet.block()).collect();
        ([pcapng::head(link), blocks].concat(), packets.len())
    }

    pub(super) fn outcome(&self) -> Outcome {
        let records = self.records();
        let end = records.busy_until();
        let mut outcome = Outcome {
            events: self.events,
            virtual_ps: end,
            trace_hash: self.trace,
            ..Outcome::default()
        };
        let counts = [
            ("packets.made", records.made()),
            ("packets.delivered", records.delivered()),
            ("packets.in_flight", self.in_flight()),
            ("packet_hops", records.hops()),
            ("done", records.sum(sum::DONE)),
            ("failed", records.sum(sum::FAILED)),
        ];
        let drops = Drop::ALL.map(|cause| (cause.name(), records.dropped(cause)));
        let names = counts.iter().chain(&drops);
        outcome.counts = names.map(|(name, count)| ((*name).to_owned(), *count)).collect();
        outcome.causes = causes(&records);
        let switches = queues::switches(self);
        outcome.queues = queues::fullest(&switches, end);
        outcome.heatmaps = queues::heatmaps(&switches, self.config.heatmap.0, end);
        self.config.application.build().report(&records, &mut outcome);
        outcome
    }
}

/// Parts of all requests by rising latency, in percent.
const PARTS: [(f64, f64); 5] =
    [(0.0, 50.0), (50.0, 90.0), (90.0, 99.0), (99.0, 99.9), (99.9, 100.0)];

/// Returns the mean time of each stage, for each of the parts.
fn causes(records: &Records) -> Vec<CauseRow> {
    let row = |percent: (f64, f64)| {
        let cause = records.causes().between(percent.0 / 100.0, percent.1 / 100.0)?;
        let stages = Stage::ALL.iter().zip(cause.mean_ns);
        let stages = stages.map(|(stage, ns)| (stage.name().to_owned(), ns / 1000.0)).collect();
        Some(CauseRow { percent, count: cause.count, stages })
    };
    PARTS.into_iter().filter_map(row).collect()
}
