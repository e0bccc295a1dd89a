//! Grants that are held for their own sake: devices, and memory that a program reaches by itself.
//!
//! One thread renews the leases at the donors; a dead Monitor Node stops nothing. What is lost, and
//! what a donor wants back, is told once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use venice_control::client::{Access, AgentClient, MonitorClient};
use venice_control::{
    ControlError, DeviceRequest, Grant, LeaseState, Notice, NoticeReason, ResourceKind,
};
use venice_memory::paged::run_block::{Fate, PortKind};
use venice_wire::ByteSize;

use crate::error::RecipientError;
use crate::leases::{renew, thread};
use crate::loan::{Wish, borrow, drawn, release, runtime, who_borrows};

/// How long giving back may take, all in all.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// What device is wanted.
#[derive(Clone, Debug)]
pub struct DeviceWish {
    /// An accelerator, a network card, or storage.
    pub kind: ResourceKind,
    /// How much storage, rounded up to whole MiB; how large an accelerator is to be at least.
    pub bytes: u64,
    /// What it has to be able to do, all of it.
    pub capabilities: Vec<String>,
    /// The donors to ask; empty: any.
    pub donors: Vec<String>,
    /// What for, for the tables.
    pub purpose: String,
}

/// What there is to tell of a grant that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldNews {
    /// Its donor.
    pub donor: String,
    /// What was granted, as people call it: a device's address, or `memory`.
    pub what: String,
    /// What became of it.
    pub event: HeldEvent,
}

/// What became of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldEvent {
    /// It is over: somebody else may have it.
    Lost(Fate),
    /// Its donor wants it back.
    Wanted(Notice),
}

impl fmt::Display for HeldNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { donor, what, event } = self;
        let why = match event {
            HeldEvent::Lost(Fate::Died) => "its agent is gone: the grant is over",
            HeldEvent::Lost(Fate::TookBack) => "it was taken back: the grant is over",
            HeldEvent::Lost(Fate::Silent) => "it has not answered for a lease: the grant is over",
            HeldEvent::Wanted(notice) => match notice.reason {
                NoticeReason::Drain => "the node is being drained and wants it back",
                NoticeReason::Pressure => "the node's own programs need it: it wants it back",
                NoticeReason::Preempted => "a request of higher priority needs it",
                NoticeReason::Fault => "the device is there no longer, or does not work",
            },
        };
        write!(f, "{what} of {donor}: {why}")
    }
}

