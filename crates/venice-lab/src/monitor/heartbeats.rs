//! The heartbeat clock: each agent reports once a second, at its own phase, since agents of a rack
//! start at different times.
//!
//! One thread keeps the time for all agents. The agents' own runtime would wake those of the same
//! millisecond together, ten of ten thousand, and other tasks would wait behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::Notify;

/// Time between two heartbeats of an agent.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// The clock of one agent.
#[derive(Debug, Default)]
pub(super) struct HeartbeatClock {
    due: AtomicU64,
    is_over: AtomicBool,
    woken: Notify,
}

impl HeartbeatClock {
    /// Waits for the next heartbeat; returns how many were missed since the last. `None`: it was
    /// the last.
    pub(super) async fn next(&self) -> Option<u64> {
        self.woken.notified().await;
        let due = self.due.swap(0, Ordering::Relaxed);
        (!self.is_over.load(Ordering::Relaxed)).then(|| due.saturating_sub(1))
    }
}

/// The clocks of all agents.
pub(super) struct HeartbeatClocks {
    pub(super) of_agents: Vec<Arc<HeartbeatClock>>,
    keeper: JoinHandle<()>,
}

impl HeartbeatClocks {
    /// Starts the clock's thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(agents: usize, until: Instant) -> Result<Self> {
        let of_agents: Vec<Arc<HeartbeatClock>> = (0..agents).map(|_| Arc::default()).collect();
        let clocks = of_agents.clone();
        let keeper = std::thread::Builder::new()
            .name("heartbeats".to_owned())
            .spawn(move || keep(&clocks, until))
            .context("cannot start the thread of the agents' heartbeats")?;
        Ok(Self { of_agents, keeper })
    }

    /// Waits for the last heartbeat.
    pub(super) fn end(self) {
        self.keeper.join().expect("the thread panicked");
    }
}

fn keep(clocks: &[Arc<HeartbeatClock>], until: Instant) {
    let apart = PERIOD.div_f64(clocks.len() as f64);
    let mut at = Instant::now();
    for clock in clocks.iter().cycle() {
        if at >= until {
            break;
        }
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        clock.due.fetch_add(1, Ordering::Relaxed);
        clock.woken.notify_one();
        at += apart;
    }
    for clock in clocks {
        clock.is_over.store(true, Ordering::Relaxed);
        clock.woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heartbeats_stop_at_the_end() {
        let clocks = HeartbeatClocks::start(4, Instant::now() + PERIOD).unwrap();
        let mut counts = Vec::new();
        for clock in &clocks.of_agents {
            let mut count = 0;
            while let Some(missed) = clock.next().await {
                count += 1 + missed;
            }
            counts.push(count);
        }
        assert!(counts.iter().all(|count| *count <= 1), "{counts:?}");
        assert_eq!(counts[0], 1);
        clocks.end();
    }
}
