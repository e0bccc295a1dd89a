//! Keeping what was borrowed: renewals at the donors, and an eye on whether they live.
//!
//! Leases are renewed at the donors themselves, so a dead Monitor Node stops nothing. A donor
//! that is lost (its shm connection ended, its address refuses, it does not know the grant any
//! more, or it has been silent for a whole lease) is marked so in the run block; the pagers look
//! there before every access, and mark those themselves that they find lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use venice_control::Grant;
use venice_control::client::AgentClient;
use venice_control::{ControlError, LeaseState};
use venice_memory::paged::run_block::{Fate, RunBlockMap};

use crate::error::RecipientError;
use crate::loan::{ANSWER_WITHIN, Loan, runtime};

/// How often the shm connections are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long giving back may take, all in all.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// A donor that was lost, whoever found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDonor {
    /// Its name.
    pub name: String,
    /// How it was lost.
    pub fate: Fate,
}

impl std::fmt::Display for LostDonor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.fate {
            Fate::Died => "died",
            Fate::TookBack => "took its memory back",
        };
        write!(f, "node {} {what}", self.name)
    }
}

/// The thread that keeps the leases. Dropped, it gives the memory back.
#[derive(Debug)]
pub struct Leases {
    stop: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Leases {
    /// Starts keeping. Donor `n` of the run block must be the donor of grant `n`. `tell` hears of
    /// each donor that is lost, once, on the keeper's thread.
    ///
    /// # Errors
    /// [`RecipientError::System`]: no thread can be had; then the leases end by themselves.
    pub fn keep(
        loan: Loan,
        block: Arc<RunBlockMap>,
        mut tell: impl FnMut(LostDonor) + Send + 'static,
    ) -> Result<Leases, RecipientError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let runtime = runtime()?;
        let body = move || {
            let told = vec![false; loan.grants.len()];
            keep(&runtime, &loan, &block, &stopped, Telling { told, tell: &mut tell });
            // What does not get through ends with its lease.
            let _ = runtime
                .block_on(async { tokio::time::timeout(GIVE_BACK_WITHIN, loan.release()).await });
        };
        let keeper = std::thread::Builder::new().name("venice-leases".into()).spawn(body);
        let keeper = keeper.map_err(|source| RecipientError::System {
            doing: "starting the thread that keeps the leases",
            source,
        })?;
        Ok(Leases { stop, keeper: Some(keeper) })
    }

    /// Ends the grants: at the Monitor Node, or where it is gone at the donors. Returns when that
    /// is done, or given up after seconds: the leases end by themselves.
    pub fn give_back(self) {
        drop(self);
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Who hears of lost donors, and of whom they have heard.
struct Telling<'a> {
    told: Vec<bool>,
    tell: &'a mut dyn FnMut(LostDonor),
}

fn keep(
    runtime: &tokio::runtime::Runtime,
    loan: &Loan,
    block: &RunBlockMap,
    stop: &AtomicBool,
    mut telling: Telling<'_>,
) {
    let lease_s = loan.grants.iter().map(|grant| grant.lease_s).fold(f64::INFINITY, f64::min);
    let lease = Duration::from_secs_f64(lease_s.clamp(0.5, 3600.0));
    let renew_every = (lease / 4).min(Duration::from_secs(1));
    let mut heard = vec![Instant::now(); loan.grants.len()];
    let mut next = Instant::now();
    while !stop.load(Ordering::Acquire) {
        for (index, connection) in loan.connections.iter().enumerate() {
            if connection.is_closed() {
                block.donors()[index].lose(Fate::Died);
            }
        }
        if Instant::now() >= next {
            next = Instant::now() + renew_every;
            runtime.block_on(renew_all(loan, block, &mut heard, lease));
        }
        telling.look(block);
        std::thread::sleep(LOOK_EVERY);
    }
    // What ended the program may have come since.
    telling.look(block);
}

async fn renew_all(loan: &Loan, block: &RunBlockMap, heard: &mut [Instant], lease: Duration) {
    for (index, grant) in loan.grants.iter().enumerate() {
        let donor = &block.donors()[index];
        if donor.is_lost() {
            continue;
        }
        match renew(grant).await {
            Ok(LeaseState::Live { .. }) => heard[index] = Instant::now(),
            Ok(LeaseState::Unknown) => donor.lose(Fate::TookBack),
            Err(ControlError::Unreachable { refused: true, .. }) => donor.lose(Fate::Died),
            Err(_) if heard[index].elapsed() > lease => donor.lose(Fate::Died),
            Err(_) => {}
        }
    }
}

async fn renew(grant: &Grant) -> Result<LeaseState, ControlError> {
    let mut agent = AgentClient::connect(&grant.control_addr, ANSWER_WITHIN).await?;
    let states = agent.renew(&[(grant.id, grant.key)]).await?;
    Ok(states.into_iter().next().unwrap_or(LeaseState::Unknown))
}

impl Telling<'_> {
    /// Says once of each donor that is lost, whoever found out, that it is.
    fn look(&mut self, block: &RunBlockMap) {
        for (donor, told) in block.donors().iter().zip(&mut self.told) {
            if let Some(fate) = donor.fate()
                && !std::mem::replace(told, true)
            {
                (self.tell)(LostDonor { name: donor.name(), fate });
            }
        }
    }
}
