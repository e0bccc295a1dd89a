//! The set-up of the modes: racks that stay up from one application to the next, and swap devices
//! that exist for one run.

use std::path::PathBuf;

use anyhow::Result;

use super::mode::{Budget, Mode};
use super::report::KILLED;
use venice_measure::kernel_swap::fuse_loop::FuseLoopSwap;
use venice_measure::kernel_swap::ram_disk::RamDiskSwap;
use venice_measure::kernel_swap::swap_file::SwapFile;
use venice_measure::kernel_swap::zram::ZramSwap;
use venice_measure::kernel_swap::{self, SwapDevice};
use venice_measure::launch::{Launch, ONE_COPY};
use venice_measure::progress::Phase;
use venice_measure::rack::{Port, Rack};

/// Name of this process's cgroups.
const GROUP: &str = "memory";

/// Part of this machine that a mode needs and does not find.
#[derive(Debug)]
pub(super) struct Lacking(pub(super) String);

/// Racks and swap devices in place. Dropping it takes them all down.
#[derive(Debug)]
pub(super) struct ModeSetup {
    swap_dir: PathBuf,
    shm: Option<RunningRack>,
    udp: Option<RunningRack>,
}

#[derive(Debug)]
struct RunningRack {
    rack: Rack,
    lent_bytes: u64,
}

impl ModeSetup {
    /// Creates an empty set-up; removes, once in a process, the remains of benchmarks that were
    /// killed.
    pub(super) fn new(swap_dir: PathBuf) -> Self {
        kernel_swap::sweep(Some(&swap_dir));
        Self { swap_dir, shm: None, udp: None }
    }

    /// Lets `run` start an application in one mode.
    ///
    /// The inner error names what the machine lacks for this mode, the outer one the failure.
    pub(super) fn on<T>(
        &mut self,
        mode: Mode,
        budget: Budget,
        run: impl FnOnce(&Launch<'_>) -> Result<T>,
    ) -> Result<Result<T, Lacking>> {
        match mode {
            Mode::Local => run(&Launch::Local).map(Ok),
            Mode::VeniceShm => self.on_rack(Port::Shm, budget, &[], run).map(Ok),
            Mode::VeniceUdp => self.on_rack(Port::Udp, budget, &[], run).map(Ok),
            Mode::VeniceWindow => {
                self.on_rack(Port::Shm, budget, &["--mode", "window"], run).map(Ok)
            }
            Mode::VeniceSwapShm => self.on_venice_swap(Port::Shm, budget, run),
            Mode::VeniceSwapUdp => self.on_venice_swap(Port::Udp, budget, run),
            Mode::SwapDisk => {
                let folder = &self.swap_dir;
                on_swap(budget, |len_bytes| SwapFile::create(folder, len_bytes), run)
            }
            Mode::Zram => on_swap(budget, ZramSwap::create, run),
            Mode::RamDisk => on_swap(budget, RamDiskSwap::create, run),
            Mode::FuseLoop => on_swap(budget, FuseLoopSwap::create, run),
        }
    }

    fn on_venice_swap<T>(
        &mut self,
        port: Port,
        budget: Budget,
        run: impl FnOnce(&Launch<'_>) -> Result<T>,
    ) -> Result<Result<T, Lacking>> {
        if let Err(lacking) = venice_swap::require_root() {
            return Ok(Err(Lacking(lacking.to_string())));
        }
        self.on_rack(port, budget, &["--mode", "swap"], run).map(Ok)
    }

    fn on_rack<T>(
        &mut self,
        port: Port,
        budget: Budget,
        extra: &[&str],
        run: impl FnOnce(&Launch<'_>) -> Result<T>,
    ) -> Result<T> {
        let Budget { local_bytes, remote_bytes } = budget;
        let rack = self.rack(port, remote_bytes)?;
        let kept = ONE_COPY;
        run(&Launch::OnRack { rack, local_bytes, remote_bytes, kept, extra })
    }

    /// Returns the rack of `port`; starts a larger one if it lends too little.
    pub(super) fn rack(&mut self, port: Port, remote_bytes: u64) -> Result<&Rack> {
        let running = match port {
            Port::Shm => &mut self.shm,
            Port::Udp => &mut self.udp,
        };
        if running.as_ref().is_some_and(|running| running.lent_bytes < remote_bytes) {
            *running = None;
        }
        if running.is_none() {
            let _phase = Phase::waiting(format!("start a rack over {}", port.name()));
            // Half as much again, so that it need not grow with every application.
            let lent_bytes = remote_bytes + remote_bytes / 2;
            let rack = Rack::up(port, lent_bytes)?;
            *running = Some(RunningRack { rack, lent_bytes });
        }
        Ok(&running.as_ref().expect("it stands").rack)
    }
}

fn on_swap<S: SwapDevice, T>(
    budget: Budget,
    create: impl FnOnce(u64) -> Result<S>,
    run: impl FnOnce(&Launch<'_>) -> Result<T>,
) -> Result<Result<T, Lacking>> {
    let prepared = create(budget.remote_bytes).and_then(|device| {
        let group = kernel_swap::group_on(GROUP, budget.local_bytes, &device)?;
        Ok((device, group))
    });
    venice_measure::interrupt::check()?;
    match prepared {
        // The group is dropped first: no member is left when swap is switched off.
        Ok((_device, group)) => match run(&Launch::InCgroup(&group)) {
            Err(error) if group.killed_for_memory() > 0 => Err(error.context(KILLED)),
            outcome => outcome.map(Ok),
        },
        Err(lacking) => Ok(Err(Lacking(format!("{lacking:#}")))),
    }
}
