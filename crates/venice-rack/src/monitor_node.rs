//! The Monitor Node without I/O: the core, and around it the callers, the writes to the store and
//! the changes of peers.
//!
//! [`MonitorNode`] takes calls, donors' answers, results of writes, changes of peers and the time
//! (`handle_*`). Its outputs ([`MonitorNode::poll_output`]) are to be performed in order, all of
//! them before the next input. It has none while a write is under way: whoever performs one passes
//! its result ([`MonitorNode::handle_written`]) and, after a conflict, the changes of peers
//! ([`MonitorNode::handle_news`]) until [`MonitorNode::takes_input`].
//!
//! `venice-monitor` runs it on sockets and a store, `venice-sim` in virtual time.

mod calls;
mod membership;
mod pending;
mod writing;

pub use calls::{Call, DonorAnswer, DonorCall, Order, Reply};
pub use membership::{FRESH_FOR_NS, Membership, Sign};
pub use pending::PendingRequest;

use crate::monitor::{
    Action, CallError, Change, Event, MonitorCore, RecordKey, Sight, Token, View,
};
use crate::pausable_clock::PausableClock;
use crate::queueing::Asked;
use crate::types::{Grant, HeartbeatAck, HeartbeatReport, Identity, RackError};
use pending::PendingCall;
use std::collections::{BTreeMap, VecDeque};
use writing::{Obstacle, Stage};

/// The time of an input.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// A clock that never goes backwards, in nanoseconds. Pauses of the process may be part of it:
    /// see [`PausableClock`].
    pub clock_ns: u64,
    /// The time of day, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The latest date of certificates, signed or being signed, in milliseconds since 1970.
    pub signed_until_ms: u64,
}

/// An output, to be performed before the next one is polled.
#[derive(Debug)]
pub enum Output {
    /// Make the changes durable if all conditions hold, then [`MonitorNode::handle_written`]. There
    /// are no conditions if no one else writes to the store.
    Write {
        /// The records' revisions.
        conditions: Vec<Sight>,
        /// The changes.
        changes: Vec<Change>,
    },
    /// Begin a call, whose result goes to [`MonitorNode::handle_returned`].
    Call {
        /// The donor.
        donor: Identity,
        /// Its node's name.
        name: String,
        /// The address of its gRPC service.
        addr: String,
        /// The call.
        call: DonorCall,
    },
    /// Answer a call.
    Reply(Token, Reply),
    /// Answer all calls of a request with its grants.
    Granted(PendingRequest, Vec<Grant>),
    /// Write to the log and to the list of events.
    Note(Event),
    /// Apply the core's revocations: they may have changed since the last time, or the start.
    Revoked,
}

/// The result of a write.
#[derive(Debug, Clone)]
pub enum Written {
    /// The changes are durable.
    Made {
        /// Their revision; any where no one else writes to the store.
        revision: u64,
    },
    /// A condition did not hold; nothing was changed.
    Conflict {
        /// The revisions of the records that are there.
        found: BTreeMap<RecordKey, u64>,
    },
    /// The disk is full; nothing was changed.
    NoRoom {
        /// The reason.
        why: String,
    },
}

/// The Monitor Node.
pub struct MonitorNode {
    core: MonitorCore,
    clock: PausableClock,
    /// The store as last seen; `None` if no one else writes to it.
    view: Option<View>,
    /// Longest lifetime of a certificate, in milliseconds.
    certificate_life_ms: u64,
    stage: Stage,
    /// The reason why no change is made.
    obstacle: Option<Obstacle>,
    /// Outputs ahead of the core's actions.
    outputs: VecDeque<Output>,
    /// Changes to be written before anything else.
    unwritten: VecDeque<Vec<Change>>,
    /// Actions that wait for the changes that were written with earlier ones.
    later: VecDeque<Action>,
    pending: BTreeMap<Token, PendingCall>,
    requests: BTreeMap<u128, PendingRequest>,
}

