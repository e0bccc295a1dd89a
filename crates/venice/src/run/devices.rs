//! Devices of a run: granted with its memory, and held as long as the program lives.

use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use clap::Args;
use venice_control::{ResourceKind, Want};
use venice_recipient::{Held, HeldNews, Loan};

use super::child::Child;
use crate::granted::{GrantedRow, environment, watch};
use crate::waiting::told;
use venice_cli::failure::Usage;

/// Flags of devices.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Accelerators to get with the memory: both or nothing, and the memory near them; the same as
    /// --with accelerator=N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) accelerators: Option<u32>,
    /// Devices to get with the memory, as `venice get` names them: accelerator:cuda=2, nic,
    /// storage=10GiB; may be repeated. The program's environment describes them (`venice get`)
    #[arg(long = "with", value_name = "WANT")]
    pub(super) wants: Vec<Want>,
}

impl DeviceArgs {
    /// Returns the devices.
    ///
    /// # Errors
    /// Returns [`Usage`] for memory: that is `--remote`.
    pub fn wants(&self) -> Result<Vec<Want>, Usage> {
        if let Some(memory) = self.wants.iter().find(|want| !want.kind.is_device()) {
            return Err(Usage(format!("--with {memory} is not a device: memory is --remote SIZE")));
        }
        let accelerators = self
            .accelerators
            .map(|count| Want { count, ..Want::device(ResourceKind::Accelerator, 0) });
        Ok(accelerators.into_iter().chain(self.wants.iter().cloned()).collect())
    }
}

/// The held devices.
pub struct Devices {
    held: Held,
    heard: Receiver<HeldNews>,
}

impl Devices {
    /// Takes the devices of a loan over; `None`: it has none.
    pub fn take(loan: &mut Loan) -> anyhow::Result<Option<Self>> {
        if loan.devices.is_empty() {
            return Ok(None);
        }
        let (tell, heard) = mpsc::channel();
        let held = Held::devices_of(loan, move |news| drop(tell.send(news))).map_err(told)?;
        Ok(Some(Self { held, heard }))
    }

    /// Describes them in the environment of a command.
    pub fn describe_to(&self, start: &mut Command) {
        let rows = GrantedRow::all(&self.held);
        start.envs(environment(&rows));
    }

    /// Ends the program when a device is lost.
    pub fn watch(self, child: &Child) -> DeviceWatch {
        let (signal, grace) = (child.signaller(), self.held.grace());
        let (end, has_ended) = mpsc::channel();
        let watcher = std::thread::spawn(move || {
            let news = |within| self.heard.recv_timeout(within).ok();
            let is_lost = watch(news, &has_ended, grace, signal);
            drop(self.held);
            is_lost
        });
        DeviceWatch { end, watcher }
    }
}

/// The thread that ends the program when a device is lost.
pub struct DeviceWatch {
    end: Sender<()>,
    watcher: JoinHandle<bool>,
}

impl DeviceWatch {
    /// Releases the devices. Returns true if one was lost.
    pub fn finish(self) -> bool {
        drop(self.end);
        self.watcher.join().expect("the watcher does not panic")
    }
}
