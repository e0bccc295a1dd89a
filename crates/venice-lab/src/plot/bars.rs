//! Bar charts with groups.

use anyhow::Result;
use plotters::coord::ranged1d::{NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::Unit;
use super::paint::{self, Area, GRID, INK, drawing};

const SIZE: (u32, u32) = (980, 430);
const LEGEND_WIDTH: u32 = 250;
/// Share of a group's width left free before the next.
const GAP: f64 = 0.25;

/// One bar of every group.
#[derive(Debug, Clone)]
pub(crate) struct BarSeries {
    /// Name in the legend.
    pub(crate) name: String,
    /// Values by group; `None` for no bar.
    pub(crate) values: Vec<Option<f64>>,
    /// True if it only serves comparison: grey.
    pub(crate) is_peer: bool,
}

/// Groups of bars from a common floor of 0.
#[derive(Debug, Clone)]
pub(crate) struct BarChart {
    pub(crate) title: String,
    /// Title of the groups' axis.
    pub(crate) x: &'static str,
    /// Title and unit of the bars' axis.
    pub(crate) y: (&'static str, Unit),
    pub(crate) groups: Vec<String>,
    pub(crate) series: Vec<BarSeries>,
}

impl BarChart {
    /// Returns the SVG document; `None` without a bar. Infinite values are left out: the drawing
    /// library would search for their axis marks forever.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let values = || self.series.iter().flat_map(|series| &series.values).filter_map(shown);
        let Some(highest) = values().reduce(f64::max) else { return Ok(None) };
        let lowest = values().fold(0.0, f64::min);
        let span = highest.max(0.0) - lowest;
        let room = if span > 0.0 { span * 0.12 } else { 1.0 };
        let bounds = (if lowest < 0.0 { lowest - room } else { 0.0 }, highest.max(0.0) + room);
        paint::canvas(&self.title, SIZE, |area| {
            let (chart, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
            self.draw_bars(&chart, bounds)?;
            self.draw_legend(&legend)
        })
        .map(Some)
    }

    /// Returns a colour; own series and peers have palettes of their own.
    fn colour(&self, index: usize) -> RGBColor {
        let is_peer = self.series[index].is_peer;
        let before = self.series[..index].iter().filter(|one| one.is_peer == is_peer).count();
        if is_peer { paint::grey(before) } else { paint::colour(before) }
    }

    fn draw_bars(&self, area: &Area<'_>, (low, high): (f64, f64)) -> Result<()> {
        let groups = Groups { names: &self.groups };
        let mut chart = ChartBuilder::on(area)
            .margin_left(16)
            .margin_right(12)
            .x_label_area_size(50)
            .y_label_area_size(76)
            .build_cartesian_2d(groups, low..high)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_labels(self.groups.len().max(1))
            .x_desc(self.x)
            .y_desc(self.y.0)
            .y_label_formatter(&|value| self.y.1.write(*value))
            .label_style(paint::axis_letters(12))
            .axis_desc_style(paint::axis_letters(14))
            .draw()
            .map_err(drawing)?;
        let width = (1.0 - GAP) / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let colour = self.colour(index);
            for (group, value) in series.values.iter().enumerate() {
                let Some(value) = shown(value) else { continue };
                let left = group as f64 - (1.0 - GAP) / 2.0 + index as f64 * width;
                let bar = [(left, 0.0), (left + width * 0.94, value)];
                // The label stands beyond the end of the bar, in its direction.
                let label = (left + width * 0.47, value + value.signum() * (high - low) * 0.03);
                chart.draw_series([Rectangle::new(bar, colour.filled())]).map_err(drawing)?;
                // The unit stands at the axis.
                let text = self.y.1.write(value).trim_end_matches(" %").to_owned();
                let letters = paint::letters(10, HPos::Center);
                chart.draw_series([Text::new(text, label, letters)]).map_err(drawing)?;
            }
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Result<()> {
        for (index, series) in self.series.iter().enumerate() {
            let y = 14 + index as i32 * 22;
            let swatch = [(4, y - 6), (22, y + 6)];
            area.draw(&Rectangle::new(swatch, self.colour(index).filled())).map_err(drawing)?;
            area.draw(&Text::new(series.name.clone(), (30, y), paint::letters(13, HPos::Left)))
                .map_err(drawing)?;
        }
        Ok(())
    }
}

/// Returns the value if a bar can show it.
fn shown(value: &Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// The axis of the groups: group `n` has its middle at `n`.
struct Groups<'a> {
    names: &'a [String],
}

impl Ranged for Groups<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value + 0.5) / self.names.len() as f64;
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: plotters::coord::ranged1d::KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.names.len()).map(|group| group as f64).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        -0.5..self.names.len() as f64 - 0.5
    }
}

impl ValueFormatter<f64> for Groups<'_> {
    fn format_ext(&self, value: &f64) -> String {
        self.names.get(value.round() as usize).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::xml;
    use super::*;

    #[test]
    fn chart_with_negative_bars_is_well_formed() {
        let chart = BarChart {
            title: "Gain".into(),
            x: "packet size",
            y: ("gain", Unit::Percent),
            groups: ["8 B", "64 B", "1 KiB"].map(str::to_owned).into(),
            series: vec![
                BarSeries {
                    name: "here".into(),
                    values: vec![Some(48.0), Some(-3.0), None],
                    is_peer: false,
                },
                BarSeries {
                    name: "paper".into(),
                    values: vec![Some(51.0), None, Some(28.0)],
                    is_peer: true,
                },
            ],
        };
        let texts = xml::texts(&chart.svg().unwrap().unwrap()).unwrap();
        for wanted in ["Gain", "gain", "packet size", "64 B", "here", "paper", "48", "-3"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }

    #[test]
    fn infinite_values_are_left_out() {
        let chart = |values: Vec<Option<f64>>| BarChart {
            title: "Gain".into(),
            x: "packet size",
            y: ("gain", Unit::Percent),
            groups: values.iter().map(|_| "64 B".to_owned()).collect(),
            series: vec![BarSeries { name: "here".into(), values, is_peer: false }],
        };
        let drawn = chart(vec![Some(f64::INFINITY), Some(f64::NAN), Some(7.0)]).svg().unwrap();
        assert!(xml::texts(&drawn.unwrap()).unwrap().iter().any(|text| text == "7"));
        assert!(chart(vec![Some(0.0), Some(0.0)]).svg().unwrap().is_some());
        assert_eq!(chart(vec![Some(f64::NEG_INFINITY)]).svg().unwrap(), None);
    }

    #[test]
    fn chart_without_bars_is_none() {
        let series = vec![BarSeries { name: "x".into(), values: vec![None], is_peer: false }];
        let groups = vec!["only".to_owned()];
        let y = ("nothing", Unit::Percent);
        let chart = BarChart { title: String::new(), x: "", y, groups, series };
        assert_eq!(chart.svg().unwrap(), None);
    }
}
