//! The ways redis gets its memory in the demo.

use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::redis::Redis;
use super::report::ModeReport;
use super::workload::{self, Checked};
use super::{Setting, redis};
use crate::kernel_swap::cgroup::MemoryCgroup;
use crate::kernel_swap::swap_file::SwapFile;
use crate::launch::Launch;
use crate::progress::{Phase, note};
use crate::rack::{Port, Rack};
use crate::resident::{PeakSampler, resident_anonymous_bytes};

/// Where redis's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Local memory, all of it.
    Local,
    /// A share local, the rest from donors over shared memory.
    VeniceShm,
    /// A share local, the rest from donors over udp.
    VeniceUdp,
    /// A share local, the rest on the kernel's swap on a local disk.
    SwapDisk,
}

impl Mode {
    /// Every mode, in the order they run.
    pub const ALL: [Self; 4] = [Self::Local, Self::VeniceShm, Self::VeniceUdp, Self::SwapDisk];

    /// The name in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::VeniceShm => "venice-shm",
            Self::VeniceUdp => "venice-udp",
            Self::SwapDisk => "swap-disk",
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Local and remote memory of the modes that have less than they need, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) local_bytes: u64,
    pub(crate) remote_bytes: u64,
}

impl Budget {
    /// For the mode that needs none.
    pub(crate) const NONE: Self = Self { local_bytes: u64::MAX, remote_bytes: 0 };

    const PAGE_BYTES: u64 = 4096;
    const SLAB_BYTES: u64 = 16 << 20;

    /// `share` of what redis holds stays local; the remote memory takes all of it and some more,
    /// because a loading redis grows its tables by copying them.
    pub(crate) fn of(held_bytes: u64, share: f64) -> Self {
        let local_bytes = (held_bytes as f64 * share) as u64 / Self::PAGE_BYTES * Self::PAGE_BYTES;
        let roomy_bytes = held_bytes + held_bytes / 4 + 4 * Self::SLAB_BYTES;
        Self {
            local_bytes: local_bytes.max(Self::PAGE_BYTES),
            remote_bytes: roomy_bytes.next_multiple_of(Self::SLAB_BYTES),
        }
    }
}

/// What became of a mode.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Measured { report: ModeReport, held_bytes: u64 },
    Skipped { reason: String },
    Failed { reason: String },
}

impl Outcome {
    /// Resident bytes after loading; 0 for a mode that did not run.
    pub(crate) fn held_bytes(&self) -> u64 {
        match self {
            Self::Measured { held_bytes, .. } => *held_bytes,
            Self::Skipped { .. } | Self::Failed { .. } => 0,
        }
    }
}

/// Runs one mode from an empty redis to the last measured request.
///
/// # Errors
/// On an interrupt only; what else goes wrong is an outcome, so that the other modes still run.
pub(crate) fn run(mode: Mode, setting: &Setting, budget: Budget) -> Result<Outcome> {
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

/// Loads redis only to see how much memory the data takes, in bytes.
///
/// # Errors
/// When redis cannot be run, and on an interrupt.
pub(crate) fn size_of_data(setting: &Setting) -> Result<u64> {
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
        extra: &[],
    };
    run_redis(mode, setting, &launch)
}

fn run_on_swap(mode: Mode, setting: &Setting, budget: Budget) -> Result<Outcome> {
    // What is missing here is missing on the machine: the mode is skipped, loudly. What fails
    // afterwards is a failure.
    let prepared = SwapFile::create(&setting.args.swap_dir, budget.remote_bytes).and_then(|file| {
        let group = MemoryCgroup::create("demo", budget.local_bytes)?;
        Ok((file, group))
    });
    crate::interrupt::check()?;
    match prepared {
        // The group goes first when they are dropped: no member is left when swap is switched off.
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
    let mut redis = redis::Redis::start(&setting.redis_program, launch, folder, mode.name())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_what_redis_holds() {
        let budget = Budget::of(1_400 << 20, 0.25);
        assert_eq!(budget.local_bytes, 350 << 20);
        assert!(budget.remote_bytes >= 1_750 << 20);
        assert_eq!(budget.remote_bytes % Budget::SLAB_BYTES, 0);
        assert_eq!(Budget::of(100, 0.1).local_bytes, 4096);
    }

    #[test]
    fn modes_have_the_names_of_the_report() {
        for mode in Mode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
            assert_eq!(Mode::from_str(mode.name(), false), Ok(mode));
        }
    }
}
