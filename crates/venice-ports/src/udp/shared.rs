//! State shared by the queues of a server.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::orders::Orders;
use super::owners::Owners;
use super::traffic::TrafficTable;
use super::xdp::XdpCounts;
use crate::PortError;
use crate::seal::SealCounters;

/// State shared by a server's threads, one for each queue, and its owner.
#[derive(Debug)]
pub(super) struct Shared {
    /// Orders by the number of the queue.
    pub(super) orders: Vec<Orders>,
    pub(super) stop: AtomicBool,
    pub(super) counters: SealCounters,
    pub(super) owners: Owners,
    pub(super) traffic: TrafficTable,
    /// Counters of AF_XDP.
    pub(super) xdp: Mutex<XdpCounts>,
}

impl Shared {
    pub(super) fn of(queues: usize) -> Result<Self, PortError> {
        Ok(Self {
            orders: (0..queues).map(|_| Orders::new()).collect::<Result<_, _>>()?,
            stop: AtomicBool::new(false),
            counters: SealCounters::default(),
            owners: Owners::default(),
            traffic: TrafficTable::default(),
            xdp: Mutex::default(),
        })
    }
}
