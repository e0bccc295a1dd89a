//! A one-dimensional complex transform in six steps, forwards and backwards, as in SPLASH-2's FFT:
//! the data forms a square, with transforms of rows and transpositions in between.
//!
//! Source: Bailey, "FFTs in External or Hierarchical Memory", Journal of Supercomputing, 1990.

use std::f64::consts::TAU;
use std::ops::{Add, Mul, Sub};

use anyhow::Result;

use super::{Done, WorkArgs, Workload, digest};
use venice_measure::pattern::Random;

/// Side of the squares that are transposed at a time: two of them fit into a processor's L1 cache.
const BLOCK: usize = 16;
/// Tolerance, larger than the rounding error of values of about 1.
const TOLERANCE: f64 = 1e-9;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Complex {
    re: f64,
    im: f64,
}

impl Complex {
    const BYTES: u64 = 16;
    const ZERO: Self = Self { re: 0.0, im: 0.0 };

    /// Returns the point at `turns` of the unit circle.
    fn on_circle(turns: f64) -> Self {
        let (im, re) = (turns * TAU).sin_cos();
        Self { re, im }
    }
}

impl Mul for Complex {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }
}

impl Add for Complex {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

impl Sub for Complex {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }
}

#[derive(Debug)]
pub(super) struct Fft {
    side: usize,
    data: Vec<Complex>,
    scratch: Vec<Complex>,
    /// Digest of the forward transforms' results.
    spectrum: u64,
}

impl Workload for Fft {
    fn build(args: &WorkArgs) -> Result<Self> {
        let points = (args.size.0 / Complex::BYTES).max(BLOCK.pow(2) as u64);
        // The largest square of a power of two that fits.
        Ok(Self::of_side(1 << (points.ilog2() / 2)))
    }

    fn run(&mut self, rounds: u64) -> Done {
        for _ in 0..rounds {
            self.transform(1.0);
            let sample = self.data.iter().step_by(self.side + 1);
            let words = sample.flat_map(|point| [point.re.to_bits(), point.im.to_bits()]);
            self.spectrum = digest::of_words(std::iter::once(self.spectrum).chain(words));
            self.transform(-1.0);
            let scale = 1.0 / self.data.len() as f64;
            for point in &mut self.data {
                *point = Complex { re: point.re * scale, im: point.im * scale };
            }
        }
        let operations = 2 * rounds * self.data.len() as u64;
        Done { operations, wrong: self.changed() }
    }

    fn digests(&self) -> Vec<u64> {
        let words = self.data.iter().flat_map(|point| [point.re.to_bits(), point.im.to_bits()]);
        vec![self.spectrum, digest::of_words(words)]
    }
}

impl Fft {
    fn of_side(side: usize) -> Self {
        let data: Vec<Complex> = input().take(side * side).collect();
        let scratch = vec![Complex::ZERO; side * side];
        Self { side, data, scratch, spectrum: 0 }
    }

    /// Counts the points that differ from the input.
    fn changed(&self) -> u64 {
        let differs = |(now, then): (&Complex, Complex)| {
            let apart = *now - then;
            // The negation also counts NaN.
            !(apart.re.abs() < TOLERANCE && apart.im.abs() < TOLERANCE)
        };
        self.data.iter().zip(input()).filter(|pair| differs(*pair)).count() as u64
    }

    /// Transforms forwards (`direction` 1) or backwards (-1, not scaled).
    fn transform(&mut self, direction: f64) {
        let side = self.side;
        let roots: Vec<Complex> = (0..side / 2)
            .map(|k| Complex::on_circle(-direction * k as f64 / side as f64))
            .collect();
        transpose(&self.data, &mut self.scratch, side);
        for (row, points) in self.scratch.chunks_exact_mut(side).enumerate() {
            transform_row(points, &roots);
            let step = -direction * row as f64 / (side * side) as f64;
            for (column, point) in points.iter_mut().enumerate() {
                *point = *point * Complex::on_circle(step * column as f64);
            }
        }
        transpose(&self.scratch, &mut self.data, side);
        for points in self.data.chunks_exact_mut(side) {
            transform_row(points, &roots);
        }
        transpose(&self.data, &mut self.scratch, side);
        std::mem::swap(&mut self.data, &mut self.scratch);
    }
}

/// Returns the input points, one after the other.
fn input() -> impl Iterator<Item = Complex> {
    let mut random = Random::new(0x0066_6674);
    std::iter::repeat_with(move || Complex { re: random.unit(), im: random.unit() })
}

fn transpose(from: &[Complex], to: &mut [Complex], side: usize) {
    let block = BLOCK.min(side);
    for top in (0..side).step_by(block) {
        for left in (0..side).step_by(block) {
            for row in top..top + block {
                for column in left..left + block {
                    to[column * side + row] = from[row * side + column];
                }
            }
        }
    }
}

/// Transforms in place with radix 2; `roots` are half as many as points.
fn transform_row(points: &mut [Complex], roots: &[Complex]) {
    let length = points.len();
    let shift = usize::BITS - length.ilog2();
    for at in 1..length {
        let other = at.reverse_bits() >> shift;
        if at < other {
            points.swap(at, other);
        }
    }
    let mut half = 1;
    while half < length {
        let stride = length / (2 * half);
        for group in points.chunks_exact_mut(2 * half) {
            let (low, high) = group.split_at_mut(half);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let turned = *b * roots[k * stride];
                (*a, *b) = (*a + turned, *a - turned);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_steps_match_the_definition() {
        let side = 8;
        let mut fft = Fft::of_side(side);
        let before = fft.data.clone();
        fft.transform(1.0);
        let length = side * side;
        for (frequency, point) in fft.data.iter().enumerate() {
            let terms = before.iter().enumerate().map(|(at, value)| {
                let turns = (at * frequency % length) as f64 / length as f64;
                *value * Complex::on_circle(-turns)
            });
            let plain = terms.fold(Complex::ZERO, Add::add);
            let apart = *point - plain;
            assert!(apart.re.abs() < 1e-9 && apart.im.abs() < 1e-9, "{frequency}: {point:?}");
        }
    }

    #[test]
    fn round_trip_detects_a_wrong_point() {
        let mut fft = Fft::of_side(32);
        assert_eq!(fft.run(2).wrong, 0);
        fft.data[77].im = f64::NAN;
        assert_eq!(fft.changed(), 1);
        assert_eq!(Fft::of_side(16).spectrum, 0);
    }
}
