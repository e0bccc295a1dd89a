//! Figure 18 of the Venice paper: the gain of a `QPair` whose credits travel as CRMA writes.
//!
//! Both ends send packets of one size without end over the emulated paper link; each packet is a
//! frame of its own. In band a credit queues among the packets of its direction; as a CRMA write it
//! passes them, and a newer one overwrites an older one that was not sent yet.
//!
//! The paper's set-up (section 5.1.3): credits count the buffers at the receiver; in the
//! traditional design they are "transmitted through a `QPair` channel just like data packets"; as
//! CRMA writes they are overwriteable. It mentions no batching of credits, so
//! [`CreditPace::Packet`] gives one for each packet that is read. Venice's own `QPair` gives one
//! for each quarter of the buffers ([`CreditPace::Quarter`]).
//!
//! The paper does not state the receivers' buffers or the packets' mix. The gain depends on both:
//! if the buffers hold more than a round trip brings, the sender never waits for a credit. The
//! table therefore has a row for each of a few depths.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use venice_fabric::{CreditMode, EndConfig, LinkModel};

use super::measure::{Effort, Ends};
use super::venice::{Setting, both_ways, both_ways_in_virtual_time};
use crate::plot::{BarChart, BarSeries, Unit};
use crate::report_table::ReportTable;
use venice_measure::interrupt;

/// Gain that the paper reports (section 7.2), least and most, in percent.
pub const PAPER_GAIN_PERCENT: (f64, f64) = (28.0, 51.0);

/// Packet sizes.
const SIZES: [u64; 7] = [16, 32, 64, 128, 256, 512, 1024];

/// Buffers of each receiver, one packet each. One round trip of the link carries about fifteen
/// packets of 64 bytes.
const BUFFERS: [u32; 3] = [8, 16, 32];

/// The depth that is also measured in real time.
const MEASURED_BUFFERS: u32 = 16;

/// Bandwidth of one direction by packet size, with either kind of credit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure18 {
    /// Lowest and highest gain that the paper reports, in percent.
    pub paper_gain_percent: (f64, f64),
    /// By rising depth, then by rising packet size.
    pub points: Vec<CreditPoint>,
}

/// Rate of a receiver's credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CreditPace {
    /// One for each packet, as in the paper's design.
    Packet,
    /// One for each quarter of the buffers, as in every `QPair` of Venice.
    Quarter,
}

impl CreditPace {
    const ALL: [CreditPace; 2] = [CreditPace::Quarter, CreditPace::Packet];

    /// Returns the name for tables.
    fn title(self) -> &'static str {
        match self {
            CreditPace::Packet => "packet",
            CreditPace::Quarter => "quarter",
        }
    }
}

/// One packet size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CreditPoint {
    /// Rate of credits.
    pub pace: CreditPace,
    /// Receive buffers of an end.
    pub buffers: u32,
    /// Bytes of a packet, without headers.
    pub size_bytes: u64,
    /// Measured, by two cores and rings with the link's behaviour.
    pub measured: Option<CreditRates>,
    /// In virtual time: the protocol alone, processors taking no time.
    pub virtual_time: CreditRates,
}

/// Bytes per second of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CreditRates {
    /// With credits in band.
    pub in_band_bytes_per_s: f64,
    /// With credits as CRMA writes.
    pub crma_bytes_per_s: f64,
}

impl CreditRates {
    /// Returns the gain of CRMA writes, in percent.
    #[must_use]
    pub fn gain_percent(&self) -> f64 {
        (self.crma_bytes_per_s / self.in_band_bytes_per_s - 1.0) * 100.0
    }

    fn of(mut rate: impl FnMut(CreditMode) -> Result<f64>) -> Result<Self> {
        Ok(Self {
            in_band_bytes_per_s: rate(CreditMode::InBand)?,
            crma_bytes_per_s: rate(CreditMode::CrmaWrite)?,
        })
    }
}

/// Measures the figure. `done` is called after each size.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(super) fn figure18(effort: &Effort, ends: Ends, mut done: impl FnMut()) -> Result<Figure18> {
    let mut points = Vec::new();
    let model = LinkModel::PAPER;
    let depths =
        CreditPace::ALL.into_iter().flat_map(|pace| BUFFERS.map(|buffers| (pace, buffers)));
    for (pace, buffers) in depths {
        for size_bytes in SIZES {
            let len = size_bytes as usize;
            let setting = |credit| setting(pace, buffers, credit);
            let is_measured = buffers == MEASURED_BUFFERS && ends.near_cpu != ends.far_cpu;
            let measured = is_measured.then(|| {
                CreditRates::of(|credit| both_ways(effort, ends, Some(model), setting(credit), len))
            });
            let virtual_time = CreditRates::of(|credit| {
                interrupt::check()?;
                both_ways_in_virtual_time(model, setting(credit), len)
            })?;
            let measured = measured.transpose()?;
            points.push(CreditPoint { pace, buffers, size_bytes, measured, virtual_time });
            done();
        }
    }
    Ok(Figure18 { paper_gain_percent: PAPER_GAIN_PERCENT, points })
}

/// Number of calls of `done`.
pub(super) const STEPS: u64 = (CreditPace::ALL.len() * BUFFERS.len() * SIZES.len()) as u64;

/// Builds a setting with so many buffers, otherwise the `QPair` defaults.
fn setting(pace: CreditPace, buffers: u32, credit: CreditMode) -> Setting {
    let credit_every_messages = match pace {
        CreditPace::Packet => 1,
        CreditPace::Quarter => 0,
    };
    let end = EndConfig {
        recv_messages: buffers,
        credit_every_messages,
        batching: false,
        ..EndConfig::default()
    };
    Setting { credit, end }
}

