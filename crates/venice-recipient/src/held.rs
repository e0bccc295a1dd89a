//! Grants held without a run block: devices, and memory that a program reaches by itself.
//!
//! One thread renews the leases at the donors, so a dead Monitor Node stops nothing. Losses and
//! reclaims are reported once. A lease counts from when its renewal was sent, so it ends here
//! before it ends at the donor, which may then lend the device to another. So does the notice time
//! of a reclaim: what is still held then is released.

mod meeting;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::{JoinError, JoinSet};
use venice_control::client::Access;
use venice_control::{
    ControlError, Grant, Notice, NoticeReason, Refusal, ServiceAccess, ServiceState,
};
use venice_memory::paged::run_block::Fate;
use venice_wire::GrantId;

use crate::error::RecipientError;
use crate::leases::thread;
use crate::loan::{Loan, RELEASE_WITHIN, allocate, release, release_now, runtime};
use crate::renewals::{Renewal, Renewals, Renewed};
use crate::services::{self, Seen};
use crate::spec::AllocationSpec;
use crate::waiting::ignore_wait;
pub(crate) use meeting::OnLoss;

/// Interval between two checks for events.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest interval between two renewals.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A grant is dropped when this part of its lease is left: time for its user to stop.
const MARGIN_PARTS: u32 = 4;
/// The part of a lease that a grant's user has to stop, once it is lost or due.
const GRACE_PARTS: u32 = 5;
/// The longest such time.
const MAX_GRACE: Duration = Duration::from_secs(5);

/// An event of a held grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldNews {
    /// The grant.
    pub grant: GrantId,
    /// Its donor.
    pub donor: String,
    /// The granted resource: a device's address, or `memory`.
    pub what: String,
    /// The event.
    pub event: HeldEvent,
    /// The donor's reason of a loss, if it gave one.
    pub why: Option<String>,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldEvent {
    /// The grant is over: another recipient may have it.
    Lost(Fate),
    /// Its donor reclaims it.
    Wanted(Notice),
    /// The notice time is about to end: its user must stop now, within [`Held::grace`].
    Due,
}

/// The reclaim of a grant by its donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedBack {
    /// The reason.
    pub reason: NoticeReason,
    /// Time at which it ends, released or not; `None`: its donor waits.
    pub until: Option<Instant>,
}

/// Returns the reason of a reclaim in words.
pub fn reason_text(reason: NoticeReason) -> &'static str {
    match reason {
        NoticeReason::Drain => "the node is being drained and reclaims it",
        NoticeReason::Pressure => "the node's own programs need the memory: it is reclaimed",
        NoticeReason::Preempted => "a request of higher priority needs it",
        NoticeReason::Fault => "the device is there no longer, or does not work",
    }
}

impl fmt::Display for HeldNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grant: _, donor, what, event, why } = self;
        if let (HeldEvent::Lost(_), Some(why)) = (event, why) {
            return write!(f, "{what} of {donor}: {why}: the grant is over");
        }
        let why = match event {
            HeldEvent::Lost(Fate::Died) => "its agent is gone: the grant is over",
            HeldEvent::Lost(Fate::Revoked) => "it was taken back: the grant is over",
            HeldEvent::Lost(Fate::Unresponsive) => "it does not answer: the lease runs out",
            HeldEvent::Lost(Fate::NotAdmitted) => {
                "it does not admit this program any more: the lease runs out"
            }
            HeldEvent::Wanted(notice) => reason_text(notice.reason),
            HeldEvent::Due => "its notice time is over: it is released",
        };
        write!(f, "{what} of {donor}: {why}")?;
        if let HeldEvent::Wanted(Notice { within_ms: Some(within_ms), .. }) = event {
            write!(f, ": it ends in {} s", within_ms.div_ceil(1000))?;
        }
        Ok(())
    }
}

/// Grants that are held until this is dropped, which releases them.
#[derive(Debug)]
pub struct Held {
    grants: Vec<Grant>,
    services: Vec<Option<ServiceAccess>>,
    fates: Arc<Mutex<Fates>>,
    orders: Option<Sender<Order>>,
    keeper: Option<JoinHandle<()>>,
}

