//! Figure 17 of the Venice paper: each application pattern on each channel. Different patterns
//! favour different channels, and no channel replaces another.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use venice_fabric::LinkModel;

use super::aims::ChannelAim;
use super::measure::{Effort, Ends};
use super::venice::{
    Adaptive, AppPattern, ChannelKind, adaptive, application_in_virtual_time, operations_per_s,
};
use crate::plot::{BarChart, BarSeries, Unit};
use crate::report_table::ReportTable;
use venice_measure::interrupt;

/// Rate of each pattern on each channel, on the emulated paper link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure17 {
    /// In the order of [`AppPattern::ALL`].
    pub patterns: Vec<PatternRates>,
}

/// One pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PatternRates {
    /// The pattern.
    pub pattern: AppPattern,
    /// Measured, by two cores and rings with the link's behaviour.
    pub measured: ChannelRates,
    /// In virtual time: the protocol alone, processors taking no time.
    pub virtual_time: ChannelRates,
}

/// Rates of a pattern by each channel, and by the adaptive library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelRates {
    /// Operations per second, in the order of [`ChannelKind::ALL`].
    pub operations_per_s: [f64; 3],
    /// With the adaptive library.
    pub adaptive: Adaptive,
}

impl ChannelRates {
    fn of(
        mut fixed: impl FnMut(ChannelKind) -> Result<f64>,
        adaptive: impl FnOnce() -> Result<Adaptive>,
    ) -> Result<Self> {
        let mut operations_per_s = [0.0; 3];
        for (rate, channel) in operations_per_s.iter_mut().zip(ChannelKind::ALL) {
            *rate = fixed(channel)?;
        }
        Ok(Self { operations_per_s, adaptive: adaptive()? })
    }

    /// Returns the channel with the highest rate.
    #[must_use]
    pub fn best(&self) -> ChannelKind {
        let highest = self.operations_per_s.iter().copied().fold(0.0, f64::max);
        let at = self.operations_per_s.iter().position(|rate| *rate == highest);
        ChannelKind::ALL[at.unwrap_or(0)]
    }

    /// Returns the adaptive library's rate, as a share of the best channel's.
    #[must_use]
    pub fn adaptive_share(&self) -> f64 {
        let highest = self.operations_per_s.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        self.adaptive.operations_per_s / highest
    }

    /// Returns each channel's rate, as a share of the best channel's.
    #[must_use]
    pub fn shares(&self) -> [f64; 3] {
        let highest = self.operations_per_s.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        self.operations_per_s.map(|rate| rate / highest)
    }
}

/// Number of calls of `done`.
pub(super) const STEPS: u64 = (AppPattern::ALL.len() * (ChannelKind::ALL.len() + 1)) as u64;

/// Measures the figure; `None` on one processor. `done` is called after each pattern.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(super) fn figure17(
    effort: &Effort,
    ends: Ends,
    mut done: impl FnMut(),
) -> Result<Option<Figure17>> {
    if ends.near_cpu == ends.far_cpu {
        return Ok(None);
    }
    let (mut patterns, model) = (Vec::new(), LinkModel::PAPER);
    for pattern in AppPattern::ALL {
        let measured = ChannelRates::of(
            |channel| {
                done();
                operations_per_s(effort, ends, model, pattern, channel)
            },
            || adaptive(effort, ends, model, pattern),
        )?;
        let virtual_time = ChannelRates::of(
            |channel| {
                interrupt::check()?;
                let rates = application_in_virtual_time(model, pattern, Some(channel))?;
                Ok(rates.operations_per_s)
            },
            || application_in_virtual_time(model, pattern, None),
        )?;
        done();
        patterns.push(PatternRates { pattern, measured, virtual_time });
    }
    Ok(Some(Figure17 { patterns }))
}

/// Builds the aim that the adaptive library is near the best channel in every pattern.
pub(super) fn aim(figure: Option<&Figure17>) -> ChannelAim {
    let measured = figure.map(Figure17::least_adaptive_share);
    ChannelAim {
        name: "Figure 17: adaptive library / the best channel, in the worst of five patterns"
            .to_owned(),
        measured,
        bound: Some(0.9),
        at_least: true,
        detail: measured.map_or("not in this run", |_| "operations a second").to_owned(),
    }
}

impl Figure17 {
    /// Returns the adaptive library's smallest share of the best channel's rate in any pattern.
    #[must_use]
    pub fn least_adaptive_share(&self) -> f64 {
        let shares = self.patterns.iter().map(|rates| rates.measured.adaptive_share());
        shares.fold(f64::INFINITY, f64::min)
    }

