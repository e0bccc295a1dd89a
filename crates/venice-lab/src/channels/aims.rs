//! The aims of the channels, evaluated within one run.

use serde::{Deserialize, Serialize};

use super::contest::{self, Cell, Outcome};
use super::series::{Medium, Operation, PAST_KERNEL, Series, System};

/// One aim and the figure of this run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelAim {
    /// Name of the compared figures.
    pub name: String,
    /// Measured value; `None` if a figure is missing in this run.
    pub measured: Option<f64>,
    /// Bound; `None` for a figure without an aim.
    pub bound: Option<f64>,
    /// True if `bound` is a minimum, false if it is a maximum.
    pub at_least: bool,
    /// The figures behind it, or the missing ones.
    pub detail: String,
}

impl ChannelAim {
    /// True if the aim was met; `None` if there is nothing to evaluate.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        let (measured, bound) = (self.measured?, self.bound?);
        Some(if self.at_least { measured >= bound } else { measured <= bound })
    }
}

/// A figure with its source.
struct Figure {
    value: f64,
    name: String,
}

/// All figures of this run.
struct Figures<'a>(&'a [Series]);

impl Figures<'_> {
    /// Finds the lowest median latency, in nanoseconds, of the series whose name contains `part`.
    fn latency(
        &self,
        system: System,
        medium: Medium,
        operation: Operation,
        part: &str,
        size_bytes: u64,
    ) -> Option<Figure> {
        self.matching(system, medium, operation, part)
            .filter_map(|one| {
                let value = one.at(size_bytes)?.latency?.typical_ns();
                Some(Figure { value, name: one.name() })
            })
            .min_by(|a, b| a.value.total_cmp(&b.value))
    }

    /// Finds the highest bandwidth, in bytes per second, over all sizes or at one.
    fn bandwidth(
        &self,
        system: System,
        medium: Medium,
        operation: Operation,
        part: &str,
        size_bytes: Option<u64>,
    ) -> Option<Figure> {
        self.matching(system, medium, operation, part)
            .flat_map(|one| one.points.iter().map(move |point| (one, point)))
            .filter(|(_, point)| size_bytes.is_none_or(|size| size == point.size_bytes))
            .filter_map(|(one, point)| {
                Some(Figure { value: point.bandwidth_bytes_per_s?, name: one.name() })
            })
            .max_by(|a, b| a.value.total_cmp(&b.value))
    }

    fn matching(
        &self,
        system: System,
        medium: Medium,
        operation: Operation,
        part: &str,
    ) -> impl Iterator<Item = &Series> {
        self.0.iter().filter(move |one| {
            (one.system, one.medium, one.operation) == (system, medium, operation)
                && one.variant.contains(part)
                && !one.variant.contains(PAST_KERNEL)
        })
    }
}

/// Builds the aim that `first` is at most or at least `bound` times `second`.
fn ratio(
    name: &str,
    first: Option<Figure>,
    second: Option<Figure>,
    bound: Option<f64>,
    at_least: bool,
    write: impl Fn(f64) -> String,
) -> ChannelAim {
    let name = name.to_owned();
    match (first, second) {
        (Some(first), Some(second)) => ChannelAim {
            name,
            measured: Some(first.value / second.value),
            bound,
            at_least,
            detail: format!(
                "{} {} / {} {}",
                first.name,
                write(first.value),
                second.name,
                write(second.value)
            ),
        },
        (first, second) => {
            let missing = match (first, second) {
                (None, Some(_)) => "Venice's figure is",
                (Some(_), None) => "its counterpart is",
                _ => "both figures are",
            };
            let detail = format!("{missing} not in this run");
            ChannelAim { name, measured: None, bound, at_least, detail }
        }
    }
}

/// Evaluates every aim.
pub(super) fn evaluate(series: &[Series], cells: &[Cell]) -> Vec<ChannelAim> {
    let mut aims = shm_aims(&Figures(series));
    aims.extend(udp_aims(&Figures(series)));
    aims.push(ahead(cells));
    aims
}

