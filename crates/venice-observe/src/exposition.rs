//! Metrics of one moment, and their text.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;

/// Suffix of counters, which the encoder appends itself.
const TOTAL: &str = "_total";

/// A label: its name and its value.
pub type Label = (&'static str, String);

/// Metrics collected at a scrape. Names follow Prometheus' conventions: base units, `_total` at the
/// end of counters.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<Family>,
}

/// A metric with all its label sets.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    samples: Samples,
}

#[derive(Debug)]
enum Samples {
    Gauges(Vec<(Vec<Label>, f64)>),
    Counters(Vec<(Vec<Label>, f64)>),
    Histogram(Histogram),
}

impl Exposition {
    /// Creates one with `venice_build_info`.
    pub fn new(version: &str) -> Self {
        let mut metrics = Self::default();
        metrics.gauges(
            "venice_build_info",
            "Release of the daemon, in the label version; always 1",
            [(vec![("version", version.to_owned())], 1.0)],
        );
        metrics
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.gauges(name, help, [(Vec::new(), value)]);
    }

    /// Adds a gauge with labels.
    pub fn gauges(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Vec<Label>, f64)>,
    ) {
        let samples = Samples::Gauges(samples.into_iter().collect());
        self.families.push(Family { name, help, samples });
    }

    /// Adds a counter without labels. Its name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.counters(name, help, [(Vec::new(), value)]);
    }

    /// Adds a counter with labels. Its name ends in `_total`.
    pub fn counters(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Vec<Label>, f64)>,
    ) {
        let samples = Samples::Counters(samples.into_iter().collect());
        self.families.push(Family { name, help, samples });
    }

    /// Adds a histogram without labels.
    pub fn histogram(&mut self, name: &'static str, help: &'static str, histogram: &Histogram) {
        let samples = Samples::Histogram(histogram.clone());
        self.families.push(Family { name, help, samples });
    }

    /// Formats the metrics in Prometheus' text format, version 0.0.4.
    pub fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).expect("writing to a string does not fail");
        text
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for Family { name, help, samples } in &self.families {
            match samples {
                Samples::Gauges(samples) => {
                    let mut family =
                        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                    for (labels, value) in samples {
                        family.encode_family(labels)?.encode_gauge(value)?;
                    }
                }
                Samples::Counters(samples) => {
                    let name = name.strip_suffix(TOTAL).unwrap_or(name);
                    let mut family =
                        encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                    for (labels, value) in samples {
                        let mut encoder = family.encode_family(labels)?;
                        encoder.encode_counter::<NoLabelSet, _, f64>(value, None)?;
                    }
                }
                Samples::Histogram(histogram) => {
                    let family =
                        encoder.encode_descriptor(name, help, None, histogram.metric_type())?;
                    histogram.encode(family)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_parse::{Scrape, Value};

    fn parsed(text: &str) -> Scrape {
        Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
    }

    #[test]
    fn text_parses_as_given() {
        let mut metrics = Exposition::new("1.2.3");
        metrics.gauge("venice_a_bytes", "A", 512.0);
        let node = |name: &str| vec![("node", name.to_owned())];
        metrics.counters("venice_b_total", "B", [(node("n1"), 3.0), (node("n2"), 4e15)]);
        let histogram = Histogram::new([0.1, 1.0]);
        histogram.observe(0.5);
        metrics.histogram("venice_c_seconds", "C", &histogram);
        let scrape = parsed(&metrics.text());
        let value = |name: &str, node: Option<&str>| {
            let mut samples = scrape.samples.iter();
            let found = samples.find(|it| it.metric == name && it.labels.get("node") == node);
            found.unwrap_or_else(|| panic!("no {name}")).value.clone()
        };
        assert_eq!(value("venice_a_bytes", None), Value::Gauge(512.0));
        assert_eq!(value("venice_b_total", Some("n1")), Value::Counter(3.0));
        assert_eq!(value("venice_b_total", Some("n2")), Value::Counter(4e15));
        assert_eq!(value("venice_c_seconds_count", None), Value::Untyped(1.0));
        let build = scrape.samples.iter().find(|it| it.metric == "venice_build_info").unwrap();
        assert_eq!(build.labels.get("version"), Some("1.2.3"));
    }

    #[test]
    fn label_values_are_escaped() {
        let mut metrics = Exposition::default();
        metrics.gauges("venice_a", "A", [(vec![("user", "a\"b\\c\nd".to_owned())], 1.0)]);
        let text = metrics.text();
        assert!(text.contains(r#"venice_a{user="a\"b\\c\nd"} 1"#), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
