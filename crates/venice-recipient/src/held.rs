//! Grants that are held for their own sake: devices, and memory that a program reaches by itself.
//!
//! One thread renews the leases at the donors; a dead Monitor Node stops nothing. What is lost, and
//! what a donor wants back, is told once. A lease is counted from when its renewal was sent, and is
//! over here before it is over there: its device may be another's from then on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::{JoinError, JoinSet};
use venice_control::client::{Access, AgentClient, MonitorClient};
use venice_control::{
    ControlError, DeviceRequest, Grant, LeaseState, Notice, NoticeReason, ResourceKind,
};
use venice_memory::paged::run_block::{Fate, PortKind};
use venice_wire::ByteSize;

use crate::error::RecipientError;
use crate::leases::{renew, thread};
use crate::loan::{Loan, Wish, borrow, drawn, release, runtime, who_borrows};

/// How often it is looked what there is to tell.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A grant is given up when this part of its lease is left: that is for who uses it to stop.
const MARGIN_PARTS: u32 = 4;
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
            HeldEvent::Lost(Fate::Silent) => "it does not answer: the lease runs out",
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
        let asked = Instant::now();
        let grant = runtime()?.block_on(async {
            MonitorClient::connect(access).await?.request_device(request).await
        })?;
        Held::keep(access, (vec![grant], asked), tell)
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
        Held::loan(borrow(access, wish, PortKind::Udp)?, tell)
    }

    /// The same of what was borrowed, perhaps in line ([`borrow_in_line`](crate::borrow_in_line)).
    ///
    /// # Errors
    /// [`RecipientError`]: the system has no thread for it.
    pub fn loan(
        loan: Loan,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        Held::keep(&loan.access, (loan.grants, loan.asked), tell)
    }

    /// `asked`: before the request was sent; the leases began later.
    fn keep(
        access: &Access,
        (grants, asked): (Vec<Grant>, Instant),
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        let (stop, stopped) = mpsc::channel();
        let lost = Arc::new(Mutex::new(BTreeMap::new()));
        let mut keeper = Keeper {
            access: access.clone(),
            kept: grants.iter().map(|grant| Kept::new(grant, asked)).collect(),
            lost: Arc::clone(&lost),
            agents: BTreeMap::new(),
            renewals: JoinSet::new(),
            tell: Box::new(tell),
        };
        let runtime = runtime()?;
        runtime.block_on(keeper.confirm());
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
    /// What is under way, at all donors at a time: one that is silent delays no other.
    renewals: JoinSet<Renewal>,
    tell: Box<dyn FnMut(HeldNews) + Send>,
}

/// What came of a renewal.
struct Renewal {
    index: usize,
    sent: Instant,
    outcome: Result<(LeaseState, AgentClient), ControlError>,
}

struct Kept {
    grant: Grant,
    /// When the renewal was sent that its donor answered last. The donor counts the lease from
    /// later on.
    renewed: Instant,
    is_asked: bool,
    /// What was told of it last.
    told: Option<NoticeReason>,
    is_lost: bool,
}

impl Kept {
    fn new(grant: &Grant, asked: Instant) -> Self {
        let grant = grant.clone();
        Self { grant, renewed: asked, is_asked: false, told: None, is_lost: false }
    }

    fn lease(&self) -> Duration {
        Duration::from_secs_f64(self.grant.lease_s.clamp(0.1, 86_400.0))
    }

    /// For how long it is believed in after a renewal: who uses it is to be gone before its donor
    /// lends it to another.
    fn trust(&self) -> Duration {
        self.lease() - self.lease() / MARGIN_PARTS
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.renewed) >= self.trust()
    }
}

