//! Results of one simulated point: metrics, histograms, series and counts, as data.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Percentiles that every histogram gives, with the suffix of their names: `latency.p99_9`.
pub const PERCENTILES: [(&str, f64); 6] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p95", 95.0),
    ("p99", 99.0),
    ("p99_9", 99.9),
    ("p99_99", 99.99),
];

/// Results of one point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Single figures, such as a goodput.
    pub metrics: Vec<Metric>,
    /// Distributions, such as latencies.
    pub histograms: Vec<NamedHistogram>,
    /// Figures over virtual time, such as a queue's length.
    pub series: Vec<Series>,
    /// The mean time of each stage of requests, the fastest requests first; empty if none were followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<CauseRow>,
    /// The fullest queues, the most bytes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueRow>,
    /// Maps over virtual time, such as the depths of queues; empty if they were not measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heatmaps: Vec<HeatMap>,
    /// Counts by name, such as `drops.buffer_full`.
    pub counts: BTreeMap<String, u64>,
    /// Events handled.
    pub events: u64,
    /// Virtual time that passed, in picoseconds.
    pub virtual_ps: u64,
    /// Hash over all events; equal runs have equal ones.
    #[serde(with = "hexadecimal")]
    pub trace_hash: u64,
}

/// The mean time in each stage of some of all requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CauseRow {
    /// Their place among all by rising latency, in percent: from and to.
    pub percent: (f64, f64),
    /// Their number.
    pub count: u64,
    /// Stages, with microseconds.
    pub stages: Vec<(String, f64)>,
}

/// The queues of a switch, or of the like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueRow {
    /// Its name: `tor 3`.
    pub name: String,
    /// The link of its fullest queue, as captures name it: `switch:3.31`.
    pub link: String,
    /// The most bytes that ever waited for that link.
    pub most_bytes: u64,
    /// Bytes that wait in all of its queues, in the mean over virtual time.
    pub mean_bytes: f64,
    /// Packets sent.
    pub packets: u64,
    /// Packets that waited.
    pub queued: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets dropped.
    pub dropped: u64,
}

/// Values over virtual time, by row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    /// Its name in files: `levels`.
    pub name: String,
    /// Its title.
    pub title: String,
    /// Unit of the values: `B`.
    pub unit: String,
    /// Virtual seconds of a column. The first begins at 0, the last may be shorter.
    pub column_s: f64,
    /// Rows, each with a value for every column.
    pub rows: Vec<HeatRow>,
}

/// A row of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeatRow {
    /// Its name: `tor 3`.
    pub name: String,
    /// A value for every column.
    pub values: Vec<u64>,
}

/// A single figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name in figures and findings.
    pub name: String,
    /// The figure; in JSON, `null` stands for one that is not finite.
    #[serde(with = "finite")]
    pub value: f64,
    /// Its unit, for example `Mb/s`; empty for a ratio.
    pub unit: String,
}

impl Metric {
    /// Makes a figure.
    pub fn new(name: impl Into<String>, value: f64, unit: impl Into<String>) -> Self {
        Self { name: name.into(), value, unit: unit.into() }
    }
}

/// A figure over virtual time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in figures.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// Pairs of virtual seconds and value, by rising time.
    pub points: Vec<(f64, f64)>,
}

/// A distribution, as the buckets of an HDR histogram that hold anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedHistogram {
    /// Its name in figures and findings.
    pub name: String,
    /// Unit of the values, for example `us`.
    pub unit: String,
    /// Recorded values of one unit: 1000 for nanoseconds that are shown as `us`.
    pub per_unit: f64,
    /// Pairs of the bucket's highest recorded value and its count, by rising value.
    pub buckets: Vec<(u64, u64)>,
}

