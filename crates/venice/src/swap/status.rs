//! How a device does.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use venice_recipient::Copies;

use crate::rack::PortKind;

/// The state of a device that serves.
pub const UP: &str = "up";
/// The state of one whose server has ended.
pub const DEAD: &str = "dead";
/// The state of one whose server is there and does not answer.
pub const SILENT: &str = "silent";

/// One row of `venice swap list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// `up`, `detaching`, `silent` or `dead`.
    pub state: String,
    /// The block device.
    pub device: PathBuf,
    /// `ublk`, `nbd`, `fuse-ring` or `fuse`.
    pub kind: String,
    /// The process that serves it.
    pub pid: u32,
    /// Its length.
    pub size_bytes: u64,
    /// What the kernel has put there.
    pub used_bytes: u64,
    /// What of the device the donors hold.
    pub far_bytes: u64,
    /// How the donors are reached.
    pub port: PortKind,
    /// Who lends.
    pub donors: Vec<String>,
    /// Of what is on it: how many there are to be, what is missing, which donors were lost.
    #[serde(flatten)]
    pub copies: Copies,
    /// There was no room for two copies, and nobody had asked for one.
    pub is_short: bool,
    /// Requests carried at a time.
    pub queues: u16,
    /// Of the swap area.
    pub priority: u16,
    /// Read from the device, all in all.
    pub read_bytes: u64,
    /// Written to it.
    pub written_bytes: u64,
    /// Read in the last second.
    pub read_bytes_per_s: u64,
    /// Written in the last second.
    pub written_bytes_per_s: u64,
    /// Median time of a request in its queue, in microseconds.
    pub request_p50_us: Option<f64>,
    /// The 99th percentile.
    pub request_p99_us: Option<f64>,
    /// Pages of zeros that did not travel.
    pub zero_pages: u64,
    /// Pages the kernel said it needs no more.
    pub discarded_pages: u64,
    /// What of the server's protection from waiting for itself was refused here.
    pub gaps: Vec<String>,
    /// Requests that failed: what they wanted is lost.
    pub failed_requests: u64,
}
