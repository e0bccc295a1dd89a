//! Swap to a rack's memory, set up by `venice swap attach`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::SwapDevice;
use crate::rack::{Port, Rack};

/// Swap priority above the machine's own areas, the same as for the other devices.
const PRIORITY: &str = "32000";
/// Time limit for attaching: donors zero what they lend.
const ATTACH_WITHIN: Duration = Duration::from_secs(120);

/// A rack and a swap device on its memory. Dropping it takes both down: `venice down` detaches the
/// device first.
#[derive(Debug)]
pub struct VeniceSwap {
    rack: Rack,
    device: Device,
}

/// Fields used of `venice swap list --json`.
#[derive(Clone, Debug, Deserialize)]
struct Device {
    pid: u32,
    device: PathBuf,
    kind: String,
    queues: u16,
}

impl VeniceSwap {
    /// Attaches a device with `queues` queues, or with the default of `venice swap attach`.
    ///
    /// # Errors
    /// Without root, or when `venice up` or `venice swap attach` fails; the message quotes it.
    pub fn create(port: Port, len_bytes: u64, queues: Option<u16>) -> Result<Self> {
        venice_swap::require_root()?;
        let rack = Rack::up(port, len_bytes)?;
        let mut command = rack.venice();
        command
            .args([
                "swap",
                "attach",
                &len_bytes.to_string(),
                "--priority",
                PRIORITY,
                "--copies",
                "1",
            ])
            .args(["--port", port.name()]);
        if let Some(queues) = queues {
            command.args(["--queues", &queues.to_string()]);
        }
        rack.finish("venice swap attach", command, ATTACH_WITHIN)?;
        let device = listed(rack.venice())?;
        Ok(Self { rack, device })
    }

    /// Describes the set-up.
    pub fn describe(&self) -> String {
        let Device { kind, queues, .. } = &self.device;
        format!("venice swap over {}: {kind}, {queues} queues", self.rack.port().name())
    }

    /// Returns the processes that serve its pages.
    pub fn server_pids(&self) -> Vec<u32> {
        let mut pids = self.rack.agent_pids();
        pids.push(self.device.pid);
        pids
    }
}

impl SwapDevice for VeniceSwap {
    fn path(&self) -> &Path {
        &self.device.device
    }
}

fn listed(mut venice: Command) -> Result<Device> {
    let output = venice
        .args(["swap", "list", "--json"])
        .output()
        .context("cannot run `venice swap list`")?;
    let devices: Vec<Device> = serde_json::from_slice(&output.stdout)
        .context("cannot parse the output of `venice swap list`")?;
    devices.into_iter().next().context("`venice swap list` shows no device")
}