impl NamedHistogram {
    /// Takes the filled buckets of `histogram`, of which `per_unit` recorded values are one `unit`.
    pub fn new(
        name: impl Into<String>,
        unit: impl Into<String>,
        per_unit: f64,
        histogram: &Histogram<u64>,
    ) -> Self {
        let buckets = histogram.iter_recorded();
        let buckets = buckets.map(|step| {
            let highest = histogram.highest_equivalent(step.value_iterated_to());
            (highest.min(histogram.max()), step.count_since_last_iteration())
        });
        Self { name: name.into(), unit: unit.into(), per_unit, buckets: buckets.collect() }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Returns the mean; `None` if it is empty.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 =
            self.buckets.iter().map(|(value, count)| *value as f64 * *count as f64).sum();
        (self.count() > 0).then(|| sum / self.count() as f64 / self.per_unit)
    }

    /// Returns the greatest value.
    pub fn max(&self) -> Option<f64> {
        self.buckets.last().map(|(value, _)| *value as f64 / self.per_unit)
    }

    /// Returns the least value that `percent` of all values do not exceed.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let rank = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut before = 0;
        let reaches = |(_, count): &&(u64, u64)| {
            before += count;
            before >= rank
        };
        let bucket = self.buckets.iter().find(reaches).or(self.buckets.last());
        bucket.map(|(value, _)| *value as f64 / self.per_unit)
    }

    /// Returns the cumulative distribution: values with the share of all that do not exceed them.
    pub fn cdf(&self) -> Vec<(f64, f64)> {
        let (all, mut sum) = (self.count() as f64, 0);
        let point = |(value, count): &(u64, u64)| {
            sum += count;
            (*value as f64 / self.per_unit, sum as f64 / all)
        };
        self.buckets.iter().map(point).collect()
    }

    /// Returns the share of all values in each filled bin; a decade has `bins` of them, and each bin
    /// is represented by its geometric middle. Values of 0 are in no bin.
    pub fn pmf(&self, bins: u32) -> Vec<(f64, f64)> {
        let (all, bins) = (self.count() as f64, f64::from(bins.max(1)));
        let mut shares: BTreeMap<i64, u64> = BTreeMap::new();
        for (value, count) in self.buckets.iter().filter(|(value, _)| *value > 0) {
            let bin = ((*value as f64 / self.per_unit).log10() * bins).floor();
            *shares.entry(bin as i64).or_default() += count;
        }
        let middle = |bin: i64| 10f64.powf((bin as f64 + 0.5) / bins);
        shares.into_iter().map(|(bin, count)| (middle(bin), count as f64 / all)).collect()
    }

    fn value(&self, part: &str) -> Option<f64> {
        match part {
            "mean" => self.mean(),
            "max" => self.max(),
            "count" => Some(self.count() as f64),
            _ => {
                let (_, percent) = PERCENTILES.iter().find(|(name, _)| *name == part)?;
                self.percentile(*percent)
            }
        }
    }
}

impl Outcome {
    /// Returns a figure with its unit: a metric, a count, a part of a histogram (`latency.p99`,
    /// `.mean`, `.max`, `.count`), `events` or `virtual_s`.
    pub fn value(&self, name: &str) -> Option<(f64, &str)> {
        if let Some(metric) = self.metrics.iter().find(|metric| metric.name == name) {
            return Some((metric.value, &metric.unit));
        }
        if let Some(count) = self.counts.get(name) {
            return Some((*count as f64, ""));
        }
        match name {
            "events" => return Some((self.events as f64, "")),
            "virtual_s" => return Some((self.virtual_ps as f64 / 1e12, "s")),
            _ => {}
        }
        let (histogram, part) = name.rsplit_once('.')?;
        let histogram = self.histogram(histogram)?;
        let unit = if part == "count" { "" } else { &histogram.unit };
        Some((histogram.value(part)?, unit))
    }

    /// Returns the histogram of a name.
    pub fn histogram(&self, name: &str) -> Option<&NamedHistogram> {
        self.histograms.iter().find(|histogram| histogram.name == name)
    }

