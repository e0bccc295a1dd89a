//! The kernels.

use std::time::Duration;

use crate::engine::{inside, state};
use crate::{Code, INVALID_VALUE};

/// A kernel, by what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `vector_add(const float *a, const float *b, float *sum, int count)`
    VectorAdd,
    /// `saxpy(float factor, const float *x, float *y, int count)`
    Saxpy,
    /// `spin(unsigned long long microseconds, unsigned *counter)`: waits, then counts.
    Spin,
}

pub const ALL: [Function; 3] = [Function::VectorAdd, Function::Saxpy, Function::Spin];
/// Most threads of a block.
pub const MAX_THREADS: u32 = 1024;

impl Function {
    pub fn name(self) -> &'static str {
        match self {
            Self::VectorAdd => "vector_add",
            Self::Saxpy => "saxpy",
            Self::Spin => "spin",
        }
    }

    /// Returns offset and size of each parameter.
    pub fn parameters(self) -> &'static [(usize, usize)] {
        match self {
            Self::VectorAdd => &[(0, 8), (8, 8), (16, 8), (24, 4)],
            Self::Saxpy => &[(0, 4), (8, 8), (16, 8), (24, 4)],
            Self::Spin => &[(0, 8), (8, 8)],
        }
    }

    /// Returns the length of its parameters.
    pub fn bytes(self) -> usize {
        self.parameters().last().map_or(0, |(at, len)| at + len)
    }

    /// Runs it.
    pub fn run(self, parameters: &[u8], threads: u64) -> Result<(), Code> {
        match self {
            Self::VectorAdd => {
                let count = u64::from(word(parameters, 24)).min(threads) as usize;
                let [a, b] = [0, 8].map(|at| floats(long(parameters, at), count));
                let (a, b) = (a?, b?);
                let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
                store(long(parameters, 16), &sums)
            }
            Self::Saxpy => {
                let factor = f32::from_bits(word(parameters, 0));
                let count = u64::from(word(parameters, 24)).min(threads) as usize;
                let x = floats(long(parameters, 8), count)?;
                let y = floats(long(parameters, 16), count)?;
                let all: Vec<f32> = x.iter().zip(&y).map(|(x, y)| factor * x + y).collect();
                store(long(parameters, 16), &all)
            }
            Self::Spin => {
                std::thread::sleep(Duration::from_micros(long(parameters, 0)));
                let spot = inside(state().spot(long(parameters, 8), 4))?;
                let at = spot.at().cast::<u32>();
                // SAFETY: four bytes of the device's memory.
                unsafe { at.write_unaligned(at.read_unaligned().wrapping_add(1)) };
                Ok(())
            }
        }
    }
}

/// Collects parameters from pointers to them, or from the buffer of `extra`.
///
/// # Safety
/// The arguments of `cuLaunchKernel`.
pub unsafe fn collect(
    function: Function,
    pointers: *mut *mut u8,
    extra: *mut *mut u8,
) -> Result<Vec<u8>, Code> {
    let mut all = vec![0; function.bytes()];
    if !pointers.is_null() {
        for (place, (at, len)) in function.parameters().iter().enumerate() {
            // SAFETY: the caller passes a pointer to each parameter.
            let value = unsafe { std::slice::from_raw_parts(*pointers.add(place), *len) };
            all[*at..at + len].copy_from_slice(value);
        }
        return Ok(all);
    }
    if extra.is_null() {
        return Err(INVALID_VALUE);
    }
    let (mut buffer, mut len) = (std::ptr::null::<u8>(), 0_usize);
    for pair in 0.. {
        // SAFETY: pairs of a name and a value, ended by the name 0.
        let (name, value) = unsafe { (*extra.add(2 * pair) as usize, extra.add(2 * pair + 1)) };
        match name {
            0 => break,
            // SAFETY: as above.
            1 => buffer = unsafe { *value },
            // SAFETY: a pointer to the length.
            2 => len = unsafe { *(*value).cast::<usize>() },
            _ => return Err(INVALID_VALUE),
        }
    }
    if buffer.is_null() || len < all.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller passes so many bytes.
    all.copy_from_slice(unsafe { std::slice::from_raw_parts(buffer, function.bytes()) });
    Ok(all)
}

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(from[at..at + 4].try_into().expect("four bytes"))
}

fn long(from: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(from[at..at + 8].try_into().expect("eight bytes"))
}

fn floats(address: u64, count: usize) -> Result<Vec<f32>, Code> {
    let spot = inside(state().spot(address, 4 * count))?;
    let mut all = vec![0_f32; count];
    // SAFETY: `spot` is as long, and `all` is private.
    unsafe { std::ptr::copy_nonoverlapping(spot.at(), all.as_mut_ptr().cast(), 4 * count) };
    Ok(all)
}

fn store(address: u64, all: &[f32]) -> Result<(), Code> {
    let spot = inside(state().spot(address, size_of_val(all)))?;
    // SAFETY: `spot` is as long.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr().cast(), spot.at(), size_of_val(all)) };
    Ok(())
}
