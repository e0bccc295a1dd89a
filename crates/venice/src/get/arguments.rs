//! What is said to `venice get`.

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
  venice get memory 2GiB --wait 10m -- ./job  in line where there is no room
  venice get accelerator --capability cuda -- ./train
  venice get accelerator --wait 2h --priority 80 -- ./train
                                              in line where all are in use
  venice get io --nic --dry-run               which it would be, and why not another
  venice get io --storage 100GiB --for scratch --json
  venice get io --nic --capability 25Gbps -- sh -c 'echo $VENICE_GRANT_NODE $VENICE_GRANT_ADDRESS'

What was got is printed, and held: its lease is renewed until this command is interrupted, or until
the command after -- ends, whose exit code is this one's then. A device is one recipient's at a time;
storage is granted by MiB. That command finds in its environment VENICE_GRANT_ID, _KIND, _NODE,
_ADDRESS, _BYTES and _CAPABILITIES; of memory from several nodes each is a list with commas. If a grant
is lost, as when its node dies, that is said, the command is sent SIGTERM, and the exit code is 1.
The same at the end of the time that is left where a request of higher priority needs it (--preempt of
another), which is said when it begins.
`venice resources` lists what there is, `venice agent --offer` lends devices.";

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
        /// How much
        #[arg(value_name = "SIZE")]
        size: ByteSize,
        /// Which nodes are borrowed from first [default: the rack's, nearest unless it was told]
        #[arg(long, value_name = "nearest|spread|pack")]
        placement: Option<Policy>,
        /// Traffic its links have to carry, evenly over the memory: 2Gbps
        #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
        bandwidth: Option<NonZeroU64>,
        #[command(flatten)]
        waiting: WaitArgs,
        /// Print where it would come from, and why; nothing is granted
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        common: Common,
    },
    /// An accelerator, whole: a GPU, an FPGA
    #[command(after_help = HELP)]
    Accelerator {
        /// It has to be able to do this; may be repeated
        #[arg(long, value_name = "X")]
        capability: Vec<String>,
        /// It has to be so large at least
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteSize>,
        #[command(flatten)]
        waiting: WaitArgs,
        /// Print which it would be, and why not another; nothing is granted
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Storage, by size, or a network card, whole
    #[command(
        after_help = HELP,
        group(ArgGroup::new("device").required(true).args(["storage", "nic"]))
    )]
    Io {
        /// So much storage, of one device
        #[arg(long, value_name = "SIZE")]
        storage: Option<ByteSize>,
        /// A network card
        #[arg(long)]
        nic: bool,
        /// It has to be able to do this; may be repeated
        #[arg(long, value_name = "X")]
        capability: Vec<String>,
        #[command(flatten)]
        waiting: WaitArgs,
        /// Print which it would be, and why not another; nothing is granted
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
    /// What for, in `venice grants` [default: the command, or venice get]
    #[arg(long = "for", value_name = "PURPOSE")]
    purpose: Option<String>,
    /// Print a list of objects: id, kind, node, address, bytes, capabilities, lease_s
    #[arg(long)]
    json: bool,
    /// Hold it for the length of this command
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What is to be got.
pub enum Wanted {
    /// Memory.
    Memory(Wish),
    /// A device.
    Device(DeviceWish),
}

impl GetArgs {
    /// The command to run; empty: none.
    pub fn command(&self) -> &[OsString] {
        &self.common().command
    }

    /// Whether to print JSON.
    pub fn json(&self) -> bool {
        self.common().json
    }

    /// Whether nothing is to be granted.
    pub fn is_dry_run(&self) -> bool {
        match &self.what {
            What::Memory { dry_run, .. }
            | What::Accelerator { dry_run, .. }
            | What::Io { dry_run, .. } => *dry_run,
        }
    }

    /// What is to be got.
    ///
    /// # Errors
    /// [`Usage`]: nothing at all.
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
            let said = || Usage("ask for a byte at least".to_owned());
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
