//! A Monitor Node: the logic of `venice-monitor`, and around it a file or a store in virtual time.
//!
//! It handles ready input one by one and performs the logic's actions in order: while a change is
//! being written nothing else happens. A lone one writes to a file. Several share a store, make
//! each change conditionally, receive the others' changes by the watch, and serve as long as they
//! observe their own signs of life. A process that dies loses all but the store.

mod driver;
mod membership;
mod opening;
mod performing;

use std::collections::{BTreeMap, VecDeque};

use venice_rack::monitor::{Change, MonitorCore, MonitorSettings, Record, RecordKey};
use venice_rack::monitor_node::{DonorCall, Written};
use venice_rack::placement::Policy;
use venice_rack::types::Identity;

use self::driver::Driver;
use self::membership::Member;
use super::clock::Clock;
use super::desk::Desk;
use super::messages::{Batch, Broken, CallId, Request, Response};
use super::party::Party;
use super::scenario::{Clocks, Scenario};

/// A Monitor Node's process, its machine, and its file.
pub(super) struct Monitor {
    number: u16,
    settings: MonitorSettings,
    donor_timeout_ns: u64,
    clocks: Clocks,
    clock: Clock,
    /// Records in its file when it is alone.
    file: BTreeMap<RecordKey, Record>,
    is_alone: bool,
    starts: u64,
    state: State,
    /// Batches of the watch that are not handled yet.
    told: VecDeque<Batch>,
}

enum State {
    Down,
    /// It is a member, or about to be, and reads the store.
    Opening(Option<Member>),
    Serving(Box<Driver>),
}

/// Purpose of a Monitor Node's call.
#[derive(Clone, Debug)]
pub(super) enum MonitorTag {
    /// A call to a donor; `is_again`: over a new connection, after one that broke.
    Donor {
        to: Party,
        donor: Identity,
        call: Box<DonorCall>,
        is_again: bool,
    },
    Join,
    Load,
    /// A transaction, with the time of its first attempt.
    Transact {
        request: Box<Request>,
        since_ns: u64,
    },
    Sign {
        number: u64,
    },
}

/// A Monitor Node's timer.
#[derive(Clone, Debug)]
pub(super) enum MonitorTimer {
    /// The logic's timer.
    Timeout,
    /// A periodic tick of the pausable clock.
    Tick,
    /// The changes are in the file.
    Written(Vec<Change>),
    /// Their write is reported.
    Made,
    /// A sign of life is due.
    Sign,
    /// Its own signs may be too old.
    Tenure,
    /// A transaction is retried.
    Again { request: Box<Request>, since_ns: u64 },
    /// Opening is retried.
    Open,
}

impl Monitor {
    pub(super) fn new(scenario: &Scenario, number: u16, clock: Clock) -> Self {
        Self {
            number,
            settings: settings(scenario),
            donor_timeout_ns: 2_000_000_000.min(scenario.lease.0 / 4),
            clocks: scenario.clocks,
            clock,
            file: BTreeMap::new(),
            is_alone: scenario.monitors == 1,
            starts: 0,
            state: State::Down,
            told: VecDeque::new(),
        }
    }

    /// Starts a process.
    pub(super) fn start(&mut self, desk: &mut Desk<'_>) {
        self.starts += 1;
        self.clock = self.clock.set(&self.clocks, desk.rng);
        if self.is_alone {
            let records: Vec<Record> = self.file.values().cloned().collect();
            self.serve(desk, records, None);
        } else {
            self.open(desk);
        }
    }

    /// Ends the process.
    pub(super) fn crash(&mut self) {
        self.state = State::Down;
        self.told.clear();
    }

    /// Receives a call.
    pub(super) fn request(&mut self, desk: &mut Desk<'_>, call: CallId, request: Request) {
        if let Some(driver) = self.driver_mut() {
            driver.inputs.push_back((call, request));
            self.pump(desk);
        }
    }

