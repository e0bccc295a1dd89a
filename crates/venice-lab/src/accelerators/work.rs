//! The work of Figure 16a: Fourier transforms of one large array, in tasks.

use venice_accel::mailbox::Executable;
use venice_measure::pattern::Random;

/// Points of each transform.
pub(super) const POINTS: u64 = 1024;
/// Length of one transform in bytes.
pub(super) const TRANSFORM_BYTES: u64 = POINTS * 8;
/// Transforms of which each task's first so many are checked.
const CHECKED: usize = 4;
/// Largest accepted deviation, as a share of the exact value: single precision over 1024 points.
const TOLERANCE: f64 = 1e-4;

/// Returns the executable.
pub(super) fn executable() -> Executable {
    Executable::built_in("fft").with_number(POINTS)
}

/// Input and room for the output of all tasks, resident.
pub(super) struct Arrays {
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    task_bytes: usize,
}

impl Arrays {
    /// Makes `len_bytes` of random numbers between 0 and 1.
    pub(super) fn new(len_bytes: usize, task_bytes: usize) -> Self {
        let mut random = Random::new(16);
        let mut number = || (random.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
        let mut input = Vec::with_capacity(len_bytes);
        while input.len() < len_bytes {
            input.extend_from_slice(&number().to_le_bytes());
        }
        // Not zeros, which would not be resident.
        Self { input, output: vec![1; len_bytes], task_bytes }
    }

    /// Returns the inputs of the tasks, and the places of their outputs.
    pub(super) fn tasks(&mut self) -> (Vec<&[u8]>, Vec<&mut [u8]>) {
        let inputs = self.input.chunks(self.task_bytes).collect();
        (inputs, self.output.chunks_mut(self.task_bytes).collect())
    }

    /// Checks some transforms of each task, by Parseval's theorem and the sum of the input; returns
    /// how many were checked, and how many are wrong.
    pub(super) fn check(&self) -> (u64, u64) {
        let (mut checked, mut wrong) = (0, 0);
        let tasks = self.input.chunks(self.task_bytes).zip(self.output.chunks(self.task_bytes));
        for (input, output) in tasks {
            let each = input.chunks(TRANSFORM_BYTES as usize);
            for (input, output) in each.zip(output.chunks(TRANSFORM_BYTES as usize)).take(CHECKED) {
                checked += 1;
                wrong += u64::from(!is_transform(&floats(input), &floats(output)));
            }
        }
        (checked, wrong)
    }
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().map(|number| f64::from(f32::from_le_bytes(*number))).collect()
}

/// True if the output has the energy of the input times the points, and begins with its sum.
fn is_transform(input: &[f64], output: &[f64]) -> bool {
    let energy = |numbers: &[f64]| numbers.iter().map(|number| number * number).sum::<f64>();
    let expected = energy(input) * POINTS as f64;
    let sum = input.iter().step_by(2).sum::<f64>();
    let is_close = |got: f64, expected: f64| (got - expected).abs() <= TOLERANCE * expected.abs();
    is_close(energy(output), expected) && is_close(output[0], sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_outputs_are_found() {
        let len = 2 * TRANSFORM_BYTES as usize;
        let mut arrays = Arrays::new(len, len);
        assert_eq!(arrays.check(), (2, 2), "not computed yet");
        // An impulse of each transform has ones everywhere.
        arrays.input.fill(0);
        for at in [0, TRANSFORM_BYTES as usize] {
            arrays.input[at..at + 4].copy_from_slice(&1f32.to_le_bytes());
        }
        let one = [1f32.to_le_bytes(), 0f32.to_le_bytes()].concat();
        arrays.output = one.repeat(len / 8);
        assert_eq!(arrays.check(), (2, 0));
    }
}
