//! A run whose memory the kernel swaps: its memory cgroup and its swap device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use venice_recipient::runs::{CoreView, Look, Sample, Watched};
use venice_swap::cgroup::MemoryCgroup;
use venice_wire::ByteSize;

use crate::rack::RunDir;
use crate::swap::{self, Status};

/// A `--mode swap` run.
pub struct Swapped {
    group: Arc<MemoryCgroup>,
    dir: RunDir,
    /// Status of the device at the start of the run.
    device: Status,
    local_bytes: AtomicU64,
}

impl Swapped {
    /// Creates the run in `group`, which swaps to `device`.
    pub fn new(group: Arc<MemoryCgroup>, dir: RunDir, device: Status, local_bytes: u64) -> Swapped {
        Swapped { group, dir, device, local_bytes: AtomicU64::new(local_bytes) }
    }

    fn device(&self) -> Status {
        swap::status(&self.dir, &self.device.name).unwrap_or_else(|| self.device.clone())
    }
}

impl Watched for Swapped {
    fn mode(&self) -> &'static str {
        "swap"
    }

    fn look(&self) -> Look {
        let device = self.device();
        Look {
            port: device.port.to_string(),
            local_bytes: self.local_bytes.load(Ordering::Relaxed),
            resident_bytes: self.group.anonymous_bytes(),
            remote_bytes: device.used_bytes,
            borrowed_bytes: device.size_bytes,
            donors: device.donors,
            replicas: device.copies.replicas(),
            short_slabs: device.copies.short_slabs,
            lost_slabs: device.copies.lost_slabs,
            missing: device.copies.missing(),
            lost_donors: device.copies.lost_donors,
            request_us: Some((device.request_p50_us, device.request_p99_us)),
            processes: self.group.member_ids(),
            mode_reason: "--mode swap is given".to_owned(),
            ..Look::default()
        }
    }

    fn sample(&self) -> Sample {
        Sample { faults: self.group.major_faults(), times: None }
    }

    /// The kernel brings swapped pages in when they are read.
    fn core(&self, _pid: u32) -> Result<CoreView, String> {
        Ok(CoreView::default())
    }

    /// Checks far memory first: the kernel kills a program whose pages have nowhere to go.
    fn limit(&self, local_bytes: u64) -> Result<(), String> {
        let device = self.device();
        let excess = self.group.anonymous_bytes().saturating_sub(local_bytes);
        let free = device.size_bytes.saturating_sub(device.used_bytes);
        if excess > free {
            return Err(format!(
                "{} would have to be evicted, and of its swap device {} is free: use a larger --local, \
                 or run it with a larger --remote",
                ByteSize(excess),
                ByteSize(free)
            ));
        }
        let changed = self.group.change_limit(local_bytes, Some(self.device.size_bytes));
        changed.map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
        self.local_bytes.store(local_bytes, Ordering::Relaxed);
        Ok(())
    }
}
