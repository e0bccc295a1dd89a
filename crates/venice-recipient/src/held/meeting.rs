//! The wait for the services of granted devices, before their holder has them.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use venice_control::client::Access;
use venice_control::{Grant, ServiceAccess};
use venice_memory::paged::run_block::Fate;

use super::{Held, HeldNews, Keeper, Kept, MAX_PAUSE, lease, lock, resource_name};
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
        let mut keeper = Keeper::new(&loan.access, &loan.devices, loan.asked, tell);
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
        kept: &Kept,
        service: Option<ServiceAccess>,
    ) -> Result<Held, RecipientError> {
        let (grants, renewed) = (std::slice::from_ref(&kept.grant), kept.renewed);
        let mut part = Keeper::new(&self.access, grants, renewed, |_| {});
        part.kept[0].is_served = kept.is_served;
        let runtime = runtime()?;
        if kept.is_served {
            let opened = services::open(self.access.clone(), kept.grant.clone(), 0);
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
        let mut found = vec![None; self.kept.len()];
        let mut missing = BTreeSet::new();
        for (index, kept) in self.kept.iter().enumerate() {
            if kept.grant.share.device().is_some() && !kept.is_lost {
                missing.insert(index);
                self.watches.spawn(services::open(self.access.clone(), kept.grant.clone(), index));
            }
        }
        let pause = self.pause();
        let (mut next, until) = (Instant::now() + pause, Instant::now() + SERVICE_WITHIN);
        loop {
            missing.retain(|index| !self.kept[*index].is_lost);
            match self.kept.iter().position(|kept| kept.is_lost) {
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
                () = tokio::time::sleep_until(next.into()) => {
                    next = Instant::now() + pause;
                    self.begin();
                    self.take_renewals();
                    if Instant::now() > until {
                        missing.iter().for_each(|index| self.drop_unserved(*index));
                    }
                }
            }
        }
    }

    /// Renews grants once if the request took so long that their lease may be half over.
    async fn confirm(&mut self) {
        let half = self.shortest() / 2;
        if self.kept.iter().all(|kept| kept.renewed.elapsed() < half) {
            return;
        }
        self.begin();
        let answers = async {
            while let Some(renewal) = self.renewals.next().await {
                self.take(renewal);
            }
        };
        // Silent donors are handled by the keeper.
        let _ = tokio::time::timeout(half, answers).await;
    }

    /// Releases a device whose service does not start.
    fn drop_unserved(&mut self, index: usize) {
        self.give_back(index);
        self.lose_for(index, "its service did not start in time".to_owned());
    }

    fn no_service(&self, index: usize) -> RecipientError {
        let Kept { grant, why, .. } = &self.kept[index];
        let said = match lock(&self.fates).lost.get(&index).map(|(fate, _)| *fate) {
            Some(Fate::Died) => "its agent is gone",
            Some(Fate::Unresponsive) => "it does not answer",
            Some(Fate::NotAdmitted) => "it does not admit this program any more",
            Some(Fate::Revoked) | None => "it was taken back",
        };
        let why = why.clone().unwrap_or_else(|| said.to_owned());
        RecipientError::NoService { what: resource_name(grant), donor: grant.donor.clone(), why }
    }
}

/// Renews grants for as long as it is polled.
async fn renew_on(access: &Access, grants: &[Grant]) -> Infallible {
    let pause = grants.iter().map(|grant| lease(grant) / 4).min().unwrap_or(MAX_PAUSE);
    let mut renewals = Renewals::new(access.clone());
    loop {
        grants.iter().enumerate().for_each(|(index, grant)| renewals.begin(index, grant));
        tokio::time::sleep(pause.min(MAX_PAUSE)).await;
        while renewals.poll().is_some() {}
    }
}
