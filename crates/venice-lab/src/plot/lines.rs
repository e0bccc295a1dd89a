//! Line charts with a grid.

use anyhow::Result;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::Unit;
use super::paint::{self, Area, GRID, INK, drawing};

const SIZE: (u32, u32) = (980, 520);
const LEGEND_WIDTH: u32 = 262;

/// Drawing style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    /// Venice: thick, with dots.
    Own,
    /// Venice, with many points: thick, without dots.
    Smooth,
    /// Another project's: thin, with rings.
    Peer,
    /// The bare machine: dashed.
    Raw,
}

/// One line of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Name in the legend.
    pub(crate) name: String,
    pub(crate) stroke: Stroke,
    /// Points by rising x; a logarithmic grid only shows values above 0.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Scales of the axes: logarithmic for figures over decades, linear for figures that may be 0 or lie
/// close together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Both axes logarithmic.
    Logarithmic,
    /// Only the x axis logarithmic.
    LogarithmicX,
    /// Only the y axis logarithmic.
    LogarithmicY,
    /// Both axes linear.
    Linear,
}

impl Scale {
    /// Returns the scale with these axes logarithmic.
    pub(crate) fn of(log_x: bool, log_y: bool) -> Self {
        match (log_x, log_y) {
            (true, true) => Self::Logarithmic,
            (true, false) => Self::LogarithmicX,
            (false, true) => Self::LogarithmicY,
            (false, false) => Self::Linear,
        }
    }

    fn is_log_x(self) -> bool {
        matches!(self, Self::Logarithmic | Self::LogarithmicX)
    }

    fn is_log_y(self) -> bool {
        matches!(self, Self::Logarithmic | Self::LogarithmicY)
    }
}

