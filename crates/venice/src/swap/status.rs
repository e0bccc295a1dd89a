//! The row of a swap device.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use venice_recipient::Copies;

use crate::rack::PortKind;

/// State of a serving device.
pub const UP: &str = "up";
/// State of a device whose server has ended.
pub const DEAD: &str = "dead";
/// State of a device whose server runs but does not answer.
pub const SILENT: &str = "silent";

/// A row of `venice swap list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the device.
    pub name: String,
    /// `up`, `detaching`, `silent` or `dead`.
    pub state: String,
    /// The block device.
    pub device: PathBuf,
    /// `ublk`, `nbd`, `fuse-ring` or `fuse`.
    pub kind: String,
    /// Process id of its server.
    pub pid: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes in use by the kernel.
    pub used_bytes: u64,
    /// Bytes stored at donors.
    pub far_bytes: u64,
    /// Port to the donors.
    pub port: PortKind,
    /// Donors in use.
    pub donors: Vec<String>,
    /// State of the copies: how many there should be, what is missing, which donors were lost.
    #[serde(flatten)]
    pub copies: Copies,
    /// True if there was no room for two copies, and one was not requested explicitly.
    pub is_short: bool,
    /// The nodes that could not be asked for a second copy, each with the reason.
    #[serde(default)]
    pub unusable_donors: Vec<String>,
    /// Requests served at a time.
    pub queues: u16,
    /// Priority of the swap area.
    pub priority: u16,
    /// Bytes read from the device in all.
    pub read_bytes: u64,
    /// Bytes written to the device in all.
    pub written_bytes: u64,
    /// Bytes read in the last second.
    pub read_bytes_per_s: u64,
    /// Bytes written in the last second.
    pub written_bytes_per_s: u64,
    /// Median time of a request in its queue, in microseconds.
    pub request_p50_us: Option<f64>,
    /// The 99th percentile.
    pub request_p99_us: Option<f64>,
    /// Zero pages, which were not sent to donors.
    pub zero_pages: u64,
    /// Pages discarded by the kernel.
    pub discarded_pages: u64,
    /// Protections against self-deadlock that the server lacks here.
    pub gaps: Vec<String>,
    /// Requests that failed because their pages are lost.
    pub failed_requests: u64,
}
