//! A run that has devices and no borrowed memory.

use venice_measure::resident::resident_anonymous_bytes;
use venice_recipient::runs::{CoreView, Look, Sample, Watched};

/// A `venice run` of devices.
pub struct DevicesOnly {
    /// The program's process.
    pub program: u32,
}

impl Watched for DevicesOnly {
    fn mode(&self) -> &'static str {
        "devices"
    }

    fn look(&self) -> Look {
        Look {
            resident_bytes: resident_anonymous_bytes(self.program).unwrap_or(0),
            processes: vec![self.program],
            ..Look::default()
        }
    }

    fn sample(&self) -> Sample {
        Sample::default()
    }

    fn limit(&self, _local_bytes: u64) -> Result<(), String> {
        Err("it borrows no memory, and has no budget: start it with --local and --remote".into())
    }

    fn core(&self, pid: u32) -> Result<CoreView, String> {
        Err(format!("it has no far memory: `gcore {pid}` writes its core dump"))
    }
}
