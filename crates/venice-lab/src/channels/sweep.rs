//! Accuracy of emulated links of several latencies and bandwidths.
//!
//! A read of 64 B over a link of a latency and any bandwidth takes two latencies. On mapped memory
//! the accessor waits until then, and its copy is part of it. Frames are held back until their
//! arrival time; the processors' time before and after that adds to it. It cannot be measured
//! without a link, because most of that path overlaps with the time that the frame is held back. It
//! is the same at every latency, so it is estimated as the median of the excess over all latencies.

use std::num::NonZeroU64;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use venice_fabric::LinkModel;

use super::aims::ChannelAim;
use super::contest::Metric;
use super::emulation::{FRAMES, MAPPED, asked_bytes_per_s, asked_ns};
use super::measure::{Effort, Ends, on_cpu};
use super::series::Operation;
use super::venice::{Bed, RingBed, ShmBed};
use crate::plot::Unit;
use crate::report_table::ReportTable;

const LATENCIES_NS: [u64; 4] = [1000, 1400, 5000, 20_000];
const BANDWIDTHS_GBPS: [u64; 3] = [1, 5, 10];
const LINE_BYTES: usize = 64;
const BULK_BYTES: usize = 1 << 20;
/// Largest accepted deviation from the paper's latency, in percent.
const MOST_PERCENT: f64 = 5.0;

/// One link, configured and measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Emulated {
    /// Mapped memory or frames.
    pub way: String,
    /// The link.
    pub link: LinkModel,
    /// A read's latency in nanoseconds, or the bandwidth of bulk reads in bytes per second.
    pub metric: Metric,
    /// Figure computed from the link: frames' headers counted, processors taking no time.
    pub asked: f64,
    /// Measured figure in total.
    pub measured: f64,
    /// Processors' time that adds to it, in nanoseconds.
    pub on_top: Option<f64>,
}

impl Emulated {
    /// Returns the link's own part.
    #[must_use]
    pub fn net(&self) -> f64 {
        self.measured - self.on_top.unwrap_or(0.0)
    }

    /// Returns its deviation, in percent.
    #[must_use]
    pub fn error_percent(&self) -> f64 {
        (self.net() / self.asked - 1.0) * 100.0
    }
}

/// Number of calls of `done`.
pub(super) const STEPS: u64 = 2 * (LATENCIES_NS.len() + BANDWIDTHS_GBPS.len()) as u64;

/// Measures all links; frames need two processors. `done` is called after each link.
///
/// # Errors
/// When memory or threads cannot be made, and on an interrupt.
pub(super) fn sweep(effort: &Effort, ends: Ends, done: impl Fn() + Sync) -> Result<Vec<Emulated>> {
    on_cpu(ends.near_cpu, || {
        let mut found = by_way(effort, MAPPED, false, ShmBed::lay, &done)?;
        if ends.near_cpu != ends.far_cpu {
            found.extend(by_way(effort, FRAMES, true, |model| RingBed::lend(ends, model), &done)?);
        }
        Ok(found)
    })
}

fn by_way<B: Bed>(
    effort: &Effort,
    way: &str,
    is_on_top: bool,
    lay: impl Fn(Option<LinkModel>) -> Result<B>,
    done: &impl Fn(),
) -> Result<Vec<Emulated>> {
    let read = |link: Option<LinkModel>| -> Result<f64> {
        let mut bed = lay(link)?;
        let latency = effort.latency(|| bed.once(Operation::Read, LINE_BYTES))?;
        Ok(latency.typical_ns())
    };
    let mut found = Vec::new();
    for latency_ns in LATENCIES_NS {
        let link = LinkModel { latency_ns, ..LinkModel::default() };
        let asked = asked_ns(&link, Operation::Read, LINE_BYTES as u64).unwrap_or_default();
        let measured = read(Some(link))?;
        let (way, metric) = (way.to_owned(), Metric::Latency);
        found.push(Emulated { way, link, metric, asked, measured, on_top: None });
        done();
    }
    if is_on_top {
        estimate_on_top(&mut found);
    }
    for gbps in BANDWIDTHS_GBPS {
        let bandwidth_bps = NonZeroU64::new(gbps * 1_000_000_000);
        let link = LinkModel { bandwidth_bps, ..LinkModel::PAPER };
        let asked = asked_bytes_per_s(&link).unwrap_or_default();
        let mut bed = lay(Some(link))?;
        let measured = effort.bandwidth(|| bed.many(Operation::BulkRead, BULK_BYTES))?;
        bed.settle()?;
        let (way, metric) = (way.to_owned(), Metric::Bandwidth);
        found.push(Emulated { way, link, metric, asked, measured, on_top: None });
        done();
    }
    Ok(found)
}

