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

use super::borrow::{ANSWER_WITHIN, Loan};

/// How often the shm connections are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long giving back may take, all in all.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// The thread that keeps the leases.
pub struct Leases {
    stop: Arc<AtomicBool>,
    keeper: Option<JoinHandle<Loan>>,
}

impl Leases {
    /// Starts keeping. Donor `n` of the run block is the donor of grant `n`.
    pub fn keep(loan: Loan, block: Arc<RunBlockMap>) -> Leases {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let keeper = std::thread::spawn(move || {
            keep(&loan, &block, &stopped);
            loan
        });
        Leases { stop, keeper: Some(keeper) }
    }

    /// Ends the grants: at the Monitor Node, or where it is gone at the donors.
    pub fn give_back(mut self) {
        self.stop.store(true, Ordering::Release);
        let keeper = self.keeper.take().expect("joined only here");
        let Ok(loan) = keeper.join() else { return };
        let Ok(runtime) = runtime() else { return };
        // What does not get through ends with its lease.
        let _ = runtime
            .block_on(async { tokio::time::timeout(GIVE_BACK_WITHIN, loan.release()).await });
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn keep(loan: &Loan, block: &RunBlockMap, stop: &AtomicBool) {
    let Ok(runtime) = runtime() else { return };
    let lease_s = loan.grants.iter().map(|grant| grant.lease_s).fold(f64::INFINITY, f64::min);
    let lease = Duration::from_secs_f64(lease_s.clamp(0.5, 3600.0));
    let renew_every = (lease / 4).min(Duration::from_secs(1));
    let mut heard = vec![Instant::now(); loan.grants.len()];
    let mut told = vec![false; loan.grants.len()];
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
        tell(block, &mut told);
        std::thread::sleep(LOOK_EVERY);
    }
    // What ended the program may have come since.
    tell(block, &mut told);
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

/// Says once of each donor that is lost, whoever found out, that it is.
fn tell(block: &RunBlockMap, told: &mut [bool]) {
    for (donor, told) in block.donors().iter().zip(told) {
        if let Some(fate) = donor.fate()
            && !std::mem::replace(told, true)
        {
            let what = match fate {
                Fate::Died => "died",
                Fate::TookBack => "took its memory back",
            };
            crate::terminal::remark(format!(
                "venice: node {} {what}; what only it held of this program is lost",
                donor.name()
            ));
        }
    }
}
