//! Arguments of `venice get`.

use std::ffi::OsString;
use std::num::NonZeroU64;

use clap::{ArgGroup, Args, Subcommand};
use venice_control::{Policy, ResourceKind};
use venice_fabric::parse_bandwidth;
use venice_recipient::{DeviceWish, Wish};
use venice_wire::ByteSize;

use crate::waiting::WaitArgs;
use venice_cli::failure::Usage;

/// Text below `venice get --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice get memory 2GiB                      held until Ctrl-C
  venice get memory 2GiB --wait 10m -- ./job  queue if there is no room
  venice get accelerator --capability cuda -- ./train
  venice get accelerator --wait 2h --priority 80 -- ./train
                                              queue if all are in use
  venice get io --nic --dry-run               show the choice and the reasons
  venice get io --storage 100GiB --for scratch --json
  venice get io --nic --capability 25Gbps -- sh -c 'echo $VENICE_GRANT_NODE $VENICE_GRANT_ADDRESS'

Prints the grants and holds them: renews their leases until it is interrupted, or until the command
after -- ends, whose exit code it then returns. A device has one recipient at a time; storage is
granted by MiB. The command's environment has VENICE_GRANT_ID, _KIND, _NODE, _ADDRESS, _BYTES and
_CAPABILITIES; for memory from several nodes each is a list with commas. If a grant is lost, for example
with its node, this is reported, the command receives SIGTERM, and the exit code is 1. The same happens
at the end of the notice period when a grant is preempted for a request of higher priority (another's
--preempt); the start of the notice is reported too. `venice resources` lists what is offered, `venice
agent --offer` lends devices.";

/// `venice get`
#[derive(Args, Debug)]
pub struct GetArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Memory, in whole slabs of 16 MiB, in one copy
    #[command(after_help = HELP)]
    Memory {
        /// Amount of memory
        #[arg(value_name = "SIZE")]
        size: ByteSize,
        /// Placement policy [default: the rack's, initially nearest]
        #[arg(long, value_name = "nearest|spread|pack")]
        placement: Option<Policy>,
        /// Bandwidth to reserve on its links, spread evenly over the memory: 2Gbps
        #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
        bandwidth: Option<NonZeroU64>,
        #[command(flatten)]
        waiting: WaitArgs,
        /// Show where it would be placed, and why; nothing is granted
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        common: Common,
    },
    /// A whole accelerator: a GPU, an FPGA
    #[command(after_help = HELP)]
    Accelerator {
        /// Required capability; may be repeated
        #[arg(long, value_name = "X")]
        capability: Vec<String>,
        /// Minimum size
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteSize>,
        #[command(flatten)]
        waiting: WaitArgs,
        /// Show which device it would be, and why; nothing is granted
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Storage, by size, or a whole network card
    #[command(
        after_help = HELP,
        group(ArgGroup::new("device").required(true).args(["storage", "nic"]))
    )]
    Io {
        /// Amount of storage, from one device
        #[arg(long, value_name = "SIZE")]
        storage: Option<ByteSize>,
        /// A network card
        #[arg(long)]
        nic: bool,
        /// Required capability; may be repeated
        #[arg(long, value_name = "X")]
        capability: Vec<String>,
        #[command(flatten)]
        waiting: WaitArgs,
        /// Show which device it would be, and why; nothing is granted
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Args, Debug)]
struct Common {
    /// Borrow from these nodes only; may be repeated
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    donor: Vec<String>,
    /// Purpose shown in `venice grants` [default: the command, or venice get]
    #[arg(long = "for", value_name = "PURPOSE")]
    purpose: Option<String>,
    /// Print a list of objects: id, kind, node, address, bytes, capabilities, lease_s
    #[arg(long)]
    json: bool,
    /// Command to run while the grant is held
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A request for memory or a device.
pub enum Wanted {
    /// Memory.
    Memory(Wish),
    /// A device.
    Device(DeviceWish),
}

impl GetArgs {
    /// Returns the command to run; empty if there is none.
    pub fn command(&self) -> &[OsString] {
        &self.common().command
    }

    /// True if JSON is printed.
    pub fn json(&self) -> bool {
        self.common().json
    }

    /// True if nothing is to be granted.
    pub fn is_dry_run(&self) -> bool {
        match &self.what {
            What::Memory { dry_run, .. }
            | What::Accelerator { dry_run, .. }
            | What::Io { dry_run, .. } => *dry_run,
        }
    }

    /// Returns the request.
    ///
    /// # Errors
    /// Returns [`Usage`] if it asks for zero bytes.
    pub fn wanted(&self) -> anyhow::Result<Wanted> {
        let donors = self.common().donor.clone();
        let purpose = self.purpose();
        let device = |kind, size: Option<ByteSize>, capabilities: &[String], waiting: &WaitArgs| {
            let bytes = size.map_or(0, |size| size.0);
            let (capabilities, waiting) = (capabilities.to_vec(), waiting.waiting());
            let (donors, purpose) = (donors.clone(), purpose.clone());
            Wanted::Device(DeviceWish { kind, bytes, capabilities, donors, waiting, purpose })
        };
        let nothing = |size: ByteSize| {
            let said = || Usage("SIZE must be at least one byte".to_owned());
            if size.0 == 0 { Err(anyhow::Error::from(said())) } else { Ok(()) }
        };
        Ok(match &self.what {
            What::Memory { size, placement, bandwidth, waiting, .. } => {
                nothing(*size)?;
                Wanted::Memory(Wish {
                    remote_bytes: Some(size.0),
                    copies: Some(1),
                    donors,
                    placement: *placement,
                    bandwidth_bps: bandwidth.map_or(0, NonZeroU64::get),
                    waiting: waiting.waiting(),
                    purpose,
                    ..Wish::default()
                })
            }
            What::Accelerator { capability, size, waiting, .. } => {
                device(ResourceKind::Accelerator, *size, capability, waiting)
            }
            What::Io { nic: true, capability, waiting, .. } => {
                device(ResourceKind::Nic, None, capability, waiting)
            }
            What::Io { storage, capability, waiting, .. } => {
                nothing(storage.unwrap_or(ByteSize(0)))?;
                device(ResourceKind::Storage, *storage, capability, waiting)
            }
        })
    }

    fn purpose(&self) -> String {
        let Common { purpose, command, .. } = self.common();
        let of_command = || command.first().map(|name| name.to_string_lossy().into_owned());
        purpose.clone().or_else(of_command).unwrap_or_else(|| "venice get".to_owned())
    }

    fn common(&self) -> &Common {
        match &self.what {
            What::Memory { common, .. }
            | What::Accelerator { common, .. }
            | What::Io { common, .. } => common,
        }
    }
}
