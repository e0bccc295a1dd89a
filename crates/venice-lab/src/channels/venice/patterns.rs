//! Application patterns that use another node's resources (Venice paper, Figure 17), each pattern on
//! each channel, over one emulated link.
//!
//! | pattern | CRMA | RDMA | QPair |
//! |---|---|---|---|
//! | a data base's look-ups: dependent random reads of 64 B | a read of 64 B | a page, as a swap device moves it | ask a thread at the donor |
//! | a graph's look-ups: 32 independent random reads of 64 B under way | a read each | a page each | a question each |
//! | copies of 1 MiB, as to an accelerator, two under way | 64 lines of 64 B under way | a descriptor each | messages of 64 KiB to a thread that stores them |
//! | packets of 256 B, as to a network card, 128 under way | posted writes into a ring, a fence for each 64 | a descriptor each | messages |
//! | a word with a thread: 64 B there, 64 B back | write a mailbox, read it until the answer is in | the same by descriptors | a message each way |
//!
//! RDMA moves whole pages in the look-ups because that is how programs reach it (paper, 5.2.1);
//! lines of 64 B stand for the loads and stores that CRMA answers there.

use std::sync::atomic::Ordering;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use venice_fabric::{EndConfig, LinkModel, QPairConfig};
use venice_ports::monotonic_ns;

use super::frames::pump_until;
use super::kinds::{AppPattern, COPY_MESSAGE_BYTES, ChannelKind};
use super::rings::RingBed;
use super::talk::{Question, Role, Talker};
use super::worker::Worker;
use crate::channels::measure::{Effort, Ends, on_cpu};
use crate::channels::raw::Waiting;

/// Measures operations a second by one channel.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn operations_per_s(
    effort: &Effort,
    ends: Ends,
    model: LinkModel,
    pattern: AppPattern,
    channel: ChannelKind,
) -> Result<f64> {
    on_cpu(ends.near_cpu, || {
        let mut near = Near::lay(ends, model, pattern, Some(channel))?;
        effort.bandwidth(|| near.turn())
    })
}

/// Channel choice of the adaptive library, and its rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adaptive {
    /// Most frequent channel, without trials.
    pub channel: ChannelKind,
    /// Operations a second after each channel was tried, with later trials.
    pub operations_per_s: f64,
    /// Operations until each channel was tried.
    pub learning_operations: u64,
    /// Duration of those, in nanoseconds.
    pub learning_ns: u64,
    /// Reason for its last choice.
    pub why: String,
}

/// Lets the adaptive library choose a channel for each operation.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn adaptive(
    effort: &Effort,
    ends: Ends,
    model: LinkModel,
    pattern: AppPattern,
) -> Result<Adaptive> {
    on_cpu(ends.near_cpu, || {
        let mut near = Near::lay(ends, model, pattern, None)?;
        let begun_ns = monotonic_ns();
        while !near.worker.has_learnt() {
            near.turn()?;
        }
        let (learning_ns, learning_operations) = (monotonic_ns() - begun_ns, near.worker.over);
        let operations_per_s = effort.bandwidth(|| near.turn())?;
        Ok(Adaptive {
            channel: near.worker.favourite(),
            operations_per_s,
            learning_operations,
            learning_ns,
            why: near.worker.why(),
        })
    })
}

/// Creates the QPair of an application, large enough for its copies.
pub(super) fn talker(role: Role) -> Talker {
    Talker::new(role, END, COPY_MESSAGE_BYTES + Question::HEADER_BYTES)
}

/// Settings of that QPair at both ends.
pub(super) const END: EndConfig = EndConfig {
    send_bytes: 1 << 20,
    recv_bytes: 1 << 20,
    recv_messages: 16 << 10,
    credit_every_bytes: 0,
    credit_every_messages: 0,
    batching: true,
};

/// The near end: a bed, and an application on it.
struct Near {
    bed: RingBed,
    worker: Worker,
}

impl Near {
    fn lay(
        ends: Ends,
        model: LinkModel,
        pattern: AppPattern,
        channel: Option<ChannelKind>,
    ) -> Result<Self> {
        let mut bed = RingBed::lay(ends, Some(model), talker(Role::Serve), Waiting::Spin)?;
        let mut worker = Worker::new(pattern, channel, talker(Role::Idle));
        let config = QPairConfig { end: END, ..QPairConfig::messages() };
        bed.connect(&mut worker.app.talker, config)?;
        Ok(Self { bed, worker })
    }

    /// Waits until operations complete; returns how many did.
    fn turn(&mut self) -> Result<u64> {
        let Self { bed, worker } = self;
        let arrived = bed.arrived();
        pump_until(bed.driver(), Waiting::Spin, |driver, now_ns| {
            let arrived_bytes = arrived.load(Ordering::Relaxed);
            let over = worker.act(now_ns, driver.initiator(), arrived_bytes)?;
            Ok((over > 0).then_some(over))
        })
    }
}
