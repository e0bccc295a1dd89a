//! Grants held without a run block: devices, and memory that a program reaches by itself.
//!
//! One thread performs what [`LeaseHolder`] asks for: it renews the leases at the donors, so a dead
//! Monitor Node stops nothing. Losses and reclaims are reported once.

mod meeting;
#[cfg(test)]
mod tests;

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
use venice_ports::monotonic_ns;
use venice_rack::lease_holder::{LeaseHolder, Loss, Output, Reclaim, RenewalCall, grace_ns};
use venice_wire::GrantId;

use crate::error::RecipientError;
use crate::leases::thread;
use crate::loan::{Loan, RELEASE_WITHIN, allocate, release, release_now, runtime};
use crate::renewals::{Renewal, Renewals};
use crate::services::{self, Seen};
use crate::spec::AllocationSpec;
use crate::waiting::ignore_wait;
pub(crate) use meeting::OnLoss;

/// Interval between two checks for events.
const LOOK_EVERY: Duration = Duration::from_millis(50);

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
    holder: Arc<Mutex<LeaseHolder>>,
    orders: Option<Sender<Order>>,
    keeper: Option<JoinHandle<()>>,
}

/// An order to the keeper, which stops when there are none any more.
#[derive(Debug)]
enum Order {
    /// Releases one of the grants.
    Release(GrantId),
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
        let parts = services.into_iter().enumerate();
        let held = parts.map(|(index, service)| keeper.part(index, service));
        let held = held.collect::<Result<_, _>>()?;
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
        let mut keeper = Keeper::new(access, grants.clone(), ns_of(asked), tell);
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
        lock(&self.holder).lost().next().map(|(_, loss)| fate(loss))
    }

    /// Returns the donor's reason of a loss; `None`: none is lost, or the donor gave none.
    pub fn why_lost(&self) -> Option<String> {
        lock(&self.holder).lost().next().and_then(|(_, loss)| why(loss))
    }

    /// True if nothing is held any more.
    pub(crate) fn is_all_lost(&self) -> bool {
        lock(&self.holder).lost().count() == self.grants.len()
    }

    /// Returns the reclaim that ends first; `None`: none, or no longer.
    pub fn wanted(&self) -> Option<WantedBack> {
        let holder = lock(&self.holder);
        let soonest = |it: &Reclaim| (it.until_ns.is_none(), it.until_ns);
        holder.reclaims().map(|(_, reclaim)| reclaim).min_by_key(soonest).map(wanted_back)
    }

    /// Returns the reclaim of a grant; `None`: none, or no longer.
    pub fn wanted_back(&self, grant: GrantId) -> Option<WantedBack> {
        let index = self.grants.iter().position(|it| it.id == grant)?;
        let found = lock(&self.holder).reclaims().find(|(of, _)| *of == index);
        found.map(|(_, reclaim)| wanted_back(reclaim))
    }

    /// Releases one of the grants; the others stay held.
    pub fn release(&self, grant: GrantId) {
        // A keeper that has stopped has released all.
        let _ = self.orders.as_ref().map(|orders| orders.send(Order::Release(grant)));
    }

    /// Returns the time their users have to stop when one is lost or due: its device is lent to
    /// another only later.
    pub fn grace(&self) -> Duration {
        Duration::from_nanos(self.grants.iter().map(grace_ns).min().unwrap_or_default())
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
    holder: Arc<Mutex<LeaseHolder>>,
    renewals: Renewals,
    /// Releases of grants whose time is over.
    returns: JoinSet<()>,
    /// Watches of the services, one for each device.
    watches: JoinSet<Seen>,
    tell: Box<dyn FnMut(HeldNews) + Send>,
}