/// A line chart.
#[derive(Debug, Clone)]
pub(crate) struct LineChart<'a> {
    pub(crate) title: String,
    pub(crate) scale: Scale,
    /// Titles and units of the axes.
    pub(crate) x: (&'a str, Unit),
    pub(crate) y: (&'a str, Unit),
    pub(crate) lines: Vec<Line>,
}

impl LineChart<'_> {
    /// Returns the SVG document; `None` without a point.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let Some((x, y)) = self.bounds() else { return Ok(None) };
        paint::canvas(&self.title, SIZE, |area| {
            let (chart, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
            let grid = |unit: Unit, (low, high): (f64, f64)| {
                let ticks = unit.ticks(low, high);
                let labels = ticks.len().max(2);
                ((low..high).log_scale().with_key_points(ticks), labels)
            };
            match self.scale {
                Scale::Linear => self.draw_grid(&chart, x.0..x.1, y.0..y.1, (10, 10))?,
                Scale::LogarithmicX => {
                    let (across, labels) = grid(self.x.1, x);
                    self.draw_grid(&chart, across, y.0..y.1, (labels, 10))?;
                }
                Scale::LogarithmicY => {
                    let (up, labels) = grid(self.y.1, y);
                    self.draw_grid(&chart, x.0..x.1, up, (10, labels))?;
                }
                Scale::Logarithmic => {
                    let (across, wide) = grid(self.x.1, x);
                    let (up, high) = grid(self.y.1, y);
                    self.draw_grid(&chart, across, up, (wide, high))?;
                }
            }
            self.draw_legend(&legend)
        })
        .map(Some)
    }

    /// Returns a colour; each stroke goes through the palette on its own, since strokes tell lines
    /// apart.
    fn colour(&self, index: usize) -> RGBColor {
        let stroke = self.lines[index].stroke;
        let before = self.lines[..index].iter().filter(|line| line.stroke == stroke).count();
        match stroke {
            Stroke::Own | Stroke::Smooth => paint::colour(before),
            // Peers take colours from the other end, so that the first of each differ.
            Stroke::Peer => paint::colour(5 + 5 * before),
            Stroke::Raw => paint::grey(before),
        }
    }

    fn visible(&self, line: &Line) -> impl Iterator<Item = (f64, f64)> {
        let shown = |value: f64, is_log: bool| (value > 0.0 || !is_log) && value.is_finite();
        let scale = self.scale;
        line.points
            .iter()
            .copied()
            .filter(move |(x, y)| shown(*x, scale.is_log_x()) && shown(*y, scale.is_log_y()))
    }

    fn bounds(&self) -> Option<((f64, f64), (f64, f64))> {
        let points: Vec<_> = self.lines.iter().flat_map(|line| self.visible(line)).collect();
        let bounds = |values: Vec<f64>| {
            let low = values.iter().copied().reduce(f64::min)?;
            Some((low, values.iter().copied().reduce(f64::max)?))
        };
        let (left, right) = bounds(points.iter().map(|point| point.0).collect())?;
        let (low, high) = bounds(points.iter().map(|point| point.1).collect())?;
        // A grid has some width and height for any values.
        let room = |low: f64, high: f64| if high > low { (high - low) * 0.04 } else { 0.5 };
        let (floor, wide) = (low.min(0.0), room(left, right));
        let across = (left - wide, right + wide);
        let up = (floor, high + room(floor, high));
        Some((
            if self.scale.is_log_x() { (left / 1.3, right * 1.3) } else { across },
            if self.scale.is_log_y() { (low / 1.6, high * 1.6) } else { up },
        ))
    }

    /// Draws the grid with so many labels across and up.
    fn draw_grid<X, Y>(&self, area: &Area<'_>, x: X, y: Y, labels: (usize, usize)) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .margin_left(16)
            .margin_right(12)
            .x_label_area_size(50)
            .y_label_area_size(92)
            .build_cartesian_2d(x, y)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_labels(labels.0)
            .y_labels(labels.1)
            .x_desc(self.x.0)
            .y_desc(self.y.0)
            .x_label_formatter(&|value| self.x.1.write(*value))
            .y_label_formatter(&|value| self.y.1.write(*value))
            .label_style(paint::axis_letters(12))
            .axis_desc_style(paint::axis_letters(14))
            .draw()
            .map_err(drawing)?;
        for (index, line) in self.lines.iter().enumerate() {
            let points: Vec<_> = self.visible(line).collect();
            let colour = self.colour(index);
            match line.stroke {
                Stroke::Own | Stroke::Smooth => {
                    chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(3)))
                }
                Stroke::Peer => {
                    chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(1)))
                }
                Stroke::Raw => {
                    let path = DashedLineSeries::new(points.clone(), 6, 4, colour.stroke_width(2));
                    chart.draw_series(path)
                }
            }
            .map_err(drawing)?;
            if line.stroke == Stroke::Smooth {
                continue;
            }
            let dot = if line.stroke == Stroke::Own { colour.filled() } else { colour.into() };
            chart
                .draw_series(points.into_iter().map(|point| Circle::new(point, 3, dot)))
                .map_err(drawing)?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Result<()> {
        for (index, line) in self.lines.iter().enumerate() {
            let y = 14 + index as i32 * 22;
            let colour = self.colour(index);
            let path = [(4, y), (34, y)];
            match line.stroke {
                Stroke::Own | Stroke::Smooth => {
                    area.draw(&PathElement::new(path, colour.stroke_width(3)))
                }
                Stroke::Peer => area.draw(&PathElement::new(path, colour.stroke_width(1))),
                Stroke::Raw => {
                    area.draw(&DashedPathElement::new(path, 6, 4, colour.stroke_width(2)))
                }
            }
            .map_err(drawing)?;
            let dot = if line.stroke == Stroke::Own { colour.filled() } else { colour.into() };
            if line.stroke != Stroke::Smooth {
                area.draw(&Circle::new((19, y), 3, dot)).map_err(drawing)?;
            }
            area.draw(&Text::new(line.name.clone(), (42, y), paint::letters(13, HPos::Left)))
                .map_err(drawing)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::xml;
    use super::*;

    fn chart(lines: Vec<Line>) -> LineChart<'static> {
        LineChart {
            title: "Latency <by> size & more".into(),
            scale: Scale::Logarithmic,
            x: ("size", Unit::Bytes),
            y: ("time", Unit::Nanoseconds),
            lines,
        }
    }

    #[test]
    fn chart_has_its_words() {
        let strokes = [Stroke::Own, Stroke::Smooth, Stroke::Peer, Stroke::Raw];
        let lines = strokes.map(|stroke| Line {
            name: format!("{stroke:?} \"line\""),
            stroke,
            points: (2..25).map(|bit| (2f64.powi(bit), 10.0 + 3f64.powi(bit / 2))).collect(),
        });
        let svg = chart(lines.into()).svg().unwrap().unwrap();
        let texts = xml::texts(&svg).unwrap_or_else(|wrong| panic!("{wrong}\n{svg}"));
        for wanted in ["Latency <by> size & more", "size", "time", "4 KiB", "Own \"line\""] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }

    #[test]
    fn linear_chart_shows_zero() {
        let line = |points: &[(f64, f64)]| Line {
            name: "x".into(),
            stroke: Stroke::Own,
            points: points.to_vec(),
        };
        for points in
            [&[(0.0, 0.0), (10.0, 5.0)][..], &[(3.0, 0.0)], &[(1.0, -2.0), (f64::NAN, 1.0)]]
        {
            let chart = LineChart { scale: Scale::Linear, ..chart(vec![line(points)]) };
            let svg = chart.svg().unwrap().unwrap();
            xml::texts(&svg).unwrap_or_else(|wrong| panic!("{wrong}\n{svg}"));
            assert!(svg.contains("<circle"), "{points:?} is not shown");
        }
        let nothing = line(&[(f64::NAN, 0.0), (1.0, f64::INFINITY)]);
        assert_eq!(LineChart { scale: Scale::Linear, ..chart(vec![nothing]) }.svg().unwrap(), None);
    }

    #[test]
    fn one_axis_may_be_logarithmic() {
        let points = vec![(0.0, 5.0), (4.0, 0.0), (9.0, 7.0)];
        let line = Line { name: "x".into(), stroke: Stroke::Peer, points };
        for (log_x, log_y, dots) in
            [(true, false, 2), (false, true, 2), (true, true, 1), (false, false, 3)]
        {
            let chart = LineChart { scale: Scale::of(log_x, log_y), ..chart(vec![line.clone()]) };
            let svg = chart.svg().unwrap().unwrap();
            xml::texts(&svg).unwrap();
            assert_eq!(svg.matches("<circle").count(), dots + 1, "the legend has one more");
        }
    }

    #[test]
    fn nonpositive_values_are_left_out() {
        let points = vec![(4.0, 0.0), (8.0, -1.0)];
        let line = |points| Line { name: "x".into(), stroke: Stroke::Own, points };
        assert_eq!(chart(vec![line(points)]).svg().unwrap(), None);
        assert_eq!(chart(vec![]).svg().unwrap(), None);
        let one = chart(vec![line(vec![(4.0, 5.0)])]).svg().unwrap().unwrap();
        xml::texts(&one).unwrap();
    }
}
