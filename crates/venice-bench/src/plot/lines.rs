//! Lines over a logarithmic grid.

use anyhow::Result;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::Unit;
use super::paint::{self, Area, GRID, INK, drawing};

const SIZE: (u32, u32) = (980, 520);
const LEGEND_WIDTH: u32 = 262;

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    /// Ours: thick, with dots.
    Own,
    /// Another project's: thin, with rings.
    Peer,
    /// What the machine itself can do: dashed.
    Raw,
}

/// One line of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// For the legend.
    pub(crate) name: String,
    pub(crate) stroke: Stroke,
    /// By rising x; only values above 0 can be shown.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines by size.
#[derive(Debug, Clone)]
pub(crate) struct LineChart {
    pub(crate) title: String,
    /// What the axes show, in words, and in which unit.
    pub(crate) x: (&'static str, Unit),
    pub(crate) y: (&'static str, Unit),
    pub(crate) lines: Vec<Line>,
}

impl LineChart {
    /// The SVG document; `None` when there is not a point to show.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let Some((x, y)) = self.bounds() else { return Ok(None) };
        paint::sheet(&self.title, SIZE, |area| {
            let (chart, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
            self.draw_grid(&chart, x, y)?;
            self.draw_legend(&legend)
        })
        .map(Some)
    }

    /// Those of one stroke go through their colours on their own: the strokes tell them apart.
    fn colour(&self, index: usize) -> RGBColor {
        let stroke = self.lines[index].stroke;
        let before = self.lines[..index].iter().filter(|line| line.stroke == stroke).count();
        match stroke {
            Stroke::Own => paint::colour(before),
            // From the other end, so that the first of each differ.
            Stroke::Peer => paint::colour(5 + 5 * before),
            Stroke::Raw => paint::grey(before),
        }
    }

    fn visible(line: &Line) -> impl Iterator<Item = (f64, f64)> {
        let shown = |value: f64| value > 0.0 && value.is_finite();
        line.points.iter().copied().filter(move |(x, y)| shown(*x) && shown(*y))
    }

    fn bounds(&self) -> Option<((f64, f64), (f64, f64))> {
        let points: Vec<_> = self.lines.iter().flat_map(Self::visible).collect();
        let bounds = |values: Vec<f64>| {
            let low = values.iter().copied().reduce(f64::min)?;
            Some((low, values.iter().copied().reduce(f64::max)?))
        };
        let (left, right) = bounds(points.iter().map(|point| point.0).collect())?;
        let (low, high) = bounds(points.iter().map(|point| point.1).collect())?;
        Some(((left / 1.3, right * 1.3), (low / 1.6, high * 1.6)))
    }

    fn draw_grid(&self, area: &Area<'_>, x: (f64, f64), y: (f64, f64)) -> Result<()> {
        let x_ticks = self.x.1.ticks(x.0, x.1);
        let y_ticks = self.y.1.ticks(y.0, y.1);
        let mut chart = ChartBuilder::on(area)
            .margin_left(16)
            .margin_right(12)
            .x_label_area_size(50)
            .y_label_area_size(92)
            .build_cartesian_2d(
                (x.0..x.1).log_scale().with_key_points(x_ticks.clone()),
                (y.0..y.1).log_scale().with_key_points(y_ticks.clone()),
            )
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_labels(x_ticks.len().max(2))
            .y_labels(y_ticks.len().max(2))
            .x_desc(self.x.0)
            .y_desc(self.y.0)
            .x_label_formatter(&|value| self.x.1.write(*value))
            .y_label_formatter(&|value| self.y.1.write(*value))
            .label_style(paint::axis_letters(12))
            .axis_desc_style(paint::axis_letters(14))
            .draw()
            .map_err(drawing)?;
        for (index, line) in self.lines.iter().enumerate() {
            let points: Vec<_> = Self::visible(line).collect();
            let colour = self.colour(index);
            match line.stroke {
                Stroke::Own => {
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
                Stroke::Own => area.draw(&PathElement::new(path, colour.stroke_width(3))),
                Stroke::Peer => area.draw(&PathElement::new(path, colour.stroke_width(1))),
                Stroke::Raw => {
                    area.draw(&DashedPathElement::new(path, 6, 4, colour.stroke_width(2)))
                }
            }
            .map_err(drawing)?;
            let dot = if line.stroke == Stroke::Own { colour.filled() } else { colour.into() };
            area.draw(&Circle::new((19, y), 3, dot)).map_err(drawing)?;
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

    fn chart(lines: Vec<Line>) -> LineChart {
        LineChart {
            title: "Latency <by> size & more".into(),
            x: ("size", Unit::Bytes),
            y: ("time", Unit::Nanoseconds),
            lines,
        }
    }

    #[test]
    fn a_chart_is_a_well_formed_document_with_its_words() {
        let strokes = [Stroke::Own, Stroke::Peer, Stroke::Raw];
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
    fn values_that_a_logarithm_has_not_are_left_out() {
        let points = vec![(4.0, 0.0), (8.0, -1.0)];
        let line = |points| Line { name: "x".into(), stroke: Stroke::Own, points };
        assert_eq!(chart(vec![line(points)]).svg().unwrap(), None);
        assert_eq!(chart(vec![]).svg().unwrap(), None);
        let one = chart(vec![line(vec![(4.0, 5.0)])]).svg().unwrap().unwrap();
        xml::texts(&one).unwrap();
    }
}