/// An order to the keeper, which stops when there are none any more.
#[derive(Debug)]
enum Order {
    /// Releases one of the grants.
    Release(GrantId),
}

/// Lost and reclaimed grants, by index.
#[derive(Debug, Default)]
struct Fates {
    /// With the donors' reasons, where they gave one.
    lost: BTreeMap<usize, (Fate, Option<String>)>,
    wanted: BTreeMap<usize, WantedBack>,
}

impl Held {
    /// Allocates what is specified. Reaching it is up to the holder. `tell` receives its events, on
    /// another thread.
    ///
    /// # Errors
    /// [`RecipientError`]: the Monitor Node does not answer, or refuses.
    pub fn allocate(
        access: &Access,
        spec: &AllocationSpec,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        Held::loan(allocate(access, spec, &mut ignore_wait)?, tell)
    }

    /// The same for a loan, of which it holds everything.
    ///
    /// # Errors
    /// [`RecipientError`]: a grant is lost, its service did not start, or no thread could be
    /// started. Everything is released then.
    pub fn loan(
        mut loan: Loan,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        let grants = loan.take_grants();
        Held::keep(&loan.access, (grants, loan.asked), OnLoss::Fail, tell)
    }

    /// Takes the devices of a loan over, beside a [`Holding`](crate::Holding) of its memory, which is
    /// renewed until their services listen.
    ///
    /// # Errors
    /// The errors of [`loan`](Held::loan). The loan keeps everything then: drop it to release that.
    pub fn devices_of(
        loan: &mut Loan,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        let (runtime, keeper, services) = Keeper::of_devices(loan, tell)?;
        let held = keeper.start(runtime, services)?;
        loan.devices.clear();
        Ok(held)
    }

    /// Takes the devices of a loan over, each by itself and without reports of its events.
    ///
    /// # Errors
    /// The errors of [`devices_of`](Held::devices_of).
    pub fn each_device_of(loan: &mut Loan) -> Result<Vec<Held>, RecipientError> {
        if loan.devices.is_empty() {
            return Ok(Vec::new());
        }
        let (_runtime, keeper, services) = Keeper::of_devices(loan, |_| {})?;
        let parts = keeper.kept.iter().zip(services);
        let held =
            parts.map(|(kept, service)| keeper.part(kept, service)).collect::<Result<_, _>>()?;
        loan.devices.clear();
        Ok(held)
    }

