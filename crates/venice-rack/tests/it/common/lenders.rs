//! A Monitor Node and real donors, in virtual time; all messages arrive at once.

use super::S;
use std::collections::BTreeMap;
use venice_rack::caller::Owner;
use venice_rack::donor::{DonorAction, DonorCore, DonorSettings};
use venice_rack::monitor::{Action, CallError, MonitorCore, Token};
use venice_rack::monitor_node::{DonorCall, Reply};
use venice_rack::types::{
    AllocationRequest, DonorStatus, Grant, Identity, NodeRegistration, RackError,
};
use venice_wire::{GrantId, NodeId};

/// Slabs that each donor lends.
pub const SLABS: u32 = 32;

/// A rack that settles after each step.
pub struct Rack {
    pub now_ns: u64,
    pub monitor: MonitorCore,
    pub donors: BTreeMap<NodeId, (Identity, DonorCore)>,
    pub answers: BTreeMap<u128, Result<Vec<Grant>, RackError>>,
    /// Requests made so far.
    pub requests: u128,
}

impl Rack {
    pub fn new(monitor: MonitorCore, nodes: impl IntoIterator<Item = NodeRegistration>) -> Self {
        let (donors, answers) = (BTreeMap::new(), BTreeMap::new());
        let mut rack = Self { now_ns: 0, monitor, donors, answers, requests: 0 };
        for (number, node) in nodes.into_iter().enumerate() {
            rack.monitor.handle_register(0, Token(number as u64), node);
        }
        rack.settle();
        rack
    }

    /// Requests memory for `owner` without waiting, and returns the answer.
    pub fn ask(
        &mut self,
        owner: Owner,
        request: AllocationRequest,
    ) -> Result<Vec<Grant>, RackError> {
        let client_id = request.client_id;
        self.monitor.handle_request(self.now_ns, owner, request).unwrap();
        self.settle();
        self.answers.remove(&client_id).expect("an answer without waiting")
    }

    /// Delivers all messages.
    pub fn settle(&mut self) {
        while let Some(action) = self.monitor.poll_action() {
            let now_ns = self.now_ns;
            match action {
                Action::Reply(_, Reply::Registered(result)) => {
                    let Identity { node, epoch } = result.unwrap().identity;
                    let settings = DonorSettings { total_slabs: SLABS, prepare_timeout_ns: 10 * S };
                    let mut core = DonorCore::new(settings);
                    core.set_epoch(epoch);
                    self.donors.insert(node, (Identity { node, epoch }, core));
                }
                Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
                    let (grant, at_once) = (request.grant, request.at_once);
                    let done = self.at(donor, |core| {
                        let done = core.handle_prepare(now_ns, request);
                        let done = done.and_then(|_| match at_once {
                            true => core.handle_commit(now_ns, grant, donor.epoch),
                            false => Ok(core.status()),
                        });
                        done.map_err(CallError::Refused)
                    });
                    self.monitor.handle_prepared(now_ns, donor, grant, done);
                }
                Action::Call { donor, call: DonorCall::Commit { grant, .. }, .. } => {
                    let done =
                        self.at(donor, |core| core.handle_commit(now_ns, grant, donor.epoch));
                    let done = done.map_err(CallError::Refused);
                    self.monitor.handle_committed(now_ns, donor, grant, done);
                }
                Action::Call { donor, call: DonorCall::Release(grants), .. } => {
                    let done = self.at(donor, |core| release_all(core, now_ns, &grants));
                    self.monitor.handle_released(now_ns, donor, &grants, Ok(done));
                }
                Action::ReplyRequest { client_id, result } => {
                    self.answers.insert(client_id, result);
                }
                _ => {}
            }
        }
    }

    fn at<T>(&mut self, donor: Identity, call: impl FnOnce(&mut DonorCore) -> T) -> T {
        call(&mut self.donors.get_mut(&donor.node).unwrap().1)
    }

    pub fn release(&mut self, grants: &[Grant]) {
        let leases: Vec<_> = grants.iter().map(|grant| (grant.id, grant.key)).collect();
        self.monitor.handle_release(Token(0), &leases);
        self.settle();
    }
}

fn release_all(core: &mut DonorCore, now_ns: u64, grants: &[GrantId]) -> DonorStatus {
    for grant in grants {
        core.handle_release(now_ns, *grant);
    }
    while let Some(DonorAction::FreeSlabs { grant, .. }) = core.poll_action() {
        core.handle_freed(grant);
    }
    core.status()
}