impl Keeper {
    fn run(&mut self, runtime: &Runtime, stopped: &Receiver<()>) {
        let pause = (self.shortest() / 4).min(Duration::from_secs(1));
        let mut next = Instant::now();
        while stopped.try_recv() == Err(TryRecvError::Empty) {
            runtime.block_on(async {
                if Instant::now() >= next {
                    next = Instant::now() + pause;
                    self.begin();
                }
                tokio::time::sleep(pause.min(LOOK_EVERY)).await;
                while let Some(renewal) = self.renewals.try_join_next() {
                    self.take(renewal);
                }
            });
            self.judge(Instant::now());
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

    fn shortest(&self) -> Duration {
        self.kept.iter().map(Kept::lease).min().unwrap_or(Duration::from_secs(1))
    }

    /// Renews once what was so long on its way that its lease may be half over.
    async fn confirm(&mut self) {
        let half = self.shortest() / 2;
        if self.kept.iter().all(|kept| kept.renewed.elapsed() < half) {
            return;
        }
        self.begin();
        let answers = async {
            while let Some(renewal) = self.renewals.join_next().await {
                self.take(renewal);
            }
        };
        // Who has not answered by then is given up by the keeper.
        let _ = tokio::time::timeout(half, answers).await;
    }

    /// Asks for all that is not lost and not being asked for.
    fn begin(&mut self) {
        for (index, kept) in self.kept.iter_mut().enumerate() {
            if kept.is_lost || kept.is_asked {
                continue;
            }
            kept.is_asked = true;
            let (access, grant) = (self.access.clone(), kept.grant.clone());
            let known = self.agents.get(&grant.control_addr).cloned();
            self.renewals.spawn(async move {
                let sent = Instant::now();
                let outcome = renew(&access, &grant, known).await;
                Renewal { index, sent, outcome }
            });
        }
    }

    fn take(&mut self, renewal: Result<Renewal, JoinError>) {
        let Renewal { index, sent, outcome } = renewal.expect("a renewal does not panic");
        let kept = &mut self.kept[index];
        kept.is_asked = false;
        let addr = kept.grant.control_addr.clone();
        let state = match outcome {
            Ok((state, agent)) => {
                self.agents.insert(addr, agent);
                state
            }
            Err(error) => {
                self.agents.remove(&addr);
                if matches!(error, ControlError::Unreachable { refused: true, .. }) {
                    self.lose(index, Fate::Died);
                }
                return;
            }
        };
        match state {
            LeaseState::Live { notice, .. } if !kept.is_lost => {
                kept.renewed = kept.renewed.max(sent);
                self.hear(index, notice);
            }
            LeaseState::Live { .. } => {}
            LeaseState::Unknown => self.lose(index, Fate::TookBack),
        }
    }

    /// Gives up what was not renewed in time, whatever its donor says later.
    fn judge(&mut self, now: Instant) {
        for index in 0..self.kept.len() {
            if self.kept[index].is_over(now) {
                self.lose(index, Fate::Silent);
            }
        }
    }

    fn lose(&mut self, index: usize, fate: Fate) {
        if !std::mem::replace(&mut self.kept[index].is_lost, true) {
            lock(&self.lost).insert(index, fate);
            self.say(index, HeldEvent::Lost(fate));
        }
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use venice_wire::{GrantId, GrantKey, NodeId};

    use super::*;

    const LEASE_S: f64 = 4.0;

    fn grant(control_addr: String) -> Grant {
        Grant {
            id: GrantId(1),
            donor: "node1".into(),
            donor_node: NodeId(1),
            donor_epoch: 1,
            bytes: 0,
            device: None,
            key: GrantKey(1),
            control_addr,
            udp_addr: String::new(),
            shm_socket: String::new(),
            seal_key: None,
            lease_s: LEASE_S,
        }
    }

    #[test]
    fn a_lease_is_over_here_before_it_is_over_at_its_donor() {
        let asked = Instant::now();
        let kept = Kept::new(&grant(String::new()), asked);
        assert!(!kept.is_over(asked));
        assert!(kept.is_over(asked + Duration::from_secs_f64(LEASE_S * 0.75)));
        assert!(kept.trust() < kept.lease());
    }

    #[test]
    fn a_donor_that_is_silent_keeps_nobody_else_waiting() {
        let donors: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addr = |donor: &TcpListener| donor.local_addr().unwrap().to_string();
        let grants: Vec<_> = donors.iter().map(|donor| grant(addr(donor))).collect();
        let (tell, told) = mpsc::channel();
        let access = venice_identity_test::access("127.0.0.1:1");
        let tell = move |news| drop(tell.send(news));
        let held = Held::keep(&access, (grants, Instant::now()), tell).unwrap();
        // They take the call, and say nothing.
        let _calls: Vec<_> = donors.iter().map(|donor| donor.accept().unwrap()).collect();
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty), "one after another");
        for _ in &donors {
            let news = told.recv().unwrap();
            assert_eq!(news.event, HeldEvent::Lost(Fate::Silent));
        }
        assert_eq!(held.lost(), Some(Fate::Silent));
    }
}
