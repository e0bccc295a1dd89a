//! Redis with values of 1 KiB: the workload of `venice demo`, as two cases of the benchmark.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::application::Sizes;
use super::super::sample::{Sample, Timing};
use venice_measure::demo::dataset::Dataset;
use venice_measure::demo::redis::{Redis, find_program};
use venice_measure::demo::workload::{self, Measured, Plan};
use venice_measure::launch::Launch;
use venice_measure::resident::{PeakSampler, resident_anonymous_bytes};

/// Runs it from empty to the last measured request.
///
/// # Errors
/// When redis is not there or fails, and on an interrupt.
pub(in super::super) fn run(
    launch: &Launch<'_>,
    sizes: &Sizes,
    limit: Duration,
    folder: &Path,
    label: &str,
) -> Result<Sample> {
    let mut redis = Redis::start(&find_program()?, launch, folder, "redis")?;
    let outcome = converse(&mut redis, sizes, limit, label);
    outcome.map_err(|error| redis.explain(error))
}

fn converse(redis: &mut Redis, sizes: &Sizes, limit: Duration, label: &str) -> Result<Sample> {
    let pid = redis.pid();
    let sampler = PeakSampler::start(pid);
    let dataset = Dataset::of_bytes(sizes.data_bytes);
    let plan = Plan::new(&dataset, sizes.requests, limit);
    let client = redis.client();
    let start = Instant::now();
    workload::load(client, &dataset, label)?;
    let load_s = start.elapsed().as_secs_f64();
    let resident_bytes = resident_anonymous_bytes(pid).context("redis has ended")?;
    let mut checked = workload::read_back(client, &dataset, label)?;
    let uniform = workload::measure(client, &plan, &plan.uniform, &format!("{label}: uniform"))?;
    let zipf = workload::measure(client, &plan, &plan.zipf, &format!("{label}: Zipf 0.99"))?;
    checked.add(uniform.checked);
    checked.add(zipf.checked);
    Ok(Sample {
        load_s,
        resident_bytes,
        peak_bytes: sampler.peak_bytes(),
        checked: checked.values,
        wrong: checked.wrong,
        digests: Vec::new(),
        cases: vec![timing("redis, uniform", &uniform), timing("redis, Zipf 0.99", &zipf)],
    })
}

fn timing(case: &str, measured: &Measured) -> Timing {
    Timing {
        case: case.to_owned(),
        operations: measured.requests,
        seconds: measured.requests as f64 / measured.ops_per_s,
        p99_us: Some(measured.p99_us),
        cut_short: measured.cut_short,
    }
}
