//! Heat maps: a cell's colour is its value.

use anyhow::Result;
use plotters::coord::types::RangedCoordi32;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::Unit;
use super::paint::{self, Area, INK, drawing};

const SIZE: (u32, u32) = (980, 520);
const LEGEND_WIDTH: u32 = 130;
/// Colours from low to high: light to dark, distinct also without colour vision.
const SCALE: [RGBColor; 4] =
    [RGBColor(255, 255, 217), RGBColor(127, 205, 187), RGBColor(29, 145, 192), RGBColor(8, 29, 88)];
/// Steps of the legend's bar.
const STEPS: i32 = 60;

/// The area of the cells.
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordi32, RangedCoordi32>>;

/// Values by column and row.
#[derive(Debug, Clone)]
pub(crate) struct HeatMap {
    pub(crate) title: String,
    /// Titles of columns and rows.
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    /// Unit of the cells.
    pub(crate) unit: Unit,
    /// Columns, each with a value for every row, from 0 up.
    pub(crate) columns: Vec<Vec<f64>>,
    /// Names of the rows; without them they have numbers.
    pub(crate) names: Vec<String>,
    /// The width of a column and its unit; without it they have numbers.
    pub(crate) width: Option<(f64, Unit)>,
}

impl HeatMap {
    /// Returns the SVG document; `None` without a cell.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let values = self.columns.iter().flatten().copied().filter(|value| value.is_finite());
        let Some(most) = values.reduce(f64::max).filter(|most| *most > 0.0) else {
            return Ok(None);
        };
        paint::canvas(&self.title, SIZE, |area| {
            let (chart, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
            self.draw_cells(&chart, most)?;
            self.draw_legend(&legend, most)
        })
        .map(Some)
    }

    fn draw_cells(&self, area: &Area<'_>, most: f64) -> Result<()> {
        let rows = self.columns.iter().map(Vec::len).max().unwrap_or(0) as i32;
        let is_named = !self.names.is_empty();
        let mut chart = ChartBuilder::on(area)
            .margin_left(16)
            .margin_right(12)
            .x_label_area_size(50)
            .y_label_area_size(if is_named { 130 } else { 60 })
            .build_cartesian_2d(0..self.columns.len() as i32, 0..rows)
            .map_err(drawing)?;
        let column = |column: &i32| match self.width {
            Some((width, unit)) => unit.write(f64::from(*column) * width),
            None => column.to_string(),
        };
        let row = |row: &i32| if is_named { String::new() } else { row.to_string() };
        chart
            .configure_mesh()
            .disable_mesh()
            .axis_style(INK)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&column)
            .y_label_formatter(&row)
            .label_style(paint::axis_letters(12))
            .axis_desc_style(paint::axis_letters(14))
            .draw()
            .map_err(drawing)?;
        if is_named {
            self.draw_names(&mut chart, rows)?;
        }
        let cells = (0..).zip(&self.columns).flat_map(|(x, column)| {
            (0..)
                .zip(column)
                .filter(|(_, value)| value.is_finite() && !(is_named && **value <= 0.0))
                .map(move |(y, value)| {
                    Rectangle::new([(x, y), (x + 1, y + 1)], colour(value / most).filled())
                })
        });
        chart.draw_series(cells).map_err(drawing)?;
        Ok(())
    }

    /// Draws the names of rows in the middle of theirs, and the ground, which is the colour of 0: most
    /// cells of such maps are.
    fn draw_names(&self, chart: &mut Chart<'_, '_>, rows: i32) -> Result<()> {
        let half = chart.plotting_area().dim_in_pixel().1 as i32 / rows.max(1) / 2;
        let name = |(y, name): (i32, &String)| {
            let text = Text::new(name.clone(), (-8, -half), paint::letters(12, HPos::Right));
            EmptyElement::at((0, y)) + text
        };
        chart.draw_series((0..).zip(&self.names).map(name)).map_err(drawing)?;
        let ground = [(0, 0), (self.columns.len() as i32, rows)];
        let ground = Rectangle::new(ground, colour(0.0).filled());
        chart.draw_series([ground]).map_err(drawing)?;
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>, most: f64) -> Result<()> {
        let (top, height) = (14, 5 * STEPS);
        for step in 0..STEPS {
            let y = top + (STEPS - 1 - step) * 5;
            let share = f64::from(step) / f64::from(STEPS - 1);
            area.draw(&Rectangle::new([(4, y), (22, y + 5)], colour(share).filled()))
                .map_err(drawing)?;
        }
        for (share, y) in [(1.0, top), (0.5, top + height / 2), (0.0, top + height)] {
            let text = self.unit.write(share * most);
            area.draw(&Text::new(text, (30, y), paint::letters(13, HPos::Left)))
                .map_err(drawing)?;
        }
        Ok(())
    }
}

/// Returns the colour of a share of the greatest value.
fn colour(share: f64) -> RGBColor {
    let place = share.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let at = (place as usize).min(SCALE.len() - 2);
    let between = place - at as f64;
    let mix = |low: u8, high: u8| {
        (f64::from(low) + between * (f64::from(high) - f64::from(low))).round() as u8
    };
    let (low, high) = (SCALE[at], SCALE[at + 1]);
    RGBColor(mix(low.0, high.0), mix(low.1, high.1), mix(low.2, high.2))
}

#[cfg(test)]
mod tests {
    use super::super::xml;
    use super::*;

    #[test]
    fn greatest_cell_is_darkest() {
        let map = HeatMap {
            title: "Memory".into(),
            x: "superstep",
            y: "partition",
            unit: Unit::Bytes,
            columns: vec![vec![1024.0, 4096.0], vec![0.0, 2048.0]],
            names: Vec::new(),
            width: None,
        };
        let svg = map.svg().unwrap().unwrap();
        let texts = xml::texts(&svg).unwrap();
        for wanted in ["Memory", "superstep", "partition", "4 KiB", "2 KiB"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
        assert_eq!(colour(0.0), SCALE[0]);
        assert_eq!(colour(1.0), SCALE[3]);
        assert!(svg.contains("#081D58"), "the darkest is missing");
        let nothing = HeatMap { columns: vec![vec![0.0]], ..map.clone() };
        assert_eq!(nothing.svg().unwrap(), None);
        let names = vec!["tor 3".to_owned(), "tor 7".to_owned()];
        let named = HeatMap { names, width: Some((1e6, Unit::Nanoseconds)), ..map };
        let svg = named.svg().unwrap().unwrap();
        let texts = xml::texts(&svg).unwrap();
        for wanted in ["tor 3", "tor 7", "1 ms"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }
}
