//! Pairs of figures measured in turns, for the aims over the wire. The host moves a virtual
//! machine's processors near each other and apart again, which matters more than the compared
//! difference. Both figures of a turn are therefore measured within a second, the placement is
//! detected before and after, and the turns of each placement are evaluated separately.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::aims::ChannelAim;
use super::measure::{Effort, Ends, median, on_cpu};
use super::path::Path;
use super::raw::{self, Waiting};
use super::series::Operation;
use super::venice::{Bed, Protection, UdpBed};
use super::{Part, peers};
use crate::plot::Unit;

/// Round trip of a cache line, in nanoseconds, below which two processors count as near.
const NEAR_LINE_NS: f64 = 300.0;
/// Duration of one detection of the placement.
const LOOK: Duration = Duration::from_millis(10);
const PAGE_BYTES: u64 = 4096;
/// Size of one bulk transfer.
const BULK_BYTES: usize = 1 << 20;

/// Placement of the two ends' processors during a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// A cache line goes there and back in less than 300 ns.
    Near,
    /// It takes longer.
    Far,
    /// The placement changed, or the machine has only one.
    Unsure,
}

/// Two figures taken within a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Placement of the processors.
    pub placement: Placement,
    /// Venice's figure: nanoseconds, or bytes per second.
    pub ours: f64,
    /// Counterpart's figure.
    pub theirs: f64,
}

/// The turns of one comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    /// Name of the comparison.
    pub name: String,
    /// True for rates, of which more is better; false for latencies.
    pub are_rates: bool,
    /// Bound of the ratio ours / theirs.
    pub bound: f64,
    /// The turns in the order they were taken.
    pub turns: Vec<Turn>,
}

/// Returns the number of turns of each kind.
pub(super) fn count(is_quick: bool) -> usize {
    if is_quick { 1 } else { 9 }
}

/// Takes the turns of the requested parts; `done` is called after each.
///
/// # Errors
/// When Venice or the wire fails, and on an interrupt. Without iperf3 there are no turns with it.
pub(super) fn measure(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    (is_quick, wants): (bool, impl Fn(Part) -> bool),
    done: impl Fn(),
) -> Result<Vec<Turns>> {
    let bench = Bench { effort: Effort { repetitions: 1, ..*effort }, ends, path };
    let mut found = Vec::new();
    let turns_if = |is_wanted| if is_wanted { count(is_quick) } else { 0 };
    let reads = wants(Part::Crma) && wants(Part::Raw) && ends.near_cpu != ends.far_cpu;
    for waiting in [Waiting::Spin, Waiting::Sleep] {
        found.push(bench.reads(waiting, turns_if(reads), &done)?);
    }
    let has_iperf3 = peers::not_installed("iperf3").is_none();
    let transfers = wants(Part::Rdma) && wants(Part::Peers) && has_iperf3;
    found.extend(bench.transfers(turns_if(transfers), &done)?);
    Ok(found)
}

struct Bench<'a> {
    effort: Effort,
    ends: Ends,
    path: &'a Path,
}