    /// Returns all names that [`Outcome::value`] knows, metrics first.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.metrics.iter().map(|one| one.name.clone()).collect();
        for histogram in &self.histograms {
            let parts = PERCENTILES.iter().map(|(part, _)| *part).chain(["max", "mean", "count"]);
            names.extend(parts.map(|part| format!("{}.{part}", histogram.name)));
        }
        names.extend(self.counts.keys().cloned());
        names.extend(["events", "virtual_s"].map(str::to_owned));
        names
    }
}

mod hexadecimal {
    use super::*;

    pub fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        format!("{value:016x}").serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

mod finite {
    use super::*;

    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(values: &[u64]) -> (NamedHistogram, Histogram<u64>) {
        let mut histogram = Histogram::new(3).unwrap();
        values.iter().for_each(|value| histogram.record(*value).unwrap());
        (NamedHistogram::new("latency", "us", 1000.0, &histogram), histogram)
    }

    proptest! {
        #[test]
        fn percentiles_match_hdr(values in prop::collection::vec(1..10_000_000u64, 1..200)) {
            let (own, hdr) = named(&values);
            prop_assert_eq!(own.count(), hdr.len());
            for (_, percent) in PERCENTILES {
                let wanted = hdr.value_at_percentile(percent).min(hdr.max()) as f64 / 1000.0;
                prop_assert_eq!(own.percentile(percent), Some(wanted));
            }
            prop_assert_eq!(own.max(), Some(hdr.max() as f64 / 1000.0));
            prop_assert!((own.cdf().last().unwrap().1 - 1.0).abs() < 1e-9);
            let shares: f64 = own.pmf(10).iter().map(|(_, share)| share).sum();
            prop_assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        }
    }

    #[test]
    fn outcome_survives_json() {
        let (histogram, _) = named(&[1, 2_000, 3_000_000]);
        let outcome = Outcome {
            metrics: vec![Metric::new("goodput", 801.5, "Mb/s")],
            histograms: vec![histogram],
            series: vec![Series {
                name: "queue".into(),
                unit: "".into(),
                points: vec![(0.5, 3.0)],
            }],
            causes: vec![CauseRow {
                percent: (99.9, 100.0),
                count: 3,
                stages: vec![("wire".into(), 2.5)],
            }],
            queues: vec![QueueRow {
                name: "tor 3".into(),
                link: "switch:3.31".into(),
                most_bytes: 4096,
                mean_bytes: 0.25,
                packets: 9,
                queued: 4,
                marked: 0,
                dropped: 7,
            }],
            heatmaps: vec![HeatMap {
                name: "levels".into(),
                title: "Bytes that wait".into(),
                unit: "B".into(),
                column_s: 1e-6,
                rows: vec![HeatRow { name: "tor".into(), values: vec![0, 1538] }],
            }],
            counts: [("drops.buffer_full".to_owned(), 7)].into(),
            events: 9,
            virtual_ps: u64::MAX,
            trace_hash: u64::MAX - 1,
        };
        let text = serde_json::to_string(&outcome).unwrap();
        assert!(text.contains("\"fffffffffffffffe\""), "{text}");
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
        let lost = Metric::new("ratio", f64::INFINITY, "");
        let lost: Metric = serde_json::from_str(&serde_json::to_string(&lost).unwrap()).unwrap();
        assert!(lost.value.is_nan());
    }

    #[test]
    fn figures_are_found_by_name() {
        let (histogram, _) = named(&[1_000, 2_000, 3_000]);
        let counts = [("drops.ring".to_owned(), 7)].into();
        let outcome = Outcome { histograms: vec![histogram], counts, ..Outcome::default() };
        assert_eq!(outcome.value("latency.p50"), Some((2.0, "us")));
        assert_eq!(outcome.value("latency.count"), Some((3.0, "")));
        assert_eq!(outcome.value("drops.ring"), Some((7.0, "")));
        assert_eq!(outcome.value("latency.p12"), None);
        for name in outcome.names() {
            assert!(outcome.value(&name).is_some(), "{name}");
        }
        assert_eq!(
            NamedHistogram { buckets: vec![], ..outcome.histograms[0].clone() }.mean(),
            None
        );
    }
}
