//! Modes of starting a program whose memory is measured.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use venice_swap::cgroup::MemoryCgroup;

use crate::rack::Rack;

/// Replicas that Venice keeps of far memory: its peers keep one too.
pub const COPIES: u32 = 1;
/// The same as arguments of `venice run`.
pub const ONE_COPY: [&str; 2] = ["--copies", "1"];

/// Source of a program's memory.
#[derive(Debug, Clone, Copy)]
pub enum Launch<'a> {
    /// Local memory, without a limit.
    Local,
    /// Local memory up to the limit of a cgroup, and kernel swap beyond it.
    InCgroup(&'a MemoryCgroup),
    /// Under `venice run` on a rack.
    OnRack {
        /// The rack that lends.
        rack: &'a Rack,
        /// `--local`, in bytes.
        local_bytes: u64,
        /// `--remote`, in bytes.
        remote_bytes: u64,
        /// Redundancy: `--copies` or `--coding` with its value.
        kept: [&'a str; 2],
        /// Further arguments of `venice run`.
        extra: &'a [&'a str],
    },
}

impl Launch<'_> {
    /// Builds a command that starts `program` this way, without its arguments.
    pub fn command(&self, program: &Path) -> Command {
        match self {
            Launch::Local => Command::new(program),
            Launch::InCgroup(group) => group.command(program),
            Launch::OnRack { rack, local_bytes, remote_bytes, kept, extra } => {
                let mut command = rack.venice();
                command
                    .args(["run", "--local", &local_bytes.to_string()])
                    .args(["--remote", &remote_bytes.to_string()])
                    .args(["--port", rack.port().name()])
                    .args(kept)
                    .args(*extra)
                    .arg(OsStr::new("--"))
                    .arg(program);
                command
            }
        }
    }
}
