//! A donor's agent: the real donor's logic, and around it the behaviour of `venice-agent`.
//!
//! It joins by the first Monitor Node that takes its call, reports to each of them every second and
//! when memory becomes free, and executes the answers. It wipes ended grants before their memory is
//! free, and answers a release when that is done. Its time stands still while it does not run. When
//! it dies it loses all state; its address stays.

mod lender;
mod member;
mod transfer;

use std::collections::BTreeMap;

use venice_rack::agent_member::{AgentMember, ReportCall};
use venice_rack::donor::{DonorCore, DonorSettings};
use venice_rack::monitor_node::DonorCall;
use venice_rack::pausable_clock::PausableClock;
use venice_rack::types::{
    HeartbeatReport, Identity, LeaseState, NodeRegistration, Pong, ResourceKind, ResourceSpec,
};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::clock::Clock;
use super::desk::{Desk, Fact};
use super::messages::{Broken, CallId, Request, Response};
use super::sabotage::Sabotage;
use super::scenario::Scenario;

/// The unit of storage.
pub(super) const STORAGE_UNIT_BYTES: u64 = ResourceKind::Storage.spec().unit_bytes;

/// Devices that every donor lends, whole or by bytes, besides memory.
pub(super) const DEVICES: [(ResourceKind, &str, u64); 3] = [
    (ResourceKind::Accelerator, "gpu0", 0),
    (ResourceKind::Nic, "eth1", 0),
    (ResourceKind::Storage, "sdb", 6),
];

/// An agent's process, and the state that outlives it.
pub(super) struct Agent {
    number: u16,
    monitors: u16,
    clock: Clock,
    sabotage: Option<Sabotage>,
    slabs: u32,
    devices: bool,
    /// Number of processes so far.
    starts: u64,
    /// Number of faults that keep the devices broken.
    broken: u32,
    life: Option<Life>,
}

/// State of one process.
struct Life {
    core: DonorCore,
    attention: PausableClock,
    member: AgentMember,
    /// Time on its clock for which a timer is set.
    member_due_ns: Option<u64>,
    /// The newest report.
    report: Option<HeartbeatReport>,
    /// Numbers of free slabs.
    pool: Vec<u32>,
    of_grants: BTreeMap<GrantId, Vec<u32>>,
    /// Grants that were transferred, and are answered all the same: sabotage.
    stale: BTreeMap<GrantId, GrantKey>,
    /// Releases that wait until all is wiped.
    releases: Vec<(CallId, Vec<GrantId>)>,
    /// Time of the core's next timer, if one is set.
    looks_ns: Option<u64>,
    /// Slabs to be reclaimed for its machine.
    wanted_back: u32,
}

/// Purpose of an agent's call.
#[derive(Clone, Copy, Debug)]
pub(super) enum AgentTag {
    /// Registration at that Monitor Node.
    Join { at: u16 },
    /// Report, or registration on its way.
    Report(ReportCall),
}

/// An agent's timer.
#[derive(Clone, Copy, Debug)]
pub(super) enum AgentTimer {
    /// A report, or an attempt to reach a Monitor Node, is due.
    Member,
    /// Deadlines may have expired.
    Look,
    /// A grant's slabs are wiped.
    Wiped(GrantId),
}

impl Agent {
    pub(super) fn new(
        scenario: &Scenario,
        number: u16,
        clock: Clock,
        sabotage: Option<Sabotage>,
    ) -> Self {
        Self {
            number,
            monitors: scenario.monitors,
            clock,
            sabotage,
            slabs: scenario.slabs,
            devices: scenario.devices,
            starts: 0,
            broken: 0,
            life: None,
        }
    }

    /// Starts a process.
    pub(super) fn start(&mut self, desk: &mut Desk<'_>) {
        self.starts += 1;
        let local_ns = self.clock.at(desk.now_ns);
        let settings =
            DonorSettings { total_slabs: self.slabs, prepare_timeout_ns: 10_000_000_000 };
        let mut core = DonorCore::new(settings);
        core.offer_devices(local_ns, self.offered());
        self.life = Some(Life {
            core,
            attention: PausableClock::new(local_ns),
            member: AgentMember::new(self.registration(), usize::from(self.monitors)),
            member_due_ns: None,
            report: None,
            pool: (0..self.slabs).rev().collect(),
            of_grants: BTreeMap::new(),
            stale: BTreeMap::new(),
            releases: Vec::new(),
            looks_ns: None,
            wanted_back: 0,
        });
        self.set_health(desk);
        desk.listen();
        self.continue_membership(desk);
    }

    /// Ends the process.
    pub(super) fn crash(&mut self, desk: &mut Desk<'_>) {
        self.life = None;
        desk.fact(Fact::Dies { donor: self.number });
    }