fn shm_aims(figures: &Figures<'_>) -> Vec<ChannelAim> {
    let ns = |value| crate::plot::Unit::Nanoseconds.write(value);
    let rate = |value| crate::plot::Unit::BytesPerSecond.write(value);
    let shm = Medium::Shm;
    let largest = figures
        .matching(System::Raw, shm, Operation::Copy, "")
        .flat_map(|one| &one.points)
        .map(|point| point.size_bytes)
        .max();
    let line = || figures.latency(System::Raw, shm, Operation::RoundTrip, "ping-pong", 64);
    let mut aims = vec![ratio(
        "shm: CRMA read of 64 B that the donor has just written / cache-line ping-pong",
        figures.latency(System::Venice, shm, Operation::Read, "just written", 64),
        line(),
        Some(2.0),
        false,
        ns,
    )];
    for operation in [Operation::BulkRead, Operation::BulkWrite] {
        for size_bytes in [Some(1 << 20), largest].into_iter().flatten() {
            aims.push(ratio(
                &format!(
                    "shm: {} of {} / memcpy",
                    operation.title(),
                    crate::plot::Unit::Bytes.write(size_bytes as f64)
                ),
                figures.bandwidth(System::Venice, shm, operation, "", Some(size_bytes)),
                figures.bandwidth(System::Raw, shm, Operation::Copy, "", Some(size_bytes)),
                Some(0.8),
                true,
                rate,
            ));
        }
    }
    let small = figures
        .matching(System::Venice, shm, Operation::Message, "")
        .flat_map(|one| &one.points)
        .filter(|point| point.size_bytes <= 64)
        .filter_map(|point| Some(point.bandwidth_bytes_per_s? / point.size_bytes as f64 / 1e6))
        .reduce(f64::max);
    aims.push(ChannelAim {
        name: "shm: QPair messages of at most 64 B, millions a second and core".to_owned(),
        measured: small,
        bound: Some(1.0),
        at_least: true,
        detail: small.map_or("not in this run", |_| "one core sends, one receives").to_owned(),
    });
    aims.dedup_by(|a, b| a.name == b.name);
    aims
}

/// Builds the aims of sealed traffic; plain traffic is evaluated in turns ([`super::turns`]).
fn udp_aims(figures: &Figures<'_>) -> Vec<ChannelAim> {
    let rate = |value| crate::plot::Unit::BytesPerSecond.write(value);
    let udp = Medium::Udp;
    let iperf = || figures.bandwidth(System::Iperf3, udp, Operation::Stream, "TCP", None);
    let sealed = [Operation::BulkRead, Operation::BulkWrite].map(|operation| {
        let name = format!("udp: {}, sealed / iperf3 TCP", operation.title());
        let ours = figures.bandwidth(System::Venice, udp, operation, "sealed", None);
        ratio(&name, ours, iperf(), None, true, rate)
    });
    sealed.into()
}

/// Builds the aim to lose no cell to libfabric or UCX.
fn ahead(cells: &[Cell]) -> ChannelAim {
    let lost = cells.iter().filter(|cell| cell.outcome() == Outcome::Lost).count();
    let share = (cells.len() - lost) as f64 / cells.len() as f64;
    ChannelAim {
        name: "ahead of libfabric and UCX: share of the cells not lost".to_owned(),
        measured: (!cells.is_empty()).then_some(share),
        bound: Some(1.0),
        at_least: true,
        detail: if cells.is_empty() {
            "no comparable figures in this run".to_owned()
        } else {
            contest::tally(&cells.iter().collect::<Vec<_>>())
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::{Latency, Point};
    use super::*;

    fn series(
        (system, medium, operation): (System, Medium, Operation),
        variant: &str,
        points: &[(u64, f64, f64)],
    ) -> Series {
        let points = points.iter().map(|&(size_bytes, ns, rate)| Point {
            size_bytes,
            latency: Some(Latency { mean_ns: ns, p50_ns: Some(ns), p99_ns: None }),
            bandwidth_bytes_per_s: Some(rate),
        });
        Series { points: points.collect(), ..Series::new(system, medium, operation, variant) }
    }

    #[test]
    fn aims_need_their_figures() {
        let (shm, udp) = (Medium::Shm, Medium::Udp);
        let all = [
            series(
                (System::Raw, shm, Operation::RoundTrip),
                "cache-line ping-pong",
                &[(64, 100.0, 0.0)],
            ),
            series((System::Venice, shm, Operation::Read), "just written", &[(64, 150.0, 0.0)]),
            series((System::Raw, shm, Operation::Copy), "memcpy", &[(1 << 20, 1.0, 10e9)]),
            series((System::Venice, shm, Operation::BulkRead), "", &[(1 << 20, 1.0, 7e9)]),
            series((System::Venice, shm, Operation::Message), "", &[(64, 1.0, 128e6)]),
            series(
                (System::Venice, udp, Operation::BulkRead),
                "sealed, spinning",
                &[(4096, 1.0, 2e9)],
            ),
            series((System::Iperf3, udp, Operation::Stream), "TCP", &[(131_072, 1.0, 2e9)]),
        ];
        let aims = evaluate(&all, &[]);
        let met = |part: &str| {
            let aim = aims.iter().find(|aim| aim.name.contains(part)).unwrap();
            (aim.measured, aim.met())
        };
        assert_eq!(met("just written"), (Some(1.5), Some(true)));
        assert_eq!(met("RDMA read of 1 MiB"), (Some(0.7), Some(false)));
        assert_eq!(met("RDMA write of 1 MiB"), (None, None));
        assert_eq!(met("QPair messages"), (Some(2.0), Some(true)));
        assert_eq!(met("RDMA read, sealed"), (Some(1.0), None));
        assert_eq!(met("ahead of"), (None, None));
    }
}
