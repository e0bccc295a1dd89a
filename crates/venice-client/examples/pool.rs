//! Fourier transforms on granted accelerators.
//!
//! ```text
//! venice up --offer node2/accelerator:emulated0=fft@64MB/s --offer node3/accelerator:emulated1=fft@64MB/s
//! cargo run -p venice-client --example pool -- 2      requests two accelerators
//! venice get accelerator:fft=2 -- target/debug/examples/pool
//! ```
//! Each task transforms an impulse, of which every result is 1.

use std::process::ExitCode;

use venice_client::accel::{Executable, Pool};
use venice_client::{DeviceOptions, Error, Rack};

const TASKS: usize = 8;
const POINTS: usize = 1024;

fn main() -> ExitCode {
    match run(std::env::args().nth(1).as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pool: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(count: Option<&str>) -> Result<(), Error> {
    let mut pool = open(count)?;
    // Complex numbers of two floats.
    let mut impulse = vec![0; POINTS * 8];
    impulse[..4].copy_from_slice(&1f32.to_le_bytes());
    let fft = Executable::built_in("fft").with_number(POINTS as u64);
    let outputs = pool.map(&fft, &vec![impulse; TASKS])?;
    let is_right = |output: &Vec<u8>| {
        let numbers = output.chunks_exact(8);
        numbers.map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]])).all(|re| re == 1.0)
    };
    let right = outputs.iter().filter(|output| is_right(output)).count();
    println!("{} accelerators, {right} of {TASKS} results are right", pool.len());
    Ok(())
}

/// Opens the accelerators that this program was started with, or requests some.
fn open(count: Option<&str>) -> Result<Pool, Error> {
    let Some(count) = count else { return Pool::from_grants() };
    let count = count.parse().map_err(|_| Error::Invalid(format!("{count:?} is no count")))?;
    Pool::get(&Rack::connect()?, count, "fft", &DeviceOptions::default())
}
