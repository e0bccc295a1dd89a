//! Colours, text styles and the common parts of all charts.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A drawing that becomes an SVG document.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Okabe and Ito's palette, distinct for the colour-blind, without its yellow, which is invisible
/// on white.
const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Greys of the peers.
const GREYS: [RGBColor; 3] = [RGBColor(70, 70, 70), RGBColor(140, 140, 140), RGBColor(110, 90, 70)];

pub(super) const INK: RGBColor = RGBColor(40, 40, 40);
pub(super) const GRID: RGBColor = RGBColor(222, 222, 222);

/// Generic font family: the reader's viewer chooses the font.
const FAMILY: &str = "sans-serif";

/// Returns the colour of the series at `index`.
pub(super) fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// Returns the grey of the series at `index`.
pub(super) fn grey(index: usize) -> RGBColor {
    GREYS[index % GREYS.len()]
}

/// Returns a text style of `size` pixels, anchored at its left or right end or its middle.
pub(super) fn letters(size: u32, horizontal: HPos) -> TextStyle<'static> {
    TextStyle::from((FAMILY, size).into_font()).color(&INK).pos(Pos::new(horizontal, VPos::Center))
}

/// Returns the text style of axes.
pub(super) fn axis_letters(size: u32) -> TextStyle<'static> {
    TextStyle::from((FAMILY, size).into_font()).color(&INK)
}

/// Draws a white background with a title; `body` draws below it.
pub(super) fn canvas(
    title: &str,
    size: (u32, u32),
    body: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        root.draw(&Text::new(title.to_owned(), (14, 20), letters(17, HPos::Left)))
            .map_err(drawing)?;
        body(&root.margin(38, 0, 0, 0))?;
        root.present().map_err(drawing)?;
    }
    Ok(svg)
}

/// Converts an error of the drawing library, which borrows the drawing and so cannot be returned.
pub(super) fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw a plot: {error}")
}
