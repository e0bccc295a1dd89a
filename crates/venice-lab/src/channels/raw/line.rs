//! One cache line that two cores write in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, bail};

use crate::channels::measure::{Effort, Ends, on_cpu};
use crate::channels::path::FarEnd;
use crate::channels::series::{Medium, Operation, Point, Series, System};

/// Number of loads of the line before the other side counts as dead.
const MAX_LOOKS: u64 = 1 << 32;

/// A word alone on its line, and on the next one, which the processor prefetches with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures a round trip: to the other core and back.
pub(in crate::channels) fn ping_pong(effort: &Effort, ends: Ends) -> Result<Series> {
    let series =
        Series::new(System::Raw, Medium::Shm, Operation::RoundTrip, "cache-line ping-pong");
    if ends.near_cpu == ends.far_cpu {
        return Ok(series.absent("needs two processors"));
    }
    let line = Arc::new(Line(AtomicU64::new(0)));
    let theirs = Arc::clone(&line);
    // The near end makes it odd, the far end even again.
    let answer = move |(), stop: &AtomicBool| {
        let mut next = 1;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..1 << 16 {
                if theirs.0.load(Ordering::Acquire) == next {
                    theirs.0.store(next + 1, Ordering::Release);
                    next += 2;
                }
                std::hint::spin_loop();
            }
        }
    };
    let (_far, ()) = FarEnd::start(None, ends.far_cpu, || Ok(((), ())), answer)?;
    let latency = on_cpu(ends.near_cpu, || {
        let mut next = 1;
        effort.latency(|| {
            line.0.store(next, Ordering::Release);
            for _ in 0..MAX_LOOKS {
                if line.0.load(Ordering::Acquire) == next + 1 {
                    next += 2;
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            bail!("the other core does not answer")
        })
    })?;
    let point = Point { size_bytes: 64, latency: Some(latency), bandwidth_bytes_per_s: None };
    Ok(Series { points: vec![point], ..series })
}
