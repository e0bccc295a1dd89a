//! The nodes' side of a Monitor Node: thousands that report once a second, served by threads of their own.
//!
//! A program that asks for memory would wait behind those of them that report at the same moment. So their
//! connections, TLS and messages are the work of another runtime, and their reports go to the driver
//! together where there are many: it is woken once for all of them.

use crate::inputs::{Input, Report};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use venice_ports::set_time_slice;

/// Reports that wait to be taken to the driver; more have to wait for room.
const QUEUE: usize = 1024;
/// Reports taken to it at one go. It does nothing else meanwhile: some microseconds for each.
const REPORTS_AT_ONCE: usize = 32;
/// Between two of those.
const APART: Duration = Duration::from_millis(1);
/// What the kernel gives a thread that does not ask.
const TURN: Duration = Duration::from_millis(3);

/// The runtime that serves nodes. Its threads end with it.
pub(crate) struct Crowd(Option<Runtime>);

impl Crowd {
    /// # Errors
    /// When threads cannot be started.
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name("venice-nodes")
            .on_thread_start(give_way)
            .build()?;
        Ok(Self(Some(runtime)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is taken when it is dropped").handle()
    }

    /// Where reports go in that are to get to the driver at `inputs`. Ends when nobody has that any more.
    pub(crate) fn reports(&self, inputs: mpsc::Sender<Input>) -> mpsc::Sender<Report> {
        let (sender, received) = mpsc::channel(QUEUE);
        self.handle().spawn(take_to(inputs, received));
        sender
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // It may be dropped within a runtime, where nobody may wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Its threads take turns as long as everybody's: the others of the daemon may ask for shorter ones, so that
/// who has just been asked for memory need not wait for the end of one.
fn give_way() {
    if let Err(error) = set_time_slice(TURN) {
        tracing::debug!(%error, "threads take turns as the kernel has it");
    }
}

/// One that comes alone is taken at once; where they come in crowds, those of a millisecond go together.
async fn take_to(inputs: mpsc::Sender<Input>, mut received: mpsc::Receiver<Report>) {
    let mut next = Instant::now();
    loop {
        let mut reports = Vec::with_capacity(REPORTS_AT_ONCE);
        if received.recv_many(&mut reports, REPORTS_AT_ONCE).await == 0 {
            return;
        }
        if Instant::now() < next && reports.len() < REPORTS_AT_ONCE {
            sleep_until(next).await;
            while reports.len() < REPORTS_AT_ONCE
                && let Ok(report) = received.try_recv()
            {
                reports.push(report);
            }
        }
        next = Instant::now() + APART;
        if inputs.send(Input::Reports(reports)).await.is_err() {
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
    async fn all_get_there_in_order_and_crowds_together() {
        const REPORTS: u32 = 1000;
        let crowd = Crowd::start().unwrap();
        let (inputs, mut received) = mpsc::channel(1);
        let reports = crowd.reports(inputs);
        let sending = tokio::spawn(async move {
            for number in 0..REPORTS {
                reports.send(report(number)).await.unwrap();
            }
        });
        let (mut numbers, mut goes) = (Vec::new(), 0);
        while let Some(input) = received.recv().await {
            let Input::Reports(reports) = input else { panic!("it makes up nothing") };
            assert!(reports.len() <= REPORTS_AT_ONCE);
            numbers.extend(reports.iter().map(|report| report.report.identity.node.0));
            goes += 1;
        }
        sending.await.unwrap();
        assert!(numbers.into_iter().eq(0..REPORTS));
        assert!(goes < REPORTS, "each by itself");
    }
}
