//! Arguments of `venice get`.

use std::ffi::OsString;
use std::num::NonZeroU64;

use clap::Args;
use venice_control::{Policy, Want};
use venice_fabric::parse_bandwidth;
use venice_recipient::{AllocationSpec, MemorySpec};

use crate::waiting::WaitArgs;
use venice_cli::failure::Usage;

/// Text below `venice get --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice get memory=2GiB                      held until Ctrl-C
  venice get memory=2GiB --wait 10m -- ./job  queue if there is no room
  venice get accelerator:cuda -- ./train
  venice get accelerator=2 --wait 2h --priority 80 -- ./train
                                              two of them; queue if they are in use
  venice get accelerator memory=16GiB -- ./train
                                              both or nothing, the memory near the accelerator
  venice get nic --dry-run                    show the choice and the reasons
  venice get storage=100GiB --for scratch --json
  venice get nic:25Gbps -- sh -c 'echo $VENICE_GRANT_NODE $VENICE_GRANT_ADDRESS'

A WANT is KIND[:CAPABILITY,...][=AMOUNT], with kinds and capabilities of `venice resources`. AMOUNT is a count (2), a size (8GiB) or both (2x8GiB): memory and
storage need a size; of a device that is lent whole the size is the least that will do. Memory is
granted in whole slabs of 16 MiB and storage by MiB; several pieces of memory are copies on different
nodes. All wants are granted together or not at all.

Prints the grants and holds them: renews their leases until it is interrupted, or until the command
after -- ends, whose exit code it then returns. A device has one recipient at a time. The
command's environment has VENICE_GRANT_ID, _KIND, _NODE, _ADDRESS, _BYTES and _CAPABILITIES; for
several grants each is a list with commas. VENICE_GRANT_ENDPOINTS is a JSON list with the service of
each grant, or null: grant, service, secret, endpoints (port, address, extra). The OpenCL loader of the command
finds granted OpenCL devices, as platform Venice. If a grant is lost, for example
with its node, this is reported, the command receives SIGTERM, and the exit code is 1; a lost OpenCL
device fails the calls of the command instead. The same happens
at the end of the notice period when a grant is preempted for a request of higher priority (another's
--preempt), unless it is an OpenCL device that can move to another node; the start of the notice is
reported too. `venice resources` lists what is offered, `venice
agent --offer` lends devices.";

/// `venice get`
#[derive(Args, Debug)]
pub struct GetArgs {
    /// What to get, as memory=2GiB or accelerator:cuda; several are granted together
    #[arg(value_name = "WANT", required = true)]
    wants: Vec<Want>,
    /// Placement policy of memory [default: the rack's, initially nearest]
    #[arg(long, value_name = "nearest|spread|pack")]
    placement: Option<Policy>,
    /// Bandwidth to reserve on the links of memory, spread evenly over it: 2Gbps
    #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
    bandwidth: Option<NonZeroU64>,
    #[command(flatten)]
    waiting: WaitArgs,
    /// Show what would be granted, and why; nothing is granted
    #[arg(long)]
    dry_run: bool,
    /// Borrow from these nodes only; may be repeated
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    donor: Vec<String>,
    /// Purpose shown in `venice grants` [default: the command, or venice get]
    #[arg(long = "for", value_name = "PURPOSE")]
    purpose: Option<String>,
    /// Print a list of objects: id, kind, node, address, bytes, capabilities, lease_s, service
    #[arg(long)]
    json: bool,
    /// Command to run while the grants are held
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl GetArgs {
    /// Returns the command to run; empty if there is none.
    pub fn command(&self) -> &[OsString] {
        &self.command
    }

    /// True if a program is to be run.
    pub fn runs_program(&self) -> bool {
        !self.command.is_empty() && !self.dry_run
    }

    /// True if JSON is printed.
    pub fn json(&self) -> bool {
        self.json
    }

    /// True if nothing is to be granted.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Returns the specification of the allocation.
    ///
    /// # Errors
    /// Returns [`Usage`] for several wants of memory, or options of memory without any.
    pub fn spec(&self) -> anyhow::Result<AllocationSpec> {
        let (devices, memory): (Vec<Want>, Vec<Want>) =
            self.wants.iter().cloned().partition(|want| want.kind.is_device());
        let memory = match &memory[..] {
            [] => None,
            [want] => Some(MemorySpec {
                remote_bytes: Some(want.bytes.0),
                copies: Some(want.count),
                bandwidth_bps: self.bandwidth.map_or(0, NonZeroU64::get),
                ..MemorySpec::default()
            }),
            _ => return Err(Usage("memory is wanted twice: add the sizes up".into()).into()),
        };
        for (is_given, option) in
            [(self.placement.is_some(), "--placement"), (self.bandwidth.is_some(), "--bandwidth")]
        {
            if is_given && memory.is_none() {
                return Err(Usage(format!("{option} is for memory: add memory=SIZE")).into());
            }
        }
        Ok(AllocationSpec {
            memory,
            devices,
            donors: self.donor.clone(),
            home: String::new(),
            placement: self.placement,
            waiting: self.waiting.waiting(),
            purpose: self.purpose(),
        })
    }

    fn purpose(&self) -> String {
        let of_command = || self.command.first().map(|name| name.to_string_lossy().into_owned());
        self.purpose.clone().or_else(of_command).unwrap_or_else(|| "venice get".to_owned())
    }
}
