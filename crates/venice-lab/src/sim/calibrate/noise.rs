//! Noise: a thread that reads the clock all the time notes when it does not run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_getres};
use venice_measure::interrupt;
use venice_simkernel::units::Hertz;
use venice_warehouse::traffic::Distribution;

use super::sample::Cost;

/// Reads of the clock between two looks for Ctrl-C.
const READS: u32 = 1 << 16;
/// A gap is longer than so many usual distances of two reads.
const LEAST_GAP: u64 = 6;
/// Ticks lie in this part of a period.
const TICK_SHARE: f64 = 0.03;
/// Fewer ticks than this part of the expected ones: the kernel has none.
const LEAST_TICKS: f64 = 0.3;
/// A tick that is so many times longer than others has started something else.
const LONG_TICK: f64 = 4.0;
/// With fewer runs of daemons no shape of their lengths is seen.
const LEAST_RUNS: usize = 20;
/// Noise of a larger share of the time is not the kernel's own. An experiment refuses noise that takes a
/// third of a core, and may give its servers half of this host's clock.
const MOST_SHARE: f64 = 0.15;

/// A time in which the thread did not run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gap {
    /// Its start.
    pub at_ns: u64,
    /// Its length.
    pub ns: u64,
}

/// The gaps of a thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Watched {
    pub ns: u64,
    pub gaps: Vec<Gap>,
}

/// Watches for a time.
///
/// # Errors
/// An interrupt.
pub(super) fn watch(time: Duration) -> Result<Watched> {
    let usual = (0..1000).map(|_| {
        let before = Instant::now();
        before.elapsed().as_nanos() as u64
    });
    let usual = usual.min().unwrap_or(0).max(1);
    let mut watched = Watched { ns: 0, gaps: Vec::with_capacity(1 << 16) };
    let start = Instant::now();
    let mut last = 0;
    while watched.ns < time.as_nanos() as u64 {
        interrupt::check()?;
        for _ in 0..READS {
            let now = start.elapsed().as_nanos() as u64;
            let distance = now - last;
            if distance > usual * LEAST_GAP {
                watched.gaps.push(Gap { at_ns: last, ns: distance - usual });
            }
            last = now;
        }
        watched.ns = last;
    }
    Ok(watched)
}

/// Returns the frequency of the kernel's tick: the resolution of its coarse clock.
pub(super) fn tick_frequency() -> Hertz {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    Hertz(1_000_000_000u64.checked_div(resolution.tv_nsec as u64).unwrap_or(0))
}

/// The noise of a core.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NoiseFound {
    /// Ticks a second; 0: none.
    pub tick: Hertz,
    /// Time of a tick.
    pub tick_cost: Cost,
    /// Microseconds between two runs of daemons.
    pub gap_us: Distribution,
    /// Nanoseconds of a run.
    pub run_ns: Distribution,
    /// Runs that were seen.
    pub runs: usize,
    /// The part of the core's time that all of it took.
    pub share: f64,
}

/// Divides gaps into ticks and runs of daemons.
///
/// # Errors
/// The core was busy with others.
pub(super) fn analyse(watched: &Watched, tick: Hertz) -> Result<NoiseFound> {
    let share =
        watched.gaps.iter().map(|gap| gap.ns).sum::<u64>() as f64 / watched.ns.max(1) as f64;
    if share > MOST_SHARE {
        let why = "other programs took so much of the processor: stop them and measure again";
        anyhow::bail!("{:.0} %: {why}", share * 100.0);
    }
    let (ticks, others) = divide(watched, tick);
    let expected = tick.0 as f64 * watched.ns as f64 / 1e9 * (1.0 - share);
    let has_ticks = expected > 0.0 && ticks.len() as f64 > LEAST_TICKS * expected;
    let tick_cost = match has_ticks {
        true => Cost::of(ticks.iter().map(|ns| *ns as f64).collect()).context("ticks")?,
        false => Cost::default(),
    };
    let mut runs: Vec<f64> = others.iter().map(|ns| *ns as f64).collect();
    if has_ticks {
        let long = ticks.iter().map(|ns| *ns as f64).filter(|ns| *ns > LONG_TICK * tick_cost.ns);
        runs.extend(long.map(|ns| ns - tick_cost.ns));
    } else {
        runs.extend(ticks.iter().map(|ns| *ns as f64));
    }
    let busy: f64 = runs.iter().sum();
    let gap_us = match runs.len() {
        0 => Distribution::Constant { value: 0.0 },
        count => {
            Distribution::Exponential { mean: (watched.ns as f64 - busy) / count as f64 / 1e3 }
        }
    };
    let count = runs.len();
    let tick = if has_ticks { tick } else { Hertz(0) };
    Ok(NoiseFound { tick, tick_cost, gap_us, run_ns: lengths(runs), runs: count, share })
}

