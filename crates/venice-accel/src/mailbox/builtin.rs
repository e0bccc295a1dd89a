//! Built-in functions of emulated accelerators, computed on the processor.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection, FftPlanner};

use super::executor::TaskBuffers;
use super::outcome::{Outcome, ResultCode, TaskError};
use super::task::{Argument, Executable};

/// Most points of one transform.
pub const MAX_FFT_POINTS: u64 = 1 << 20;
/// Points of a transform that names none.
const DEFAULT_FFT_POINTS: u64 = 1024;
/// Bytes that are computed at a time: what fits a processor's cache.
const PIECE_BYTES: usize = 64 << 10;
/// Length of a complex number of two single-precision floats in bytes.
const COMPLEX_BYTES: usize = 8;

/// A built-in function. All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    /// Fourier transforms of complex single-precision numbers, one after the other, not normalised.
    /// Arguments: points of each, 1 to 2²⁰ (default 1024); 1 for the inverse (default 0).
    Fft,
    /// Sum of single-precision numbers, as a double-precision one.
    Sum,
    /// Product of each single-precision number with the argument, one of four bytes.
    Scale,
}

impl BuiltIn {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fft, Self::Sum, Self::Scale];
}

impl fmt::Display for BuiltIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fft => "fft",
            Self::Sum => "sum",
            Self::Scale => "scale",
        })
    }
}

impl FromStr for BuiltIn {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|it| it.to_string() == name);
        named.ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(Self::to_string).collect();
            format!("unknown function '{name}': expected {}", all.join(" or "))
        })
    }
}

/// Computes built-in functions, with the tables and buffers that they keep.
#[derive(Default)]
pub(crate) struct Processor {
    /// The transform of the last task, by points and direction.
    plan: Option<(usize, FftDirection, Arc<dyn Fft<f32>>)>,
    bytes: Vec<u8>,
    numbers: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
}

impl Processor {
    /// Computes a function; returns the length of the output in bytes.
    pub(crate) fn run(
        &mut self,
        function: BuiltIn,
        executable: &Executable,
        buffers: &mut TaskBuffers<'_>,
    ) -> Outcome {
        match function {
            BuiltIn::Fft => self.fft(executable, buffers),
            BuiltIn::Sum => self.sum(buffers),
            BuiltIn::Scale => self.scale(executable, buffers),
        }
    }

    fn fft(&mut self, executable: &Executable, buffers: &mut TaskBuffers<'_>) -> Outcome {
        let points = executable.number(0).unwrap_or(DEFAULT_FFT_POINTS);
        let inverse = executable.number(1).unwrap_or(0);
        if points == 0 || points > MAX_FFT_POINTS {
            return Err(malformed(format!("{points} points: expected 1 to {MAX_FFT_POINTS}")));
        }
        let (points, one_bytes) = (points as usize, points as usize * COMPLEX_BYTES);
        let input_bytes = buffers.input_bytes();
        if !input_bytes.is_multiple_of(one_bytes as u64) {
            let said = format!("{input_bytes} bytes: expected a multiple of {one_bytes}");
            return Err(malformed(said));
        }
        let direction = if inverse == 1 { FftDirection::Inverse } else { FftDirection::Forward };
        let plan = self.plan(points, direction);
        self.scratch.resize(plan.get_inplace_scratch_len(), Complex::default());
        let piece_bytes = (PIECE_BYTES / one_bytes).max(1) * one_bytes;
        self.each_piece(buffers, piece_bytes, |this, bytes| {
            this.numbers.clear();
            this.numbers.extend(bytes.chunks_exact(COMPLEX_BYTES).map(complex));
            plan.process_with_scratch(&mut this.numbers, &mut this.scratch);
            for (into, number) in bytes.chunks_exact_mut(COMPLEX_BYTES).zip(&this.numbers) {
                into[..4].copy_from_slice(&number.re.to_le_bytes());
                into[4..].copy_from_slice(&number.im.to_le_bytes());
            }
        })
    }

    fn plan(&mut self, points: usize, direction: FftDirection) -> Arc<dyn Fft<f32>> {
        match &self.plan {
            Some((of, to, plan)) if (*of, *to) == (points, direction) => Arc::clone(plan),
            _ => {
                let plan = FftPlanner::new().plan_fft(points, direction);
                self.plan = Some((points, direction, Arc::clone(&plan)));
                plan
            }
        }
    }

    fn sum(&mut self, buffers: &mut TaskBuffers<'_>) -> Outcome {
        check_floats(buffers)?;
        let (mut sum, mut at) = (0.0, 0);
        while at < buffers.input_bytes() {
            let len = (buffers.input_bytes() - at).min(PIECE_BYTES as u64) as usize;
            self.bytes.resize(len, 0);
            buffers.read_input(at, &mut self.bytes)?;
            sum += self.bytes.chunks_exact(4).map(|bytes| f64::from(float(bytes))).sum::<f64>();
            at += len as u64;
        }
        buffers.write_output(0, &sum.to_le_bytes())?;
        Ok(8)
    }

    fn scale(&mut self, executable: &Executable, buffers: &mut TaskBuffers<'_>) -> Outcome {
        check_floats(buffers)?;
        let Some(Argument::Value(factor)) = executable.arguments.first() else {
            return Err(malformed("missing argument: expected a factor"));
        };
        let factor: [u8; 4] = factor
            .as_slice()
            .try_into()
            .map_err(|_| malformed("factor: expected a number of 4 bytes"))?;
        let factor = f32::from_le_bytes(factor);
        self.each_piece(buffers, PIECE_BYTES, |_, bytes| {
            for number in bytes.chunks_exact_mut(4) {
                let product = float(number) * factor;
                number.copy_from_slice(&product.to_le_bytes());
            }
        })
    }

    /// Changes the input piece by piece; the results are the output, of the same length.
    fn each_piece(
        &mut self,
        buffers: &mut TaskBuffers<'_>,
        piece_bytes: usize,
        mut change: impl FnMut(&mut Self, &mut [u8]),
    ) -> Outcome {
        let mut at = 0;
        while at < buffers.input_bytes() {
            let len = (buffers.input_bytes() - at).min(piece_bytes as u64) as usize;
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.resize(len, 0);
            let read = buffers.read_input(at, &mut bytes);
            if read.is_ok() {
                change(self, &mut bytes);
            }
            let written = read.and_then(|()| buffers.write_output(at, &bytes));
            self.bytes = bytes;
            written?;
            at += len as u64;
        }
        Ok(buffers.input_bytes())
    }
}

fn check_floats(buffers: &TaskBuffers<'_>) -> Result<(), TaskError> {
    match buffers.input_bytes().is_multiple_of(4) {
        true => Ok(()),
        false => {
            let bytes = buffers.input_bytes();
            Err(malformed(format!("{bytes} bytes: expected a multiple of 4")))
        }
    }
}

fn malformed(message: impl Into<String>) -> TaskError {
    TaskError::new(ResultCode::Malformed, message)
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn complex(bytes: &[u8]) -> Complex<f32> {
    Complex { re: float(&bytes[..4]), im: float(&bytes[4..]) }
}