impl Bench<'_> {
    fn reads(&self, waiting: Waiting, count: usize, done: &impl Fn()) -> Result<Turns> {
        let mut turns = Vec::new();
        for _ in 0..count {
            let (placement, (ours, theirs)) = self.placed(|| {
                let Self { effort, ends, path } = self;
                let bare = raw::udp_round_trips(effort, *ends, path, &[PAGE_BYTES], waiting)?;
                let bare = bare.at(PAGE_BYTES).and_then(|point| point.latency);
                let read = self.with_bed(waiting, |bed| {
                    effort.latency(|| bed.once(Operation::Read, PAGE_BYTES as usize))
                })?;
                Ok((read.typical_ns(), bare.context("the wire was not measured")?.typical_ns()))
            })?;
            turns.push(Turn { placement, ours, theirs });
            done();
        }
        let what = "udp: CRMA read of 4 KiB / bare UDP round trip of the same sizes";
        let name = format!("{what}, {}", waiting.name());
        Ok(Turns { name, are_rates: false, bound: 1.2, turns })
    }

    fn transfers(&self, count: usize, done: &impl Fn()) -> Result<[Turns; 2]> {
        let mut found = [("read", Operation::BulkRead), ("write", Operation::BulkWrite)].map(
            |(what, operation)| {
                let name = format!("udp: RDMA {what}, plain / iperf3 TCP");
                (operation, Turns { name, are_rates: true, bound: 0.9, turns: Vec::new() })
            },
        );
        for _ in 0..count {
            let (placement, (theirs, ours)) = self.placed(|| {
                let theirs = peers::iperf3_tcp(self.ends, self.path)?;
                let mut ours = Vec::new();
                for (operation, _) in &found {
                    ours.push(self.with_bed(Waiting::Spin, |bed| {
                        let rate = self.effort.bandwidth(|| bed.many(*operation, BULK_BYTES))?;
                        bed.settle()?;
                        Ok(rate)
                    })?);
                }
                Ok((theirs, ours))
            })?;
            for ((_, turns), ours) in found.iter_mut().zip(ours) {
                turns.turns.push(Turn { placement, ours, theirs });
            }
            done();
        }
        Ok(found.map(|(_, turns)| turns))
    }

    fn with_bed<T: Send>(
        &self,
        waiting: Waiting,
        body: impl FnOnce(&mut UdpBed) -> Result<T> + Send,
    ) -> Result<T> {
        on_cpu(self.ends.near_cpu, || {
            body(&mut UdpBed::lay(self.path, self.ends, Protection::Plain, waiting)?)
        })
    }

    /// Runs `body`; returns the processors' placement during it, and its result.
    fn placed<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<(Placement, T)> {
        let before = self.placement()?;
        let found = body()?;
        let after = self.placement()?;
        Ok((if before == after { before } else { Placement::Unsure }, found))
    }

    fn placement(&self) -> Result<Placement> {
        let look = Effort { length: LOOK, ..self.effort };
        let line = raw::ping_pong(&look, self.ends)?;
        Ok(match line.at(64).and_then(|point| point.latency) {
            None => Placement::Unsure,
            Some(latency) if latency.typical_ns() < NEAR_LINE_NS => Placement::Near,
            Some(_) => Placement::Far,
        })
    }
}

/// Builds the aims of the turns, for each placement.
pub(super) fn aims(turns: &[Turns]) -> Vec<ChannelAim> {
    let placements =
        [(Placement::Near, "near each other"), (Placement::Far, "far from each other")];
    let both = turns.iter().flat_map(|turns| placements.map(|placement| (turns, placement)));
    both.map(|(turns, (placement, words))| turns.aim(placement, words)).collect()
}

impl Turns {
    fn aim(&self, placement: Placement, words: &str) -> ChannelAim {
        let at: Vec<&Turn> = self.turns.iter().filter(|turn| turn.placement == placement).collect();
        let middle = |of: fn(&Turn) -> f64| {
            (!at.is_empty()).then(|| median(at.iter().map(|turn| of(turn)).collect()))
        };
        let unit = if self.are_rates { Unit::BytesPerSecond } else { Unit::Nanoseconds };
        let figures = middle(|turn| turn.ours).zip(middle(|turn| turn.theirs));
        ChannelAim {
            name: format!("{}, processors {words}", self.name),
            measured: middle(|turn| turn.ours / turn.theirs),
            bound: Some(self.bound),
            at_least: self.are_rates,
            detail: match figures {
                Some((ours, theirs)) => {
                    let (ours, theirs) = (unit.write(ours), unit.write(theirs));
                    format!("medians of {} turns: {ours} / {theirs}", at.len())
                }
                None if self.turns.is_empty() => "not in this run".to_owned(),
                None => "no turn with this placement by the host".to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_grouped_by_placement() {
        let turn = |placement, ours, theirs| Turn { placement, ours, theirs };
        let mut turns = Turns {
            name: "reads".into(),
            are_rates: false,
            bound: 1.2,
            turns: vec![
                turn(Placement::Near, 3000.0, 2000.0),
                turn(Placement::Far, 5500.0, 5000.0),
                turn(Placement::Unsure, 3000.0, 9000.0),
                turn(Placement::Far, 5000.0, 5000.0),
                turn(Placement::Far, 9000.0, 5000.0),
            ],
        };
        let found = aims(std::slice::from_ref(&turns));
        assert_eq!((found[0].measured, found[0].met()), (Some(1.5), Some(false)));
        assert_eq!((found[1].measured, found[1].met()), (Some(1.1), Some(true)));
        turns.turns.truncate(1);
        assert_eq!(aims(&[turns])[1].met(), None);
    }
}