/// Grants that are held until this is dropped, which gives them back.
#[derive(Debug)]
pub struct Held {
    grants: Vec<Grant>,
    /// Those that are lost, by their places.
    lost: Arc<Mutex<BTreeMap<usize, Fate>>>,
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Held {
    /// Borrows a device. `tell` hears what becomes of it, on a thread of its own.
    ///
    /// # Errors
    /// [`RecipientError`]: nobody answers, or no such device is free.
    pub fn device(
        access: &Access,
        wish: &DeviceWish,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        let request = DeviceRequest {
            client_id: u128::from(drawn()?) << 64 | u128::from(drawn()?),
            recipient: who_borrows(),
            kind: wish.kind,
            bytes: ByteSize(wish.bytes),
            capabilities: wish.capabilities.clone(),
            donors: wish.donors.clone(),
            purpose: wish.purpose.clone(),
        };
        let grant = runtime()?.block_on(async {
            MonitorClient::connect(access).await?.request_device(request).await
        })?;
        Held::keep(access, vec![grant], tell)
    }

    /// Borrows memory and reaches none of it: that is its holder's business.
    ///
    /// # Errors
    /// [`RecipientError`]: nobody answers, or the rack has no room.
    pub fn memory(
        access: &Access,
        wish: &Wish,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        let loan = borrow(access, wish, PortKind::Udp)?;
        Held::keep(access, loan.grants, tell)
    }

    fn keep(
        access: &Access,
        grants: Vec<Grant>,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        let (stop, stopped) = mpsc::channel();
        let lost = Arc::new(Mutex::new(BTreeMap::new()));
        let mut keeper = Keeper {
            access: access.clone(),
            kept: grants.iter().map(Kept::new).collect(),
            lost: Arc::clone(&lost),
            agents: BTreeMap::new(),
            tell: Box::new(tell),
        };
        let runtime = runtime()?;
        let keeper = thread("venice-held", move || keeper.run(&runtime, &stopped))?;
        Ok(Held { grants, lost, stop: Some(stop), keeper: Some(keeper) })
    }

    /// What was granted, lost or not.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Why one of the grants is over; `None`: all are held.
    pub fn lost(&self) -> Option<Fate> {
        lock(&self.lost).values().next().copied()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

struct Keeper {
    access: Access,
    kept: Vec<Kept>,
    lost: Arc<Mutex<BTreeMap<usize, Fate>>>,
    /// Connections to the donors, by address.
    agents: BTreeMap<String, AgentClient>,
    tell: Box<dyn FnMut(HeldNews) + Send>,
}

struct Kept {
    grant: Grant,
    heard: Instant,
    /// What was told of it last.
    told: Option<NoticeReason>,
    is_lost: bool,
}

impl Kept {
    fn new(grant: &Grant) -> Self {
        Self { grant: grant.clone(), heard: Instant::now(), told: None, is_lost: false }
    }

    fn lease(&self) -> Duration {
        Duration::from_secs_f64(self.grant.lease_s.clamp(0.1, 86_400.0))
    }
}

impl Keeper {
    fn run(&mut self, runtime: &Runtime, stopped: &Receiver<()>) {
        let shortest = self.kept.iter().map(Kept::lease).min().unwrap_or(Duration::from_secs(1));
        let pause = (shortest / 4).min(Duration::from_secs(1));
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            for index in 0..self.kept.len() {
                if !self.kept[index].is_lost {
                    runtime.block_on(self.renew(index));
                }
            }
        }
        let living = self.kept.iter().filter(|kept| !kept.is_lost);
        let grants: Vec<Grant> = living.map(|kept| kept.grant.clone()).collect();
        if !grants.is_empty() {
            // What does not get through ends with its lease.
            let _ = runtime.block_on(async {
                tokio::time::timeout(GIVE_BACK_WITHIN, release(&self.access, &grants)).await
            });
        }
    }

    async fn renew(&mut self, index: usize) {
        let kept = &mut self.kept[index];
        let addr = kept.grant.control_addr.clone();
        let known = self.agents.remove(&addr);
        let fate = match renew(&self.access, &kept.grant, known).await {
            Ok((state, agent)) => {
                self.agents.insert(addr, agent);
                kept.heard = Instant::now();
                match state {
                    LeaseState::Live { notice, .. } => return self.hear(index, notice),
                    LeaseState::Unknown => Fate::TookBack,
                }
            }
            Err(ControlError::Unreachable { refused: true, .. }) => Fate::Died,
            Err(_) if kept.heard.elapsed() > kept.lease() => Fate::Silent,
            Err(_) => return,
        };
        kept.is_lost = true;
        lock(&self.lost).insert(index, fate);
        self.say(index, HeldEvent::Lost(fate));
    }

    fn hear(&mut self, index: usize, notice: Option<Notice>) {
        let reason = notice.map(|notice| notice.reason);
        let before = std::mem::replace(&mut self.kept[index].told, reason);
        if let Some(notice) = notice.filter(|notice| before != Some(notice.reason)) {
            self.say(index, HeldEvent::Wanted(notice));
        }
    }

    fn say(&mut self, index: usize, event: HeldEvent) {
        let Grant { donor, device, .. } = &self.kept[index].grant;
        let what = device.as_ref().map_or("memory", |device| &device.address).to_owned();
        (self.tell)(HeldNews { donor: donor.clone(), what, event });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