    pub(super) fn request(&mut self, desk: &mut Desk<'_>, call: CallId, request: Request) {
        let Some(life) = &mut self.life else { return };
        match request {
            Request::Donor(asked) => match *asked {
                DonorCall::Ping => {
                    let instance = life.member.registration().instance;
                    let pong = Pong { name: name_of(self.number), instance };
                    desk.reply(call, Response::Pong(pong));
                }
                DonorCall::Prepare(request) => self.prepare(desk, call, request),
                DonorCall::Commit { grant, donor_epoch } => {
                    let status = self.commit(desk, grant, donor_epoch);
                    desk.reply(call, Response::Status(status));
                }
                DonorCall::Abort(grant) => self.abort(desk, call, grant),
                DonorCall::Release(grants) => self.release(desk, call, grants),
                DonorCall::PrepareTransfer(step) => self.prepare_transfer(desk, call, step),
                DonorCall::CommitTransfer(step) => self.commit_transfer(desk, call, step),
                DonorCall::AbortTransfer { from, grant } => {
                    self.abort_transfer(desk, call, (from, grant));
                }
            },
            Request::Return(leases) => {
                let core = &life.core;
                let fits = |lease: &&(GrantId, _)| {
                    core.grant(lease.0).is_some_and(|view| view.key == lease.1)
                };
                let grants = leases.iter().filter(fits).map(|lease| lease.0).collect();
                self.release(desk, call, grants);
            }
            Request::Renew(grant, key) => {
                let local_ns = life.attention.now_ns(self.clock.at(desk.now_ns));
                let state: LeaseState = life.core.handle_renew(local_ns, grant, key);
                let state = life.as_sabotaged(grant, key, state);
                if matches!(state, LeaseState::Live { .. }) {
                    desk.fact(Fact::Serves { donor: self.number, grant });
                }
                self.carry_out(desk);
                desk.reply(call, Response::Lease(state));
            }
            other => unreachable!("an agent has no request {}", other.name()),
        }
    }

    pub(super) fn outcome(
        &mut self,
        desk: &mut Desk<'_>,
        tag: AgentTag,
        outcome: Result<Response, Broken>,
    ) {
        if self.life.is_none() {
            return;
        }
        match tag {
            AgentTag::Join { at } => self.joined(desk, at, outcome),
            AgentTag::Report(call) => self.reported(desk, call, outcome),
        }
    }

    pub(super) fn timer(&mut self, desk: &mut Desk<'_>, timer: AgentTimer) {
        match timer {
            AgentTimer::Member => self.member_due(desk),
            AgentTimer::Look => self.look(desk),
            AgentTimer::Wiped(grant) => self.wiped(desk, grant),
        }
    }

    /// Reclaims so many slabs for local programs.
    pub(super) fn want_back(&mut self, desk: &mut Desk<'_>, slabs: u32) {
        let now_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        life.wanted_back = slabs;
        let local_ns = life.attention.now_ns(now_ns);
        life.core.handle_want_back(local_ns, slabs, Some(15_000_000_000));
        self.look(desk);
    }

    /// Breaks or repairs its devices.
    pub(super) fn break_devices(&mut self, desk: &mut Desk<'_>, begins: bool) {
        self.broken = if begins { self.broken + 1 } else { self.broken - 1 };
        self.set_health(desk);
    }

    fn set_health(&mut self, _: &mut Desk<'_>) {
        let fault = if self.broken > 0 { "it does not answer" } else { "" };
        let offered: Vec<ResourceSpec> = self.offered().collect();
        let Some(life) = &mut self.life else { return };
        for spec in offered {
            life.core.handle_device_health(spec.kind, &spec.address, fault);
        }
    }

    fn offered(&self) -> impl Iterator<Item = ResourceSpec> + use<> {
        let count = if self.devices { DEVICES.len() } else { 0 };
        DEVICES.into_iter().take(count).map(|(kind, address, units)| ResourceSpec {
            kind,
            address: address.to_owned(),
            bytes: units * STORAGE_UNIT_BYTES,
            slab_bytes: kind.spec().unit_bytes,
            capabilities: Vec::new(),
        })
    }

    fn registration(&self) -> NodeRegistration {
        let memory = ResourceSpec {
            kind: ResourceKind::Memory,
            address: String::new(),
            bytes: u64::from(self.slabs) * SLAB_BYTES,
            slab_bytes: SLAB_BYTES,
            capabilities: Vec::new(),
        };
        NodeRegistration {
            name: name_of(self.number),
            instance: u64::from(self.number) << 32 | self.starts,
            pid: None,
            control_addr: name_of(self.number),
            udp_addr: String::new(),
            shm_socket: String::new(),
            resources: [memory].into_iter().chain(self.offered()).collect(),
            previous: None,
            secret: None,
            is_plain: false,
            relay: None,
            link: String::new(),
            is_pool: false,
        }
    }

    /// Returns the donor core of a living process.
    pub(super) fn core(&self) -> Option<&DonorCore> {
        self.life.as_ref().map(|life| &life.core)
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        self.life.as_ref()?.member.identity()
    }
}

/// Returns a donor's name and address.
pub(super) fn name_of(number: u16) -> String {
    format!("donor{number}")
}

/// Returns the donor of that name.
pub(super) fn number_of(name: &str) -> Option<u16> {
    name.strip_prefix("donor")?.parse().ok()
}
