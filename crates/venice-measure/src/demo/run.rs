//! Runs redis in one mode, from empty to the last measured request.

use std::time::Instant;

use anyhow::{Context, Result};

use super::Setting;
use super::mode::{Budget, Mode};
use super::redis::Redis;
use super::report::{ModeReport, Outcome};
use super::workload::{self, Checked};
use crate::kernel_swap;
use crate::kernel_swap::swap_file::SwapFile;
use crate::launch::{Launch, ONE_COPY};
use crate::progress::{Phase, note};
use crate::rack::{Port, Rack};
use crate::resident::{PeakSampler, resident_anonymous_bytes};

/// Runs one mode from an empty redis to the last measured request.
///
/// # Errors
/// On an interrupt only; any other error is an outcome, so that the other modes still run.
pub fn run(mode: Mode, setting: &Setting, budget: Budget) -> Result<Outcome> {
    let outcome = match mode {
        Mode::Local => run_redis(mode, setting, &Launch::Local),
        Mode::VeniceShm => run_on_rack(mode, setting, budget, Port::Shm),
        Mode::VeniceUdp => run_on_rack(mode, setting, budget, Port::Udp),
        Mode::SwapDisk => run_on_swap(mode, setting, budget),
    };
    crate::interrupt::check()?;
    Ok(outcome.unwrap_or_else(|error| {
        let reason = format!("{error:#}");
        note(&format!("FAILED {mode}: {reason}"));
        Outcome::Failed { reason }
    }))
}

/// Loads redis to measure the memory that the data takes, in bytes.
///
/// # Errors
/// When redis cannot be run, and on an interrupt.
pub fn size_of_data(setting: &Setting) -> Result<u64> {
    let program = &setting.redis_program;
    let mut redis = Redis::start(program, &Launch::Local, setting.folder.path(), "sizing")?;
    let loaded = workload::load(redis.client(), &setting.dataset, "sizing");
    loaded.map_err(|error| redis.explain(error))?;
    resident_anonymous_bytes(redis.pid()).context("redis ended while it was measured")
}

fn run_on_rack(mode: Mode, setting: &Setting, budget: Budget, port: Port) -> Result<Outcome> {
    let rack = {
        let _phase = Phase::waiting(format!("{mode}: start a rack"));
        Rack::up(port, budget.remote_bytes)?
    };
    let launch = Launch::OnRack {
        rack: &rack,
        local_bytes: budget.local_bytes,
        remote_bytes: budget.remote_bytes,
        kept: ONE_COPY,
        extra: &[],
    };
    run_redis(mode, setting, &launch)
}

fn run_on_swap(mode: Mode, setting: &Setting, budget: Budget) -> Result<Outcome> {
    // A failure here means a missing requirement of the machine: the mode is skipped, with a note.
    // Later failures are errors.
    let prepared = SwapFile::create(&setting.args.swap_dir, budget.remote_bytes).and_then(|file| {
        let group = kernel_swap::group_on("demo", budget.local_bytes, &file)?;
        Ok((file, group))
    });
    crate::interrupt::check()?;
    match prepared {
        // The group is dropped first: no member is left when swap is switched off.
        Ok((_file, group)) => run_redis(mode, setting, &Launch::InCgroup(&group)),
        Err(error) => {
            let reason = format!("{error:#}");
            note(&format!("SKIPPED {mode}: {reason}"));
            Ok(Outcome::Skipped { reason })
        }
    }
}

fn run_redis(mode: Mode, setting: &Setting, launch: &Launch<'_>) -> Result<Outcome> {
    let folder = setting.folder.path();
    let mut redis = Redis::start(&setting.redis_program, launch, folder, mode.name())?;
    let sampler = PeakSampler::start(redis.pid());
    let mut conversation = || -> Result<Outcome> {
        let pid = redis.pid();
        let client = redis.client();
        let start = Instant::now();
        workload::load(client, &setting.dataset, mode.name())?;
        let load_s = start.elapsed().as_secs_f64();
        let held_bytes = resident_anonymous_bytes(pid).context("redis has ended")?;
        let mut checked = workload::read_back(client, &setting.dataset, mode.name())?;
        let plan = &setting.plan;
        let uniform = workload::measure(client, plan, &plan.uniform, &format!("{mode}: uniform"))?;
        let zipf = workload::measure(client, plan, &plan.zipf, &format!("{mode}: Zipf 0.99"))?;
        sum(&mut checked, &[uniform.checked, zipf.checked]);
        let resident_bytes_peak = sampler.peak_bytes();
        let report = ModeReport::new(mode, load_s, checked, resident_bytes_peak, &uniform, &zipf);
        Ok(Outcome::Measured { report, held_bytes })
    };
    let outcome = conversation();
    outcome.map_err(|error| redis.explain(error))
}

fn sum(total: &mut Checked, parts: &[Checked]) {
    parts.iter().for_each(|part| total.add(*part));
}