impl Figure18 {
    /// Builds the table of rates and gains.
    pub(super) fn table(&self) -> ReportTable {
        let (low, high) = self.paper_gain_percent;
        let head = [
            "credit each",
            "buffers",
            "packet",
            "in band",
            "CRMA",
            "gain",
            "in band, virtual time",
            "CRMA, virtual time",
            "gain, virtual time",
        ];
        let title = "Figure 18: QPair bandwidth over the emulated paper link, both ways at a time";
        let mut table = ReportTable::new(title, &head, 1);
        let rate = |rate| Unit::BytesPerSecond.write(rate);
        for point in &self.points {
            let columns = |rates: Option<CreditRates>| match rates {
                Some(rates) => [
                    rate(rates.in_band_bytes_per_s),
                    rate(rates.crma_bytes_per_s),
                    format!("{:+.0} %", rates.gain_percent()),
                ],
                None => ["-", "-", "-"].map(str::to_owned),
            };
            let mut row = vec![
                point.pace.title().to_owned(),
                point.buffers.to_string(),
                Unit::Bytes.write(point.size_bytes as f64),
            ];
            row.extend(columns(point.measured));
            row.extend(columns(Some(point.virtual_time)));
            table.rows.push(row);
        }
        table
            .notes
            .push(format!("The paper: +{low:.0} % to +{high:.0} %, most for small packets."));
        for pace in CreditPace::ALL {
            table.notes.push(format!(
                "Venice, a credit for each {}: {} {}",
                pace.title(),
                self.range(pace, "measured", |point| point.measured),
                self.range(pace, "in virtual time", |point| Some(point.virtual_time)),
            ));
        }
        table
    }

    fn range(
        &self,
        pace: CreditPace,
        name: &str,
        rates: impl Fn(&CreditPoint) -> Option<CreditRates>,
    ) -> String {
        let points = || self.points.iter().filter(|point| point.pace == pace);
        let gains = || points().filter_map(&rates).map(|rates| rates.gain_percent());
        match (gains().reduce(f64::min), gains().reduce(f64::max)) {
            (Some(least), Some(most)) => format!("{name}: {least:+.0} % to {most:+.0} %."),
            _ => format!("{name}: needs two processors."),
        }
    }

    /// Draws the gains by packet size, the paper's beside the measured ones.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub(super) fn plot(&self) -> Result<Option<String>> {
        type Rates = fn(&CreditPoint) -> Option<CreditRates>;
        let gains = |pace: CreditPace, buffers: u32, rates: Rates| {
            let is_it = |point: &&CreditPoint| (point.pace, point.buffers) == (pace, buffers);
            let points = self.points.iter().filter(is_it);
            points.map(|point| rates(point).map(|rates| rates.gain_percent())).collect()
        };
        let mut series = vec![BarSeries {
            name: format!("measured, {MEASURED_BUFFERS} buffers"),
            values: gains(CreditPace::Quarter, MEASURED_BUFFERS, |point| point.measured),
            is_peer: false,
        }];
        for buffers in BUFFERS {
            series.push(BarSeries {
                name: format!("virtual time, {buffers} buffers"),
                values: gains(CreditPace::Quarter, buffers, |point| Some(point.virtual_time)),
                is_peer: false,
            });
        }
        series.push(BarSeries {
            name: format!("the same, {MEASURED_BUFFERS}, a credit each packet"),
            values: gains(CreditPace::Packet, MEASURED_BUFFERS, |p| Some(p.virtual_time)),
            is_peer: false,
        });
        // The paper gives the ends of its range, and that small packets gain most.
        let (low, high) = self.paper_gain_percent;
        let mut paper = vec![None; SIZES.len()];
        (paper[0], paper[SIZES.len() - 1]) = (Some(high), Some(low));
        series.push(BarSeries {
            name: "paper: most, least".to_owned(),
            values: paper,
            is_peer: true,
        });
        BarChart {
            title: "Figure 18: gain of credits by CRMA write over credits in band".to_owned(),
            x: "packet size",
            y: ("gain in bandwidth", Unit::Percent),
            groups: SIZES.iter().map(|size| Unit::Bytes.write(*size as f64)).collect(),
            series,
        }
        .svg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::xml;

    #[test]
    fn gains_stand_beside_the_paper() {
        let rates = |gain: f64| CreditRates {
            in_band_bytes_per_s: 1e8,
            crma_bytes_per_s: 1e8 * (1.0 + gain),
        };
        let depths =
            CreditPace::ALL.into_iter().flat_map(|pace| BUFFERS.map(|buffers| (pace, buffers)));
        let points = depths.flat_map(|(pace, buffers)| {
            SIZES.map(|size_bytes| CreditPoint {
                pace,
                buffers,
                size_bytes,
                measured: (buffers == MEASURED_BUFFERS).then(|| rates(0.25)),
                virtual_time: rates(-0.05),
            })
        });
        let figure = Figure18 { paper_gain_percent: (28.0, 51.0), points: points.collect() };
        let text = figure.table().text();
        assert!(text.contains("+28 % to +51 %"), "{text}");
        assert!(text.contains("each packet: measured: +25 % to +25 %"), "{text}");
        let texts = xml::texts(&figure.plot().unwrap().unwrap()).unwrap();
        for wanted in ["measured, 16 buffers", "paper: most, least", "51", "64 B"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }
}
