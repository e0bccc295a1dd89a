//! Devices of a run: granted with its memory or alone, and held as long as the program lives.

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use clap::Args;
use venice_control::client::Access;
use venice_control::{ResourceKind, Want};
use venice_recipient::runs::RunDevices;
use venice_recipient::{AllocationSpec, Held, HeldNews, Loan, allocate};

use super::child::Child;
use crate::client_drivers::{Installed, Source, Tell};
use crate::granted::{GrantedRow, environment, watch};
use crate::waiting::{in_line, told};
use venice_cli::failure::Usage;
use venice_cli::terminal::remark;

/// Flags of devices.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Accelerators to get, the same as --with accelerator=N. OpenCL devices are one platform of the
    /// program, beside its local ones; CUDA devices are those of its driver library, without local
    /// ones. With an option of memory both are granted or nothing, and the memory near them; without
    /// one no memory is borrowed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) accelerators: Option<u32>,
    /// Capabilities that each of them must have, with commas: opencl,fp64,images (`venice
    /// resources`)
    #[arg(long, value_name = "CAP", value_delimiter = ',', requires = "accelerators")]
    pub(super) accel_needs: Vec<String>,
    /// Further devices to get, as `venice get` names them: accelerator:cuda=2, nic,
    /// storage=10GiB; may be repeated. The program's environment describes them (`venice get`)
    #[arg(long = "with", value_name = "WANT")]
    pub(super) wants: Vec<Want>,
}

impl DeviceArgs {
    /// True if there are any.
    pub fn any(&self) -> bool {
        self.accelerators.is_some() || !self.wants.is_empty()
    }

    /// Returns the devices.
    ///
    /// # Errors
    /// Returns [`Usage`] for memory: that is `--remote`.
    pub fn wants(&self) -> Result<Vec<Want>, Usage> {
        if let Some(memory) = self.wants.iter().find(|want| !want.kind.is_device()) {
            return Err(Usage(format!("--with {memory} is not a device: memory is --remote SIZE")));
        }
        let needs = self.accel_needs.iter().map(|it| it.trim().to_owned());
        let needs: Vec<String> = needs.collect();
        if needs.iter().any(String::is_empty) {
            return Err(Usage("--accel-needs has an empty capability: write X or X,Y".into()));
        }
        let accelerators = self.accelerators.map(|count| {
            let capabilities = needs;
            Want { count, capabilities, ..Want::device(ResourceKind::Accelerator, 0) }
        });
        Ok(accelerators.into_iter().chain(self.wants.iter().cloned()).collect())
    }
}

/// The held devices.
pub struct Devices {
    held: Arc<Held>,
    source: Source,
    heard: Receiver<HeldNews>,
    drivers: Installed,
    /// True if accelerators of any sort were asked for.
    takes_any: bool,
}

impl Devices {
    /// Takes the devices of a loan over; `None`: it has none.
    pub fn take(loan: &mut Loan, spec: &AllocationSpec) -> anyhow::Result<Option<Self>> {
        if loan.devices.is_empty() {
            return Ok(None);
        }
        let (tell, heard) = telling();
        let access = loan.access.clone();
        let held = Held::devices_of(loan, tell_by(&tell)).map_err(told)?;
        Ok(Some(Self::new(held, (&access, spec), (tell, heard))))
    }

    fn new(
        held: Held,
        (access, spec): (&Access, &AllocationSpec),
        (tell, heard): (Tell, Receiver<HeldNews>),
    ) -> Self {
        let source = Source::of(access, spec, RunDevices::of(held.grants()), tell);
        let is_any =
            |want: &Want| want.kind == ResourceKind::Accelerator && want.capabilities.is_empty();
        let takes_any = spec.devices.iter().any(is_any);
        Self { held: Arc::new(held), source, heard, drivers: Installed::default(), takes_any }
    }

    /// Allocates devices without memory.
    pub fn allocate(access: &Access, spec: &AllocationSpec) -> anyhow::Result<Self> {
        let loan = match spec.waiting.at_most.is_zero() {
            true => allocate(access, spec, &mut |_| ControlFlow::Continue(())).map_err(told)?,
            false => in_line(|told| allocate(access, spec, told))?,
        };
        let (tell, heard) = telling();
        let held = Held::loan(loan, tell_by(&tell)).map_err(told)?;
        Ok(Self::new(held, (access, spec), (tell, heard)))
    }

    /// Describes them for `venice ps`.
    pub fn rows(&self) -> RunDevices {
        self.source.devices.clone()
    }

    /// Describes them in the environment of a command, and installs their client drivers for it.
    pub fn describe_to(&mut self, start: &mut Command) -> anyhow::Result<()> {
        let rows = GrantedRow::all(&self.held);
        self.drivers = Installed::of(&rows, &self.held, self.source.clone())?;
        if self.takes_any {
            rows.iter().filter_map(hidden).for_each(remark);
        }
        start.envs(environment(&rows)).envs(self.drivers.variables().iter().cloned());
        Ok(())
    }

    /// Ends the program when a device is lost.
    pub fn watch(self, child: &Child) -> DeviceWatch {
        let (signal, grace) = (child.signaller(), self.held.grace());
        let (end, has_ended) = mpsc::channel();
        let watcher = std::thread::spawn(move || {
            let news = |within| self.heard.recv_timeout(within).ok();
            let is_lost = watch(news, &self.drivers, &has_ended, grace, signal);
            drop(self);
            is_lost
        });
        DeviceWatch { end, watcher }
    }
}

/// Returns a remark on an accelerator that unchanged programs do not find.
fn hidden(row: &GrantedRow) -> Option<String> {
    let is_hidden =
        row.kind == ResourceKind::Accelerator.name() && !Installed::reaches_programs(row);
    let (device, node) = (&row.address, &row.node);
    is_hidden.then(|| {
        format!(
            "venice: {device} of {node} has no driver for programs, which find it by venice.accel \
             alone: --accel-needs opencl (or cuda) takes devices with one"
        )
    })
}

fn telling() -> (Tell, Receiver<HeldNews>) {
    let (tell, heard) = mpsc::channel();
    (Arc::new(move |news| drop(tell.send(news))), heard)
}

fn tell_by(tell: &Tell) -> impl FnMut(HeldNews) + Send + 'static {
    let tell = Arc::clone(tell);
    move |news| tell(news)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_accelerators_are_told() {
        let row = |kind, address: &str| GrantedRow {
            id: 1,
            kind,
            node: "node2".into(),
            address: address.into(),
            bytes: 1 << 20,
            capabilities: Vec::new(),
            lease_s: 1.0,
            service: None,
        };
        let remark = hidden(&row("accelerator", "emulated0")).unwrap();
        assert!(
            remark.contains("emulated0 of node2") && remark.contains("--accel-needs"),
            "{remark}"
        );
        assert_eq!(hidden(&row("nic", "eth1")), None);
    }
}