/// Returns the lengths of the gaps at the phase at which most of them begin, and of the others.
fn divide(watched: &Watched, tick: Hertz) -> (Vec<u64>, Vec<u64>) {
    let Some(period) = 1_000_000_000u64.checked_div(tick.0) else {
        return (Vec::new(), watched.gaps.iter().map(|gap| gap.ns).collect());
    };
    let window = ((period as f64 * TICK_SHARE) as u64).max(1);
    let mut phases: Vec<u64> = watched.gaps.iter().map(|gap| gap.at_ns % period).collect();
    phases.sort_unstable();
    // The window from each phase on, around the end of the period too.
    let around: Vec<u64> =
        phases.iter().copied().chain(phases.iter().map(|phase| phase + period)).collect();
    let mut best = (0, 0);
    for (at, phase) in phases.iter().enumerate() {
        let count = around[at..].partition_point(|other| *other < phase + window);
        best = best.max((count, *phase));
    }
    let is_tick = |gap: &&Gap| (gap.at_ns % period + period - best.1) % period < window;
    let (ticks, others): (Vec<&Gap>, Vec<&Gap>) = watched.gaps.iter().partition(is_tick);
    let lengths = |gaps: Vec<&Gap>| gaps.iter().map(|gap| gap.ns).collect();
    (lengths(ticks), lengths(others))
}

/// Fits a generalized Pareto distribution by probability-weighted moments (Hosking and Wallis,
/// "Parameter and quantile estimation for the generalized Pareto distribution", 1987); it has the mean
/// of the samples.
fn lengths(mut samples: Vec<f64>) -> Distribution {
    if samples.is_empty() {
        return Distribution::Constant { value: 0.0 };
    }
    samples.sort_by(f64::total_cmp);
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    if samples.len() < LEAST_RUNS {
        return Distribution::Exponential { mean };
    }
    let location = samples[0];
    let above = mean - location;
    let weighted = samples
        .iter()
        .zip(1..)
        .map(|(sample, rank)| (1.0 - (f64::from(rank) - 0.35) / count) * (sample - location));
    let weighted = weighted.sum::<f64>() / count;
    if above <= 0.0 {
        return Distribution::Constant { value: mean };
    }
    let shape = (2.0 - above / (above - 2.0 * weighted)).clamp(0.01, 0.9);
    Distribution::Pareto { location, scale: above * (1.0 - shape), shape }
}

#[cfg(test)]
mod tests {
    use venice_simkernel::random::Stream;

    use super::*;

    const TICK: Hertz = Hertz(250);

    fn watched(seconds: u64, runs: &[Gap]) -> Watched {
        let ticks = (0..seconds * TICK.0).map(|number| Gap {
            at_ns: number * 4_000_000 + 3_999_000 + number % 7 * 100,
            ns: 2_000 + number % 5 * 100,
        });
        let mut gaps: Vec<Gap> = ticks.chain(runs.iter().copied()).collect();
        gaps.sort_by_key(|gap| gap.at_ns);
        Watched { ns: seconds * 1_000_000_000, gaps }
    }

    #[test]
    fn ticks_are_told_from_runs() {
        let runs: Vec<Gap> = (0..100)
            .map(|number| Gap { at_ns: number * 101_234_567 + 500_000, ns: 50_000 + number * 10 })
            .filter(|gap| (100_000..3_800_000).contains(&(gap.at_ns % 4_000_000)))
            .collect();
        let found = analyse(&watched(11, &runs), TICK).unwrap();
        assert_eq!((found.tick, found.runs), (TICK, runs.len()));
        assert_eq!(found.tick_cost.ns, 2_200.0);
        let Distribution::Exponential { mean } = found.gap_us else { panic!("{found:?}") };
        let expected = 11e6 / runs.len() as f64;
        assert!((mean / expected - 1.0).abs() < 0.01, "{mean} of {expected}");
        assert!((found.run_ns.mean() / 50_500.0 - 1.0).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn long_tick_counts_as_run() {
        let mut all = watched(2, &[]);
        all.gaps[7].ns = 90_000;
        let found = analyse(&all, TICK).unwrap();
        assert_eq!((found.runs, found.tick_cost.ns), (1, 2_200.0));
        assert_eq!(found.run_ns, Distribution::Exponential { mean: 87_800.0 });
    }

    #[test]
    fn quiet_core_has_no_noise() {
        let found = analyse(&Watched { ns: 1_000_000_000, gaps: Vec::new() }, TICK).unwrap();
        assert_eq!((found.tick, found.runs), (Hertz(0), 0));
        assert_eq!(found.gap_us, Distribution::Constant { value: 0.0 });
    }

    #[test]
    fn busy_core_is_refused() {
        let gaps = vec![Gap { at_ns: 0, ns: 600_000_000 }];
        let error = analyse(&Watched { ns: 1_000_000_000, gaps }, TICK).unwrap_err().to_string();
        assert!(error.starts_with("60 %") && error.contains("stop them"), "{error}");
    }

    #[test]
    fn pareto_lengths_are_found() {
        let drawn = Distribution::Pareto { location: 1000.0, scale: 300.0, shape: 0.4 };
        let mut random = Stream::new(3);
        let samples = (0..20_000).map(|_| drawn.draw(&mut random)).collect();
        let Distribution::Pareto { location, scale, shape } = lengths(samples) else { panic!() };
        assert!(
            (location - 1000.0).abs() < 1.0 && (scale - 300.0).abs() < 20.0,
            "{location} {scale}"
        );
        assert!((shape - 0.4).abs() < 0.05, "{shape}");
    }
}