    /// Lists the channels that win no pattern.
    fn without_a_win(&self) -> Vec<&'static str> {
        let wins = |channel| self.patterns.iter().any(|rates| rates.measured.best() == channel);
        let losers = ChannelKind::ALL.into_iter().filter(|channel| !wins(*channel));
        losers.map(ChannelKind::name).collect()
    }

    pub(super) fn table(&self) -> ReportTable {
        let title = "Figure 17: operations a second of each pattern on each channel, and the share \
                     of the best; over the emulated paper link";
        let head =
            ["pattern", "time", "CRMA", "RDMA", "QPair", "best", "adaptive takes", "adaptive"];
        let mut table = ReportTable::new(title, &head, 2);
        for rates in &self.patterns {
            for (time, rates, title) in [
                ("measured", &rates.measured, rates.pattern.title()),
                ("virtual", &rates.virtual_time, ""),
            ] {
                let cells = rates.operations_per_s.iter().zip(rates.shares());
                let mut row = vec![title.to_owned(), time.to_owned()];
                row.extend(cells.map(|(rate, share)| {
                    format!("{} ({:.0} %)", venice_measure::report::grouped(*rate), share * 100.0)
                }));
                row.push(rates.best().name().to_owned());
                row.push(rates.adaptive.channel.name().to_owned());
                row.push(format!("{:.0} %", rates.adaptive_share() * 100.0));
                table.rows.push(row);
            }
        }
        let losers = self.without_a_win();
        table.notes.push(if losers.is_empty() {
            "Every channel is best for some pattern, as in the paper.".to_owned()
        } else {
            format!("Unlike in the paper, best for no pattern in this run: {}.", losers.join(", "))
        });
        table.notes.push(
            "adaptive: after each channel was tried, later trials included. Reason for its last \
             choice, and operations and time to try all three:"
                .to_owned(),
        );
        for rates in &self.patterns {
            let Adaptive { learning_operations, learning_ns, why, .. } = &rates.measured.adaptive;
            let learning = Unit::Nanoseconds.write(*learning_ns as f64);
            let title = rates.pattern.title();
            table.notes.push(format!("{title}: {why} ({learning_operations} in {learning})"));
        }
        table
    }

    /// Draws the shares of the best.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub(super) fn plot(&self) -> Result<Option<String>> {
        let series = ChannelKind::ALL.iter().enumerate().map(|(at, channel)| BarSeries {
            name: channel.name().to_owned(),
            values: self
                .patterns
                .iter()
                .map(|rates| Some(rates.measured.shares()[at] * 100.0))
                .collect(),
            is_peer: false,
        });
        let adaptive = BarSeries {
            name: "adaptive library".to_owned(),
            values: self
                .patterns
                .iter()
                .map(|rates| Some(rates.measured.adaptive_share() * 100.0))
                .collect(),
            is_peer: false,
        };
        BarChart {
            title: "Figure 17: each application pattern on each channel, share of the best"
                .to_owned(),
            x: "pattern",
            y: ("operations a second, relative to the best channel", Unit::Percent),
            groups: self.patterns.iter().map(|rates| rates.pattern.title().to_owned()).collect(),
            series: series.chain([adaptive]).collect(),
        }
        .svg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::xml;

    #[test]
    fn best_and_never_best_are_named() {
        let adaptive = Adaptive {
            channel: ChannelKind::Crma,
            operations_per_s: 9.0,
            learning_operations: 12,
            learning_ns: 34_000,
            why: "it is the best".to_owned(),
        };
        let rates = |pattern, operations_per_s| {
            let rates = ChannelRates { operations_per_s, adaptive: adaptive.clone() };
            PatternRates { pattern, measured: rates.clone(), virtual_time: rates }
        };
        let mut figure = Figure17 {
            patterns: vec![
                rates(AppPattern::Database, [200.0, 50.0, 100.0]),
                rates(AppPattern::Word, [10.0, 9.0, 40.0]),
            ],
        };
        assert_eq!(figure.patterns[0].measured.shares(), [1.0, 0.25, 0.5]);
        let text = figure.table().text();
        assert!(text.contains("best for no pattern in this run: RDMA"), "{text}");
        figure.patterns.push(rates(AppPattern::Copy, [1.0, 5.0, 4.0]));
        assert!(figure.table().text().contains("as in the paper"));
        let texts = xml::texts(&figure.plot().unwrap().unwrap()).unwrap();
        assert!(texts.iter().any(|text| text == "copies of 1 MiB"), "{texts:?}");
    }
}