impl Keeper {
    fn new(
        access: &Access,
        grants: Vec<Grant>,
        asked_ns: u64,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Self {
        Self {
            access: access.clone(),
            holder: Arc::new(Mutex::new(LeaseHolder::new(grants, asked_ns))),
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
        let holder = Arc::clone(&self.holder);
        let grants = lock(&holder).grants().cloned().collect();
        let keeper = thread("venice-held", move || self.run(&runtime, &ordered))?;
        Ok(Held { grants, services, holder, orders: Some(orders), keeper: Some(keeper) })
    }

    fn run(&mut self, runtime: &Runtime, ordered: &Receiver<Order>) {
        loop {
            let order = match ordered.try_recv() {
                Ok(order) => Some(order),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => break,
            };
            runtime.block_on(async {
                if let Some(Order::Release(grant)) = order {
                    lock(&self.holder).handle_release(grant);
                }
                self.look();
                tokio::select! {
                    () = tokio::time::sleep(self.pause().min(LOOK_EVERY)) => {}
                    Some(seen) = self.watches.join_next() => drop(self.see(seen)),
                }
            });
        }
        let grants: Vec<Grant> =
            lock(&self.holder).held().map(|(_, grant)| grant.clone()).collect();
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

    /// Returns the interval between two renewals.
    fn pause(&self) -> Duration {
        Duration::from_nanos(lock(&self.holder).pause_ns())
    }

    /// Takes the answers to renewals, and does what is due.
    fn look(&mut self) {
        while let Some(renewal) = self.renewals.poll() {
            self.take(renewal);
        }
        lock(&self.holder).handle_timeout(monotonic_ns());
        self.perform_all();
    }

    fn take(&self, Renewal { index, sent, outcome }: Renewal) {
        let call = RenewalCall { index, sent_ns: ns_of(sent) };
        lock(&self.holder).handle_renewed(call, outcome);
    }

    fn perform_all(&mut self) {
        while self.returns.try_join_next().is_some() {}
        loop {
            let Some(output) = lock(&self.holder).poll_output() else { return };
            match output {
                Output::Renew(RenewalCall { index, .. }) => {
                    self.renewals.begin(index, lock(&self.holder).grant(index));
                }
                Output::GiveBack(index) => self.give_back(index),
                Output::Lost(index, loss) => {
                    self.say(index, HeldEvent::Lost(fate(&loss)), why(&loss));
                }
                Output::Wanted(index, notice) => self.say(index, HeldEvent::Wanted(notice), None),
                Output::Due(index) => self.say(index, HeldEvent::Due, None),
            }
        }
    }

    /// Takes a state of a service. Returns the way to it when it is known: `None` for a device
    /// without a service. The grant of a service that has ended is lost.
    fn see(&mut self, seen: Result<Seen, JoinError>) -> Option<(usize, Option<ServiceAccess>)> {
        let Seen { index, state, watch } = seen.expect("a watch does not panic");
        if let Some(watch) = watch {
            self.watches.spawn(services::next(watch, index));
        }
        let mut holder = lock(&self.holder);
        match state {
            Ok(ServiceState::Serving(access)) => {
                holder.set_served(index, true);
                return Some((index, Some(access)));
            }
            Ok(ServiceState::None) => {
                holder.set_served(index, false);
                return Some((index, None));
            }
            Ok(ServiceState::Starting) => {}
            Ok(ServiceState::Ended(why)) => holder.handle_lost(index, Loss::Ended(why)),
            Err(ControlError::Refused(Refusal::UnknownGrant)) => {
                holder.handle_lost(index, Loss::Revoked);
            }
            Err(ControlError::Unreachable { refused: true, .. }) => {
                holder.handle_lost(index, Loss::Died);
            }
            Err(_) if holder.held().all(|(held, _)| held != index) => {}
            Err(_) => {
                let (access, grant) = (self.access.clone(), holder.grant(index).clone());
                self.watches.spawn(services::open_again(access, grant, index));
            }
        }
        None
    }

    /// Releases a grant before its donor takes it, so that no one waits for its lease.
    fn give_back(&mut self, index: usize) {
        let (access, grant) = (self.access.clone(), lock(&self.holder).grant(index).clone());
        self.returns.spawn(async move {
            let released = release(&access, std::slice::from_ref(&grant));
            let _ = tokio::time::timeout(RELEASE_WITHIN, released).await;
        });
    }

    fn say(&mut self, index: usize, event: HeldEvent, why: Option<String>) {
        let grant = lock(&self.holder).grant(index).clone();
        let what = resource_name(&grant);
        (self.tell)(HeldNews { grant: grant.id, donor: grant.donor, what, event, why });
    }
}

fn fate(loss: &Loss) -> Fate {
    match loss {
        Loss::Died => Fate::Died,
        Loss::Revoked | Loss::Ended(_) => Fate::Revoked,
        Loss::Unresponsive => Fate::Unresponsive,
        Loss::NotAdmitted => Fate::NotAdmitted,
    }
}

/// Returns the donor's reason of a loss, if it gave one.
fn why(loss: &Loss) -> Option<String> {
    match loss {
        Loss::Ended(why) => Some(why.clone()),
        Loss::Died | Loss::Revoked | Loss::Unresponsive | Loss::NotAdmitted => None,
    }
}

fn wanted_back(Reclaim { reason, until_ns }: Reclaim) -> WantedBack {
    let left = |until_ns: u64| Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
    let until = until_ns.and_then(|until_ns| Instant::now().checked_add(left(until_ns)));
    WantedBack { reason, until }
}

/// Returns a time by the clock of the leases, or one just before it.
fn ns_of(at: Instant) -> u64 {
    let now_ns = monotonic_ns();
    now_ns.saturating_sub(at.elapsed().as_nanos() as u64)
}

/// Returns the granted resource as users read it: a device's address, or the kind.
pub(crate) fn resource_name(grant: &Grant) -> String {
    let share = &grant.share;
    share.device().map_or(share.kind.name(), |(_, address)| address).to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
