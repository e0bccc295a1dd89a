//! A run whose memory the kernel swaps: its memory cgroup and its swap device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use venice_recipient::runs::{CoreView, Look, Sample, Watched};

use crate::swap::RunSession;

/// A `--mode swap` run.
pub struct Swapped {
    session: Arc<RunSession>,
    local_bytes: AtomicU64,
    mode_reason: String,
}

impl Swapped {
    /// Creates the run of a session, with this limit at its start.
    pub fn new(session: Arc<RunSession>, local_bytes: u64, mode_reason: String) -> Swapped {
        Swapped { session, local_bytes: AtomicU64::new(local_bytes), mode_reason }
    }
}

impl Watched for Swapped {
    fn mode(&self) -> &'static str {
        "swap"
    }

    fn look(&self) -> Look {
        let device = self.session.device();
        let group = self.session.group().unwrap_or_default();
        Look {
            port: device.port.to_string(),
            local_bytes: self.local_bytes.load(Ordering::Relaxed),
            resident_bytes: group.anonymous_bytes,
            remote_bytes: device.used_bytes,
            borrowed_bytes: device.size_bytes,
            donors: device.donors,
            replicas: device.copies.replicas(),
            short_slabs: device.copies.short_slabs,
            lost_slabs: device.copies.lost_slabs,
            missing: device.copies.missing(),
            lost_donors: device.copies.lost_donors,
            request_us: Some((device.request_p50_us, device.request_p99_us)),
            processes: group.members,
            mode_reason: self.mode_reason.clone(),
            ..Look::default()
        }
    }

    fn sample(&self) -> Sample {
        let faults = self.session.group().unwrap_or_default().major_faults;
        Sample { faults, times: None }
    }

    /// The kernel brings swapped pages in when they are read.
    fn core(&self, _pid: u32) -> Result<CoreView, String> {
        Ok(CoreView::default())
    }

    fn limit(&self, local_bytes: u64) -> Result<(), String> {
        self.session.limit(local_bytes)?;
        self.local_bytes.store(local_bytes, Ordering::Relaxed);
        Ok(())
    }
}