impl MonitorNode {
    /// Creates a Monitor Node. `view` is the store that it shares with peers, at the time of `core`.
    /// `clock_ns` is as in [`Now`], `certificate_life_ms` the longest lifetime of a certificate in
    /// milliseconds.
    pub fn new(
        core: MonitorCore,
        view: Option<View>,
        clock_ns: u64,
        certificate_life_ms: u64,
    ) -> Self {
        let mut node = Self {
            core,
            clock: PausableClock::new(clock_ns),
            view,
            certificate_life_ms,
            stage: Stage::Idle,
            obstacle: None,
            outputs: VecDeque::new(),
            unwritten: VecDeque::new(),
            later: VecDeque::new(),
            pending: BTreeMap::new(),
            requests: BTreeMap::new(),
        };
        node.core.handle_certificate_life(certificate_life_ms);
        node
    }

    /// Returns the tables.
    pub fn core(&self) -> &MonitorCore {
        &self.core
    }

    /// Returns the store that it shares with peers, as last seen.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// Returns the time of the tables when the clock shows `clock_ns`.
    pub fn now_ns(&self, clock_ns: u64) -> u64 {
        self.clock.now_ns(clock_ns)
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called, as [`Self::now_ns`]
    /// counts.
    pub fn poll_timeout(&self) -> u64 {
        self.retry_ns().unwrap_or_else(|| self.core.poll_timeout())
    }

    /// Handles deadlines.
    pub fn handle_timeout(&mut self, now: Now) {
        let now_ns = self.clock.now_ns(now.clock_ns);
        match self.retry_ns() {
            Some(retry_ns) if now_ns >= retry_ns => self.retry(),
            Some(_) => {}
            None => self.core.handle_timeout(now_ns),
        }
    }

    /// Records that the process runs and that all reports received so far are handled, every
    /// [`TICK_NS`](crate::pausable_clock::TICK_NS). Returns the time that does not count, in
    /// nanoseconds: the process stood still.
    pub fn handle_tick(&mut self, now: Now) -> u64 {
        let missed_ns = self.clock.handle_tick(now.clock_ns);
        if self.core.handle_wall_clock(self.clock.now_ns(now.clock_ns), now.wall_ms) {
            self.outputs.push_back(Output::Revoked);
        }
        missed_ns
    }

    /// Handles a report of the node `name`. `revoked_besides` of it has only revocations that this
    /// rack has made.
    ///
    /// # Errors
    /// [`RackError::NotRegistered`] if the node is not registered under that name, or not as it
    /// reports.
    pub fn handle_report(
        &mut self,
        now: Now,
        name: &str,
        mut report: HeartbeatReport,
    ) -> Result<HeartbeatAck, RackError> {
        if self.core.name_of(report.identity.node) != name {
            return Err(RackError::NotRegistered);
        }
        let now_ns = self.clock.now_ns(now.clock_ns);
        let reported = std::mem::take(&mut report.door.revoked_besides);
        if self.core.handle_reported_revocations(now_ns, now.signed_until_ms, reported) {
            self.outputs.push_back(Output::Revoked);
        }
        self.core.handle_heartbeat(now_ns, report)
    }

    /// Handles the result of a call to a donor.
    pub fn handle_returned(
        &mut self,
        now: Now,
        donor: Identity,
        call: DonorCall,
        result: Result<DonorAnswer, CallError>,
    ) {
        self.core.handle_returned(self.clock.now_ns(now.clock_ns), donor, call, result);
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            if !matches!(self.stage, Stage::Idle) {
                return None;
            }
            match self.next_action()? {
                Action::Store(changes) => return Some(self.begin_write(changes)),
                action => self.perform(action),
            }
        }
    }

    /// Makes an output of an action; an answer without a caller is none.
    fn perform(&mut self, action: Action) {
        match action {
            Action::Store(_) => unreachable!("writes are begun separately"),
            Action::Call { donor, addr, call } => {
                let name = self.core.name_of(donor.node);
                self.outputs.push_back(Output::Call { donor, name, addr, call });
            }
            Action::ReplyRequest { client_id, result } => self.reply_request(client_id, result),
            Action::ReplyStanding { client_id, standing } => {
                for token in self.requests.remove(&client_id).into_iter().flat_map(|it| it.calls) {
                    let asked = Ok(Asked::Waits(standing.clone()));
                    self.outputs.push_back(Output::Reply(token, Reply::Asked(asked)));
                }
            }
            Action::Reply(token, reply) => self.reply(token, reply),
            Action::Note(event) => self.outputs.push_back(Output::Note(event)),
        }
    }
}
