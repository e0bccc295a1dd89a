//! The heartbeat server: a runtime of its own for thousands of agents that report once a second.
//!
//! Requests for memory would otherwise wait behind the heartbeats of the same moment. The runtime
//! handles the agents' connections, TLS and messages. Under load it forwards reports in batches, so
//! that the driver wakes once per batch.

use crate::clock::TICK;
use crate::inputs::{Heard, Report};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use venice_ports::set_time_slice;

/// Capacity of the queue of reports; senders wait beyond it.
const REPORT_QUEUE: usize = 1024;
/// Most reports forwarded at once. The driver handles nothing else meanwhile: some microseconds per
/// report.
const MAX_BATCH: usize = 32;
/// Capacity of the driver's queue of batches.
const BATCH_QUEUE: usize = 32;
/// Least time between two batches.
const BATCH_INTERVAL: Duration = Duration::from_millis(1);
/// The kernel's default time slice of a thread.
const DEFAULT_SLICE: Duration = Duration::from_millis(3);

/// The runtime that serves the agents. Its threads end with it.
pub(crate) struct HeartbeatServer(Option<Runtime>);

impl HeartbeatServer {
    /// Starts the runtime.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name("venice-nodes")
            .on_thread_start(reset_time_slice)
            .build()?;
        Ok(Self(Some(runtime)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("the runtime is taken only on drop").handle()
    }

    /// Returns a channel for reports, and the driver's end, which also gets a tick every [`TICK`].
    /// The forwarder between them ends when all senders are dropped.
    pub(crate) fn reports(&self) -> (mpsc::Sender<Report>, mpsc::Receiver<Heard>) {
        let (sender, received) = mpsc::channel(REPORT_QUEUE);
        let (to_driver, heard) = mpsc::channel(BATCH_QUEUE);
        self.handle().spawn(forward(to_driver, received));
        (sender, heard)
    }
}

impl Drop for HeartbeatServer {
    fn drop(&mut self) {
        // A drop within an async runtime must not block.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sets the default time slice for this thread. The daemon's other threads may use shorter ones, so
/// that a request for memory need not wait for the end of a slice.
fn reset_time_slice() {
    if let Err(error) = set_time_slice(DEFAULT_SLICE) {
        tracing::debug!(%error, "cannot set the time slice; the kernel's default stays");
    }
}

/// Forwards a single report at once, and under load all reports of a millisecond together.
async fn forward(driver: mpsc::Sender<Heard>, mut received: mpsc::Receiver<Report>) {
    let mut next = Instant::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut reports = Vec::with_capacity(MAX_BATCH);
        let count = tokio::select! {
            count = received.recv_many(&mut reports, MAX_BATCH) => Some(count),
            _ = ticks.tick() => None,
        };
        match count {
            Some(0) => return,
            Some(_) => {}
            None if driver.send(Heard::Tick).await.is_err() => return,
            None => continue,
        }
        if Instant::now() < next && reports.len() < MAX_BATCH {
            sleep_until(next).await;
            while reports.len() < MAX_BATCH
                && let Ok(report) = received.try_recv()
            {
                reports.push(report);
            }
        }
        next = Instant::now() + BATCH_INTERVAL;
        if driver.send(Heard::Reports(reports)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use venice_control::{DonorReport, DoorReport, HeartbeatReport, Identity, PortReport};
    use venice_wire::NodeId;

    fn report(number: u32) -> Report {
        let report = HeartbeatReport {
            usage: Vec::new(),
            peers_version: 0,
            identity: Identity { node: NodeId(number), epoch: 0 },
            instance: 0,
            memory: DonorReport::default(),
            links: Vec::new(),
            port: PortReport::default(),
            pressure: Default::default(),
            door: DoorReport::default(),
        };
        Report { name: format!("node{number}"), report, reply: oneshot::channel().0 }
    }

    #[tokio::test]
    async fn reports_are_forwarded_in_order_and_batched() {
        const REPORTS: u32 = 1000;
        let heartbeat_server = HeartbeatServer::start().unwrap();
        let (reports, mut heard) = heartbeat_server.reports();
        let sending = tokio::spawn(async move {
            for number in 0..REPORTS {
                reports.send(report(number)).await.unwrap();
            }
        });
        let (mut numbers, mut batches) = (Vec::new(), 0);
        while let Some(heard) = heard.recv().await {
            let Heard::Reports(reports) = heard else { continue };
            assert!(reports.len() <= MAX_BATCH);
            numbers.extend(reports.iter().map(|report| report.report.identity.node.0));
            batches += 1;
        }
        sending.await.unwrap();
        assert!(numbers.into_iter().eq(0..REPORTS));
        assert!(batches < REPORTS, "no batch was formed");
    }
}