    /// Receives the notice that a caller stopped waiting.
    pub(super) fn hangs_up(&mut self, call: CallId) {
        if let Some(driver) = self.driver_mut() {
            driver.hangs_up(call);
        }
    }

    /// Receives the outcome of a call.
    pub(super) fn outcome(
        &mut self,
        desk: &mut Desk<'_>,
        tag: MonitorTag,
        outcome: Result<Response, Broken>,
    ) {
        match tag {
            MonitorTag::Join => self.joined(desk, outcome),
            MonitorTag::Load => self.loaded(desk, outcome),
            MonitorTag::Donor { to, donor, call, is_again } => {
                self.donor_answered(desk, (to, donor, call, is_again), outcome);
            }
            MonitorTag::Transact { request, since_ns } => {
                self.transacted(desk, request, since_ns, outcome);
            }
            MonitorTag::Sign { number } => self.signed(desk, number, outcome),
        }
    }

    pub(super) fn timer(&mut self, desk: &mut Desk<'_>, timer: MonitorTimer) {
        match timer {
            MonitorTimer::Timeout => self.timeout(desk),
            MonitorTimer::Tick => self.tick(desk),
            MonitorTimer::Written(changes) => self.written(&changes),
            MonitorTimer::Made => self.made(desk, Written::Made { revision: 0 }),
            MonitorTimer::Sign => self.give_sign(desk),
            MonitorTimer::Tenure => self.check_tenure(desk),
            MonitorTimer::Again { request, since_ns } => self.transact(desk, request, since_ns),
            MonitorTimer::Open => self.open(desk),
        }
    }

    /// Receives a batch of the store's watch.
    pub(super) fn watch(&mut self, desk: &mut Desk<'_>, batch: Batch) {
        self.told.push_back(batch);
        self.pump(desk);
    }

    /// Returns its logic, while it serves.
    pub(super) fn core(&self) -> Option<&MonitorCore> {
        match &self.state {
            State::Serving(driver) => Some(driver.node.core()),
            State::Down | State::Opening(_) => None,
        }
    }

    /// Returns a record in its state.
    pub(super) fn known(&self, key: &RecordKey) -> Option<&Record> {
        match &self.state {
            State::Serving(driver) => match driver.node.view() {
                Some(view) => view.get(key),
                None => self.file.get(key),
            },
            State::Down | State::Opening(_) => None,
        }
    }

    /// Returns the records in its file.
    pub(super) fn file(&self) -> &BTreeMap<RecordKey, Record> {
        &self.file
    }

    fn driver_mut(&mut self) -> Option<&mut Driver> {
        match &mut self.state {
            State::Serving(driver) => Some(driver),
            State::Down | State::Opening(_) => None,
        }
    }

    fn member_mut(&mut self) -> Option<&mut Member> {
        match &mut self.state {
            State::Serving(driver) => driver.member.as_mut(),
            State::Opening(member) => member.as_mut(),
            State::Down => None,
        }
    }
}

/// Applies changes to records.
fn enter(records: &mut BTreeMap<RecordKey, Record>, changes: &[Change]) {
    for change in changes {
        match change.clone().into_record() {
            Some(record) => drop(records.insert(change.key(), record)),
            None => drop(records.remove(&change.key())),
        }
    }
}

/// Returns the daemon's default settings, with the scenario's lease.
pub(super) fn settings(scenario: &Scenario) -> MonitorSettings {
    MonitorSettings {
        heartbeat_interval_ns: 1_000_000_000,
        missed_heartbeats: 3,
        lease_ns: scenario.lease.0,
        request_timeout_ns: scenario.lease.0 / 2,
        preempt_notice_ns: 6_000_000_000,
        is_plain: false,
        way: |_, _, _| None,
        distance: |_, _| Box::new(|_| None),
        neighbours: |_, _| Vec::new(),
        link_bps: |_| None,
        placement: Policy::default(),
        forecast: Default::default(),
        waiting: venice_rack::queueing::WaitingBounds { of_user: usize::MAX, all: usize::MAX },
    }
}