    /// Starts the keeper. `asked` is a time before the request was sent; the leases began later. On
    /// an error everything is released, unless the rest was to be kept.
    pub(crate) fn keep(
        access: &Access,
        (grants, asked): (Vec<Grant>, Instant),
        on_loss: OnLoss,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Held, RecipientError> {
        let mut keeper = Keeper::new(access, &grants, asked, tell);
        let start = || {
            let runtime = runtime()?;
            let services = runtime.block_on(keeper.meet_services(on_loss))?;
            keeper.start(runtime, services)
        };
        start().inspect_err(|_| match on_loss {
            OnLoss::Fail => release_now(access, &grants),
            // To release the memory would destroy its data, and they can be claimed again.
            OnLoss::KeepRest => {}
        })
    }

    /// Returns the grants, lost or not.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Returns the services of the grants, in their order; `None` for one without a service.
    pub fn services(&self) -> &[Option<ServiceAccess>] {
        &self.services
    }

    /// Returns the fate of a lost grant; `None`: all are held.
    pub fn lost(&self) -> Option<Fate> {
        lock(&self.fates).lost.values().next().map(|(fate, _)| *fate)
    }

    /// Returns the donor's reason of a loss; `None`: none is lost, or the donor gave none.
    pub fn why_lost(&self) -> Option<String> {
        lock(&self.fates).lost.values().next().and_then(|(_, why)| why.clone())
    }

    /// True if nothing is held any more.
    pub(crate) fn is_all_lost(&self) -> bool {
        lock(&self.fates).lost.len() == self.grants.len()
    }

    /// Returns the reclaim that ends first; `None`: none, or no longer.
    pub fn wanted(&self) -> Option<WantedBack> {
        let fates = lock(&self.fates);
        let soonest = |it: &&WantedBack| (it.until.is_none(), it.until);
        fates.wanted.values().min_by_key(soonest).copied()
    }

    /// Returns the reclaim of a grant; `None`: none, or no longer.
    pub fn wanted_back(&self, grant: GrantId) -> Option<WantedBack> {
        let index = self.grants.iter().position(|it| it.id == grant)?;
        lock(&self.fates).wanted.get(&index).copied()
    }

    /// Releases one of the grants; the others stay held.
    pub fn release(&self, grant: GrantId) {
        // A keeper that has stopped has released all.
        let _ = self.orders.as_ref().map(|orders| orders.send(Order::Release(grant)));
    }

    /// Returns the time their users have to stop when one is lost or due: its device is lent to
    /// another only later.
    pub fn grace(&self) -> Duration {
        self.grants.iter().map(grace).min().unwrap_or(MAX_GRACE)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

struct Keeper {
    access: Access,
    kept: Vec<Kept>,
    fates: Arc<Mutex<Fates>>,
    renewals: Renewals,
    /// Releases of grants whose time is over.
    returns: JoinSet<()>,
    /// Watches of the services, one for each device.
    watches: JoinSet<Seen>,
    tell: Box<dyn FnMut(HeldNews) + Send>,
}

struct Kept {
    grant: Grant,
    /// Time at which the last answered renewal was sent. The donor counts the lease from later on.
    renewed: Instant,
    /// The reason reported last.
    told: Option<NoticeReason>,
    /// End of the donor's notice time.
    until: Option<Instant>,
    is_due: bool,
    is_lost: bool,
    /// True if the donor did not admit this process at the last renewal.
    is_refused: bool,
    /// True if its service is watched.
    is_served: bool,
    /// The donor's reason of its end.
    why: Option<String>,
}

impl Kept {
    fn new(grant: &Grant, asked: Instant) -> Self {
        let grant = grant.clone();
        Self {
            grant,
            renewed: asked,
            told: None,
            until: None,
            is_due: false,
            is_lost: false,
            is_refused: false,
            is_served: false,
            why: None,
        }
    }

    fn lease(&self) -> Duration {
        lease(&self.grant)
    }

    /// True if its user must stop now, to have stopped half a grace before its donor takes it.
    fn is_due(&self, now: Instant) -> bool {
        let lead = grace(&self.grant) * 3 / 2;
        self.until.is_some_and(|until| until.saturating_duration_since(now) <= lead)
    }

    /// Returns how long it counts as held after a renewal: its user must be gone before its donor
    /// lends it to another.
    fn trust(&self) -> Duration {
        self.lease() - self.lease() / MARGIN_PARTS
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.renewed) >= self.trust()
    }
}

impl Keeper {
    fn new(
        access: &Access,
        grants: &[Grant],
        asked: Instant,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Self {
        Self {
            access: access.clone(),
            kept: grants.iter().map(|grant| Kept::new(grant, asked)).collect(),
            fates: Arc::default(),
            renewals: Renewals::new(access.clone()),
            returns: JoinSet::new(),
            watches: JoinSet::new(),
            tell: Box::new(tell),
        }
    }

    /// Starts its thread.
    fn start(
        mut self,
        runtime: Runtime,
        services: Vec<Option<ServiceAccess>>,
    ) -> Result<Held, RecipientError> {
        let (orders, ordered) = mpsc::channel();
        let grants = self.kept.iter().map(|kept| kept.grant.clone()).collect();
        let fates = Arc::clone(&self.fates);
        let keeper = thread("venice-held", move || self.run(&runtime, &ordered))?;
        Ok(Held { grants, services, fates, orders: Some(orders), keeper: Some(keeper) })
    }

    fn run(&mut self, runtime: &Runtime, ordered: &Receiver<Order>) {
        let pause = self.pause();
        let mut next = Instant::now();
        loop {
            let order = match ordered.try_recv() {
                Ok(order) => Some(order),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => break,
            };
            runtime.block_on(async {
                if let Some(Order::Release(grant)) = order {
                    self.release_one(grant);
                }
                if Instant::now() >= next {
                    next = Instant::now() + pause;
                    self.begin();
                }
                tokio::select! {
                    () = tokio::time::sleep(pause.min(LOOK_EVERY)) => {}
                    Some(seen) = self.watches.join_next() => drop(self.see(seen)),
                }
                self.take_renewals();
            });
        }
        let living = self.kept.iter().filter(|kept| !kept.is_lost);
        let grants: Vec<Grant> = living.map(|kept| kept.grant.clone()).collect();
        // What does not get through ends with its lease.
        let _ = runtime.block_on(async {
            let end = async {
                if !grants.is_empty() {
                    release(&self.access, &grants).await;
                }
                while self.returns.join_next().await.is_some() {}
            };
            tokio::time::timeout(RELEASE_WITHIN, end).await
        });
    }

    fn shortest(&self) -> Duration {
        self.kept.iter().map(Kept::lease).min().unwrap_or(Duration::from_secs(1))
    }

    /// Returns the interval between two renewals.
    fn pause(&self) -> Duration {
        (self.shortest() / 4).min(MAX_PAUSE)
    }

    /// Sends renewals of all grants that are not lost.
    fn begin(&mut self) {
        for (index, kept) in self.kept.iter().enumerate().filter(|(_, kept)| !kept.is_lost) {
            self.renewals.begin(index, &kept.grant);
        }
    }

    fn take(&mut self, Renewal { index, sent, outcome }: Renewal) {
        let kept = &mut self.kept[index];
        match outcome {
            Renewed::Live(notice) if !kept.is_lost => {
                kept.renewed = kept.renewed.max(sent);
                kept.is_refused = false;
                self.hear(index, sent, notice);
            }
            Renewed::Transferred(to) => self.lose_for(index, transferred_text(&to)),
            // The watch of its service may know why.
            Renewed::Unknown if kept.is_served => {}
            Renewed::Unknown => self.lose(index, Fate::Revoked),
            Renewed::Refused => self.lose(index, Fate::Died),
            Renewed::NotAdmitted => kept.is_refused = true,
            Renewed::Live(_) | Renewed::Silent | Renewed::Unreachable => {}
        }
    }

    /// Takes the answers to renewals, and drops what has ended.
    fn take_renewals(&mut self) {
        while let Some(renewal) = self.renewals.poll() {
            self.take(renewal);
        }
        self.judge(Instant::now());
    }

    /// Takes a state of a service. Returns the way to it when it is known: `None` for a device
    /// without a service. The grant of a service that has ended is lost.
    fn see(&mut self, seen: Result<Seen, JoinError>) -> Option<(usize, Option<ServiceAccess>)> {
        let Seen { index, state, watch } = seen.expect("a watch does not panic");
        if let Some(watch) = watch {
            self.watches.spawn(services::next(watch, index));
        }
        let kept = &mut self.kept[index];
        match state {
            Ok(ServiceState::Serving(access)) => {
                kept.is_served = true;
                return Some((index, Some(access)));
            }
            Ok(ServiceState::None) => {
                kept.is_served = false;
                return Some((index, None));
            }
            Ok(ServiceState::Starting) => {}
            Ok(ServiceState::Ended(why)) => self.lose_for(index, why),
            Err(ControlError::Refused(Refusal::UnknownGrant)) => self.lose(index, Fate::Revoked),
            Err(ControlError::Unreachable { refused: true, .. }) => self.lose(index, Fate::Died),
            Err(_) if kept.is_lost => {}
            Err(_) => {
                let (access, grant) = (self.access.clone(), kept.grant.clone());
                self.watches.spawn(services::open_again(access, grant, index));
            }
        }
        None
    }

    /// Drops grants that were not renewed in time, whatever their donors answer later, and releases
    /// those whose notice time is over.
    fn judge(&mut self, now: Instant) {
        while self.returns.try_join_next().is_some() {}
        for index in 0..self.kept.len() {
            let kept = &mut self.kept[index];
            if kept.is_over(now) {
                let is_refused = kept.is_refused;
                self.lose(index, if is_refused { Fate::NotAdmitted } else { Fate::Unresponsive });
            } else if kept.until.is_some_and(|until| until <= now) && !kept.is_lost {
                self.give_back(index);
                self.lose(index, Fate::Revoked);
            } else if kept.is_due(now)
                && !kept.is_lost
                && !std::mem::replace(&mut kept.is_due, true)
            {
                self.say(index, HeldEvent::Due);
            }
        }
    }

    /// Releases a grant before its donor takes it, so that no one waits for its lease.
    fn give_back(&mut self, index: usize) {
        let (access, grant) = (self.access.clone(), self.kept[index].grant.clone());
        self.returns.spawn(async move {
            let released = release(&access, std::slice::from_ref(&grant));
            let _ = tokio::time::timeout(RELEASE_WITHIN, released).await;
        });
    }

    fn release_one(&mut self, grant: GrantId) {
        let Some(index) = self.kept.iter().position(|kept| kept.grant.id == grant) else { return };
        if !std::mem::replace(&mut self.kept[index].is_lost, true) {
            lock(&self.fates).wanted.remove(&index);
            self.give_back(index);
        }
    }

    fn lose(&mut self, index: usize, fate: Fate) {
        if !std::mem::replace(&mut self.kept[index].is_lost, true) {
            let why = self.kept[index].why.clone();
            let mut fates = lock(&self.fates);
            fates.lost.insert(index, (fate, why));
            fates.wanted.remove(&index);
            drop(fates);
            self.say(index, HeldEvent::Lost(fate));
        }
    }

    /// Drops a grant for a reason of its donor's.
    fn lose_for(&mut self, index: usize, why: String) {
        if !self.kept[index].is_lost {
            self.kept[index].why = Some(why);
        }
        self.lose(index, Fate::Revoked);
    }

    /// Records a notice. `sent` is the time of the renewal it answers; its donor counts from later
    /// on.
    fn hear(&mut self, index: usize, sent: Instant, notice: Option<Notice>) {
        let kept = &mut self.kept[index];
        let after = |ms| sent.checked_add(Duration::from_millis(ms));
        kept.until = notice.and_then(|notice| notice.within_ms).and_then(after);
        let until = kept.until;
        let reason = notice.map(|notice| notice.reason);
        let before = std::mem::replace(&mut kept.told, reason);
        match reason {
            Some(reason) => lock(&self.fates).wanted.insert(index, WantedBack { reason, until }),
            None => lock(&self.fates).wanted.remove(&index),
        };
        if let Some(notice) = notice.filter(|notice| before != Some(notice.reason)) {
            self.say(index, HeldEvent::Wanted(notice));
        }
    }

    fn say(&mut self, index: usize, event: HeldEvent) {
        let Kept { grant, why, .. } = &self.kept[index];
        let (donor, what, why) = (grant.donor.clone(), resource_name(grant), why.clone());
        (self.tell)(HeldNews { grant: grant.id, donor, what, event, why });
    }
}

/// Returns the reason of the loss of a transferred grant.
fn transferred_text(to: &str) -> String {
    format!("it was transferred to {to}")
}

/// Returns the granted resource as users read it: a device's address, or the kind.
pub(crate) fn resource_name(grant: &Grant) -> String {
    let share = &grant.share;
    share.device().map_or(share.kind.name(), |(_, address)| address).to_owned()
}

fn lease(grant: &Grant) -> Duration {
    Duration::from_secs_f64(grant.lease_s.clamp(0.1, 86_400.0))
}

fn grace(grant: &Grant) -> Duration {
    (lease(grant) / GRACE_PARTS).min(MAX_GRACE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
