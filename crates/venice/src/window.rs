//! `venice window`: memory of devices (CXL, NVDIMM) as system memory of this machine.

use clap::{Args, Subcommand};
use serde::Serialize;
use venice_memory::hotplug::{DaxBus, DaxDevice, HotplugError};

use venice_cli::failure::Usage;
use venice_cli::terminal::{self, Align};

/// `venice window`
#[derive(Subcommand, Debug)]
pub enum Window {
    /// List the DAX devices of this machine
    #[command(after_help = HELP_LIST)]
    List(ListArgs),
    /// Turn a DAX device into system memory (dax/kmem); root only
    #[command(after_help = HELP_ATTACH)]
    Attach(DeviceArgs),
    /// Turn system memory back into a DAX device; root only
    #[command(after_help = HELP_DETACH)]
    Detach(DeviceArgs),
}

/// `venice window list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print a list of objects; bytes are numbers
    #[arg(long)]
    json: bool,
}

/// `venice window attach | detach`
#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// The device, for example dax0.0
    device: String,
    /// Print the device as an object
    #[arg(long)]
    json: bool,
}

const HELP_LIST: &str = "\
EXAMPLES:
  venice window list
  venice window list --json | jq '.[] | select(.is_memory) | .numa_node'

STATE: memory (used by the kernel; BLOCKS ONLINE shows how many), device (programs can map /dev/daxX.Y,
and `venice agent --lend-dax` lends it), idle (no driver). PAGES: `venice run --mode window` needs 4KiB.";

const HELP_ATTACH: &str = "\
EXAMPLES:
  venice window attach dax0.0
  numactl --membind=1 redis-server            a program on that memory, if it is NUMA node 1

Its blocks come online as movable memory, on the NUMA node that the firmware gave the device, so that
they can go offline again. Accesses are plain loads and stores. The device's contents are lost.";

const HELP_DETACH: &str = "\
EXAMPLES:
  venice window detach dax0.0

Its contents first move to the rest of the machine's memory. If some cannot move, nothing changes and
the exit code is 1.";

/// A row of `venice window list`.
#[derive(Debug, Serialize)]
struct Row {
    device: String,
    state: &'static str,
    bytes: u64,
    /// Alignment of its mappings, in bytes.
    align_bytes: Option<u64>,
    numa_node: Option<u32>,
    /// Physical address; root only.
    start: Option<u64>,
    is_memory: bool,
    blocks: usize,
    online_blocks: usize,
}

impl From<DaxDevice> for Row {
    fn from(device: DaxDevice) -> Self {
        let state = match &device.driver {
            Some(_) if device.is_memory() => "memory",
            Some(_) => "device",
            None => "idle",
        };
        Row {
            state,
            bytes: device.bytes,
            align_bytes: device.align_bytes,
            numa_node: device.numa_node,
            start: device.start.filter(|start| *start > 0),
            is_memory: device.is_memory(),
            blocks: device.blocks.len(),
            online_blocks: device.online_blocks(),
            device: device.name,
        }
    }
}

/// Runs the command.
pub fn execute(what: &Window) -> anyhow::Result<i32> {
    let bus = DaxBus::default();
    match what {
        Window::List(args) => {
            let rows: Vec<Row> = bus.list().into_iter().map(Row::from).collect();
            match args.json {
                true => terminal::say_json(&rows)?,
                false => terminal::say(table(&rows))?,
            }
        }
        Window::Attach(args) => {
            let bar = terminal::progress(0, "bringing memory blocks online");
            let attached = bus.attach(&args.device, |done, of| {
                bar.set_length(of as u64);
                bar.set_position(done as u64);
            });
            bar.finish_and_clear();
            tell(args, attached, |row| {
                let node = row.numa_node.map_or_else(String::new, |n| format!(" on NUMA node {n}"));
                let (bytes, blocks) = (terminal::bytes(row.bytes), row.online_blocks);
                format!("{} is system memory: {blocks} blocks of {bytes}{node}", row.device)
            })?;
        }
        Window::Detach(args) => {
            let bar = terminal::progress(0, "taking memory blocks offline");
            let detached = bus.detach(&args.device, |done, of| {
                bar.set_length(of as u64);
                bar.set_position(done as u64);
            });
            bar.finish_and_clear();
            tell(args, detached, |row| format!("{} is a device again", row.device))?;
        }
    }
    Ok(0)
}

fn tell(
    args: &DeviceArgs,
    outcome: Result<DaxDevice, HotplugError>,
    said: impl FnOnce(&Row) -> String,
) -> anyhow::Result<()> {
    let row = match outcome {
        Ok(device) => Row::from(device),
        Err(error @ (HotplugError::NoDevice { .. } | HotplugError::WrongState { .. })) => {
            return Err(Usage(error.to_string()).into());
        }
        Err(error) => return Err(error.into()),
    };
    match args.json {
        true => terminal::say_json(&row)?,
        false => terminal::say(said(&row))?,
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let columns = [
        ("device", Align::Left),
        ("state", Align::Left),
        ("bytes", Align::Right),
        ("pages", Align::Right),
        ("numa node", Align::Right),
        ("blocks online", Align::Right),
        ("start", Align::Right),
    ];
    let dash = || "-".to_string();
    let line = |row: &Row| {
        vec![
            row.device.clone(),
            row.state.to_string(),
            terminal::bytes(row.bytes),
            row.align_bytes.map_or_else(dash, terminal::bytes),
            row.numa_node.map_or_else(dash, |node| node.to_string()),
            if row.is_memory { format!("{}/{}", row.online_blocks, row.blocks) } else { dash() },
            row.start.map_or_else(dash, |start| format!("{start:#x}")),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}
