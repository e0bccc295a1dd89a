//! A donor's agent: the logic of `venice-agent`, on slabs that are numbers.
//!
//! When it dies it loses all state; its address stays.

mod lender;
mod member;

use std::collections::BTreeMap;

use venice_rack::agent_member::{AgentMember, ReportCall};
use venice_rack::donor::{DonorCore, DonorSettings};
use venice_rack::donor_node::DonorNode;
use venice_rack::monitor::Token;
use venice_rack::types::{
    HeartbeatReport, Identity, NodeRegistration, Pong, ResourceKind, ResourceSpec,
};
use venice_wire::{GrantId, SLAB_BYTES};

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
    node: DonorNode,
    member: AgentMember,
    /// Time on its clock for which a timer is set.
    member_due_ns: Option<u64>,
    /// The newest report.
    report: Option<HeartbeatReport>,
    /// Numbers of free slabs.
    pool: Vec<u32>,
    of_grants: BTreeMap<GrantId, Vec<u32>>,
    /// Epoch of the order to set aside or to lend that is being executed.
    order_epoch: Option<u64>,
    /// Time of the next timer for deadlines, if one is set.
    looks_ns: Option<u64>,
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
    /// A successor's slabs are no longer read for the old owner.
    Unused(GrantId),
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
        let registration = self.registration();
        let pong = Pong { name: name_of(self.number), instance: registration.instance };
        let mut node = DonorNode::new(settings, pong, local_ns);
        node.core_mut().offer_devices(local_ns, self.offered());
        self.life = Some(Life {
            node,
            member: AgentMember::new(registration, usize::from(self.monitors)),
            member_due_ns: None,
            report: None,
            pool: (0..self.slabs).rev().collect(),
            of_grants: BTreeMap::new(),
            order_epoch: None,
            looks_ns: None,
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
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        match request {
            Request::Donor(asked) => self.order(desk, call, *asked),
            Request::Return(leases) => life.node.handle_give_back(clock_ns, Token(call), &leases),
            Request::Renew(grant, key) => self.renew(desk, call, (grant, key)),
            other => unreachable!("an agent has no request {}", other.name()),
        }
        self.settle(desk);
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
            AgentTimer::Look => self.settle(desk),
            AgentTimer::Wiped(grant) => self.wiped(desk, grant),
            AgentTimer::Unused(grant) => {
                let Some(life) = &mut self.life else { return };
                life.node.handle_unused(grant);
                self.settle(desk);
            }
        }
    }

    /// Reclaims so many slabs for local programs.
    pub(super) fn want_back(&mut self, desk: &mut Desk<'_>, slabs: u32) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        let now_ns = life.node.now_ns(clock_ns);
        life.node.core_mut().handle_want_back(now_ns, slabs, Some(15_000_000_000));
        self.settle(desk);
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
            life.node.core_mut().handle_device_health(spec.kind, &spec.address, fault);
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
        self.life.as_ref().map(|life| life.node.core())
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
