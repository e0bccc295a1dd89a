//! A list of leases that another process renews while their holder cannot: a stopped job.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use venice_control::client::AgentClient;
use venice_wire::{GrantId, GrantKey};

use crate::error::RecipientError;
use crate::holding::Holding;
use crate::loan::{ANSWER_WITHIN, runtime};
use crate::local_rack;

/// Renewals in one lease: one may be lost.
const RENEWALS_A_LEASE: u32 = 4;
/// Longest interval between two renewals.
const MOST_BETWEEN: Duration = Duration::from_secs(1);

/// The leases of a holding, as text for another process of the same user. It contains keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeaseList {
    /// `host:port` of the Monitor Node, or of several separated by commas.
    monitor: String,
    /// Duration of a lease, in milliseconds.
    lease_ms: u64,
    leases: Vec<Lease>,
}

/// One lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lease {
    grant: GrantId,
    key: GrantKey,
    donor: String,
    control_addr: String,
}

impl Holding {
    /// Returns the leases of all grants held now.
    pub fn lease_list(&self) -> LeaseList {
        let held = self.lock_held();
        let leases = held.iter().map(|held| Lease {
            grant: held.grant.id,
            key: held.grant.key,
            donor: held.grant.donor.clone(),
            control_addr: held.grant.control_addr.clone(),
        });
        LeaseList {
            monitor: self.access.monitor.clone(),
            lease_ms: self.block().lease().as_millis() as u64,
            leases: leases.collect(),
        }
    }
}

impl LeaseList {
    /// Renews the leases at their donors until `is_over`, which is asked every `look_every`. A
    /// donor that does not answer is asked again: its holder judges it afterwards.
    ///
    /// # Errors
    /// [`RecipientError::System`]: no call can be made.
    pub fn renew_until(
        &self,
        look_every: Duration,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<(), RecipientError> {
        let runtime = runtime()?;
        let every = (Duration::from_millis(self.lease_ms) / RENEWALS_A_LEASE).min(MOST_BETWEEN);
        let login = local_rack::access(&self.monitor).login;
        let mut agents: BTreeMap<&str, AgentClient> = BTreeMap::new();
        let mut next = Instant::now();
        while !is_over() {
            if next <= Instant::now() {
                next = Instant::now() + every;
                for (addr, leases) in self.by_donor() {
                    let renewed = runtime.block_on(async {
                        let known = agents.remove(addr);
                        let mut agent = match known {
                            Some(agent) => agent,
                            None => {
                                let donor = &leases[0].donor;
                                AgentClient::connect(&login, donor, addr, ANSWER_WITHIN).await?
                            }
                        };
                        let keys: Vec<_> = leases.iter().map(|it| (it.grant, it.key)).collect();
                        agent.renew(&keys).await.map(|_| agent)
                    });
                    agents.extend(renewed.ok().map(|agent| (addr, agent)));
                }
            }
            std::thread::sleep(look_every);
        }
        Ok(())
    }

    fn by_donor(&self) -> BTreeMap<&str, Vec<&Lease>> {
        let mut by_donor = BTreeMap::<&str, Vec<&Lease>>::new();
        for lease in &self.leases {
            by_donor.entry(&lease.control_addr).or_default().push(lease);
        }
        by_donor
    }
}
