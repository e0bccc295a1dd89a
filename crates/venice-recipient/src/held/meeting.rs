//! The wait for the services of granted devices, before their holder has them.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use venice_control::client::Access;
use venice_control::{Grant, ServiceAccess};
use venice_ports::monotonic_ns;
use venice_rack::lease_holder::{LeaseHolder, Loss};

use super::{Held, HeldNews, Keeper, lock, ns_of, resource_name};
use crate::error::RecipientError;
use crate::loan::{Loan, runtime};
use crate::renewals::Renewals;
use crate::services;

/// Longest wait for the services of granted devices; their agents give up earlier.
const SERVICE_WITHIN: Duration = Duration::from_secs(30);

/// The consequence of a grant that is lost during the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// The wait fails: its grants were requested together.
    Fail,
    /// The others are kept: they may hold data.
    KeepRest,
}

/// The start of a keeper, once the services are met.
type Met = (Runtime, Keeper, Vec<Option<ServiceAccess>>);

impl Keeper {
    /// Meets the services of a loan's devices. All of the loan is renewed meanwhile, and all of it
    /// stays the loan's.
    pub(super) fn of_devices(
        loan: &Loan,
        tell: impl FnMut(HeldNews) + Send + 'static,
    ) -> Result<Met, RecipientError> {
        let mut keeper = Keeper::new(&loan.access, loan.devices.clone(), ns_of(loan.asked), tell);
        let runtime = runtime()?;
        let services = runtime.block_on(async {
            tokio::select! {
                met = keeper.meet_services(OnLoss::Fail) => met,
                // The holder of the memory finds its losses, and may have copies.
                never = renew_on(&loan.access, &loan.memory) => match never {},
            }
        })?;
        Ok((runtime, keeper, services))
    }

    /// Starts a keeper of one of its grants alone. Its service is watched anew: the present watch
    /// belongs to this keeper's runtime.
    pub(super) fn part(
        &self,
        index: usize,
        service: Option<ServiceAccess>,
    ) -> Result<Held, RecipientError> {
        let holder = lock(&self.holder);
        let grant = holder.grant(index).clone();
        let (renewed_ns, is_served) = (holder.renewed_ns(index), holder.is_served(index));
        drop(holder);
        let mut part = Keeper::new(&self.access, vec![grant.clone()], renewed_ns, |_| {});
        lock(&part.holder).set_served(0, is_served);
        let runtime = runtime()?;
        if is_served {
            let opened = services::open(self.access.clone(), grant, 0);
            part.watches.spawn_on(opened, runtime.handle());
        }
        part.start(runtime, vec![service])
    }

    /// Waits until the services of all devices that are not lost listen; returns the way to each.
    pub(super) async fn meet_services(
        &mut self,
        on_loss: OnLoss,
    ) -> Result<Vec<Option<ServiceAccess>>, RecipientError> {
        self.confirm().await;
        let held: Vec<_> =
            lock(&self.holder).held().map(|(index, grant)| (index, grant.clone())).collect();
        let mut found = vec![None; lock(&self.holder).grants().count()];
        let mut missing = BTreeSet::new();
        for (index, grant) in held.into_iter().filter(|(_, it)| it.share.device().is_some()) {
            missing.insert(index);
            self.watches.spawn(services::open(self.access.clone(), grant, index));
        }
        let (pause, until) = (self.pause(), Instant::now() + SERVICE_WITHIN);
        loop {
            let lost = lock(&self.holder).lost().next().map(|(index, loss)| (index, loss.clone()));
            missing.retain(|index| lock(&self.holder).held().any(|(held, _)| held == *index));
            match lost {
                Some(lost) if on_loss == OnLoss::Fail => return Err(self.no_service(lost)),
                Some(_) | None if missing.is_empty() => return Ok(found),
                Some(_) | None => {}
            }
            tokio::select! {
                Some(seen) = self.watches.join_next() => {
                    if let Some((index, access)) = self.see(seen) {
                        found[index] = access;
                        missing.remove(&index);
                    }
                }
                () = tokio::time::sleep(pause) => {
                    self.look();
                    if Instant::now() > until {
                        missing.iter().for_each(|index| self.drop_unserved(*index));
                    }
                }
            }
        }
    }

    /// Renews grants once if the request took so long that their lease may be half over.
    async fn confirm(&mut self) {
        lock(&self.holder).confirm(monotonic_ns());
        self.perform_all();
        loop {
            let Some(until_ns) = lock(&self.holder).confirms_until_ns() else { return };
            let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
            match tokio::time::timeout(left, self.renewals.next()).await {
                Ok(Some(renewal)) => self.take(renewal),
                // Silent donors are handled by the keeper.
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Releases a device whose service does not start.
    fn drop_unserved(&mut self, index: usize) {
        self.give_back(index);
        let why = "its service did not start in time".to_owned();
        lock(&self.holder).handle_lost(index, Loss::Ended(why));
    }

    fn no_service(&self, (index, loss): (usize, Loss)) -> RecipientError {
        let why = match loss {
            Loss::Died => "its agent is gone".to_owned(),
            Loss::Unresponsive => "it does not answer".to_owned(),
            Loss::NotAdmitted => "it does not admit this program any more".to_owned(),
            Loss::Revoked => "it was taken back".to_owned(),
            Loss::Ended(why) => why,
        };
        let grant = lock(&self.holder).grant(index).clone();
        RecipientError::NoService { what: resource_name(&grant), donor: grant.donor, why }
    }
}

/// Renews grants for as long as it is polled.
async fn renew_on(access: &Access, grants: &[Grant]) -> Infallible {
    let pause = Duration::from_nanos(LeaseHolder::new(grants.to_vec(), 0).pause_ns());
    let mut renewals = Renewals::new(access.clone());
    loop {
        grants.iter().enumerate().for_each(|(index, grant)| renewals.begin(index, grant));
        tokio::time::sleep(pause).await;
        while renewals.poll().is_some() {}
    }
}