/// Attributes the excess common to all latencies to the processors.
fn estimate_on_top(found: &mut [Emulated]) {
    let mut beyond: Vec<f64> = found.iter().map(|one| one.measured - one.asked).collect();
    beyond.sort_by(f64::total_cmp);
    let middle = beyond.len() / 2;
    let median = f64::midpoint(beyond[(beyond.len() - 1) / 2], beyond[middle]);
    found.iter_mut().for_each(|one| one.on_top = Some(median));
}

/// Builds the aims for the paper's latency, on mapped memory and by frames.
pub(super) fn aims(found: &[Emulated]) -> Vec<ChannelAim> {
    let ns = |value| Unit::Nanoseconds.write(value);
    [MAPPED, FRAMES]
        .map(|way| {
            let is_it = |one: &&Emulated| {
                let latency_ns = one.link.latency_ns;
                one.way == way && one.metric == Metric::Latency && latency_ns == 1400
            };
            let one = found.iter().find(is_it);
            ChannelAim {
                name: format!("emulated link of 1.4 µs, {way}: error in percent"),
                measured: one.map(|one| one.error_percent().abs()),
                bound: Some(MOST_PERCENT),
                at_least: false,
                detail: one.map_or("not in this run".to_owned(), |one| {
                    let on_top = one.on_top.map_or(String::new(), |on_top| {
                        format!(" and {} of the processors'", ns(on_top))
                    });
                    format!("read of 64 B: asked {}, got {}{on_top}", ns(one.asked), ns(one.net()))
                }),
            }
        })
        .into()
}

/// Builds the table; `None` without figures.
pub(super) fn table(found: &[Emulated]) -> Option<ReportTable> {
    if found.is_empty() {
        return None;
    }
    let title = "Emulated links: configured and measured";
    let head = ["way", "link", "figure", "asked", "measured", "on top", "net", "error"];
    let mut table = ReportTable::new(title, &head, 3);
    for one in found {
        let (unit, figure) = match one.metric {
            Metric::Latency => (Unit::Nanoseconds, "read of 64 B"),
            Metric::Bandwidth => (Unit::BytesPerSecond, "bulk reads of 1 MiB"),
        };
        table.rows.push(vec![
            one.way.clone(),
            one.link.to_string(),
            figure.to_owned(),
            unit.write(one.asked),
            unit.write(one.measured),
            one.on_top.map_or("-".to_owned(), |on_top| unit.write(on_top)),
            unit.write(one.net()),
            format!("{:+.1} %", one.error_percent()),
        ]);
    }
    table.notes.push(format!(
        "A read takes two latencies; a page's share of a bulk read carries its header. {MAPPED}: the copy \
         is part of the time. {FRAMES}: the processors' time adds to it, the same at every \
         latency: the median excess of the four latencies is subtracted."
    ));
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_not_an_error() {
        let one = |way: &str, measured, on_top| Emulated {
            way: way.to_owned(),
            link: LinkModel { latency_ns: 1400, ..LinkModel::default() },
            metric: Metric::Latency,
            asked: 2800.0,
            measured,
            on_top,
        };
        let found = [one(MAPPED, 2828.0, None), one(FRAMES, 3800.0, Some(500.0))];
        let aims = aims(&found);
        let met: Vec<_> = aims.iter().map(ChannelAim::met).collect();
        assert_eq!(met, [Some(true), Some(false)], "{aims:?}");
        let text = table(&found).unwrap().text();
        for wanted in ["+1.0 %", "+17.9 %", "500 ns", "latency=1.4us"] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
        assert!(table(&[]).is_none());
        assert!(super::aims(&[]).iter().all(|aim| aim.met().is_none()));
    }

    #[test]
    fn excess_is_common_to_all_latencies() {
        let measured = [2_340.0, 3_150.0, 10_400.0, 41_400.0];
        let mut found: Vec<Emulated> = std::iter::zip(LATENCIES_NS, measured)
            .map(|(latency_ns, measured)| Emulated {
                way: FRAMES.to_owned(),
                link: LinkModel { latency_ns, ..LinkModel::default() },
                metric: Metric::Latency,
                asked: 2.0 * latency_ns as f64,
                measured,
                on_top: None,
            })
            .collect();
        estimate_on_top(&mut found);
        assert!(found.iter().all(|one| one.on_top == Some(375.0)));
        let errors: Vec<f64> = found.iter().map(|one| one.error_percent().round()).collect();
        assert_eq!(errors, [-2.0, -1.0, 0.0, 3.0], "a proportional error is reported");
    }
}
