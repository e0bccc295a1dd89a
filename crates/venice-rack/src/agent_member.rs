//! An agent's membership in the rack, without I/O: registration, and reports to every Monitor Node.
//!
//! [`AgentMember`] takes the results of calls and the time (`handle_*`), and returns what to do next
//! ([`AgentMember::poll_output`]). The Monitor Nodes are independent: a dead or slow one delays no
//! report to the others. `venice-agent` runs it on connections, `venice-sim` in virtual time.

use crate::NS_PER_MS;
use crate::types::{CalledBack, HeartbeatAck, Identity, NodeRegistration, Registered};
use std::collections::VecDeque;

/// First and longest pause between two attempts to register.
const MIN_PAUSE_NS: u64 = 100_000_000;
const MAX_PAUSE_NS: u64 = 2_000_000_000;
/// Time limit of a report, a registration on its way included.
const REPORT_WITHIN_NS: u64 = 5_000_000_000;
/// Pause before the next attempt to reach a Monitor Node that does not answer.
const PAUSE_NS: u64 = 1_000_000_000;

/// A report that is under way: to which Monitor Node, by its index, and until when. It goes back with
/// the result: those of an earlier registration are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportCall {
    /// The Monitor Node.
    pub at: usize,
    /// The number of the registration.
    round: u32,
    /// The time limit.
    pub until_ns: u64,
}

/// An output of a member.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Register at any Monitor Node, then [`AgentMember::handle_registered`].
    Register,
    /// Write a new report: those sent from now on are this one.
    Write,
    /// Send the newest report, then [`AgentMember::handle_report_result`].
    Report(ReportCall),
    /// Register at that Monitor Node, then [`AgentMember::handle_known_again`].
    RegisterAt(ReportCall),
    /// These grants are preempted, and no others.
    CalledBack(Vec<CalledBack>),
    /// The state of the rack according to the first Monitor Node that answers, so that they need not
    /// agree at every moment.
    Follow(Box<HeartbeatAck>),
}

/// The result of a report.
#[derive(Debug)]
pub enum ReportResult {
    /// The Monitor Node acknowledges it.
    Acknowledged(Box<HeartbeatAck>),
    /// The Monitor Node does not list this agent: it may have restarted, or not know of the
    /// registration yet.
    NotRegistered,
    /// No usable answer.
    None,
}

/// A Monitor Node as seen by the agent.
#[derive(Debug, Clone)]
struct Monitor {
    state: State,
    /// True if it has not been sent the newest report.
    is_behind: bool,
    /// False after a report without an answer.
    answers: bool,
    called_back: Vec<CalledBack>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Reporting,
    /// It did not answer.
    Paused {
        until_ns: u64,
    },
}

/// An agent as a member of the rack. Times are of one clock, in nanoseconds.
#[derive(Debug)]
pub struct AgentMember {
    registration: NodeRegistration,
    /// `None` while it registers.
    registered: Option<Registered>,
    /// Number of registrations.
    round: u32,
    pause_ns: u64,
    /// Time of the next attempt to register, or of the next report; `None` during an attempt.
    due_ns: Option<u64>,
    monitors: Vec<Monitor>,
    outputs: VecDeque<Output>,
}

impl AgentMember {
    /// Creates a member that registers at once. `monitors` is the number of Monitor Nodes.
    pub fn new(registration: NodeRegistration, monitors: usize) -> Self {
        let monitor = Monitor {
            state: State::Idle,
            is_behind: false,
            answers: true,
            called_back: Vec::new(),
        };
        Self {
            registration,
            registered: None,
            round: 0,
            pause_ns: 0,
            due_ns: None,
            monitors: vec![monitor; monitors],
            outputs: [Output::Register].into(),
        }
    }

    /// Returns what it registers with.
    pub fn registration(&self) -> &NodeRegistration {
        &self.registration
    }

    /// Returns its registration; `None` while it has none.
    pub fn registered(&self) -> Option<Registered> {
        self.registered
    }

    /// Returns the identity that it was given last.
    pub fn identity(&self) -> Option<Identity> {
        self.registration.previous
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called; `None`: only once there is
    /// a result.
    pub fn poll_timeout(&self) -> Option<u64> {
        let pauses = self.monitors.iter().filter_map(|monitor| match monitor.state {
            State::Paused { until_ns } => Some(until_ns),
            State::Idle | State::Reporting => None,
        });
        pauses.chain(self.due_ns).min()
    }

    /// Begins what is due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        for at in 0..self.monitors.len() {
            let state = &mut self.monitors[at].state;
            if matches!(state, State::Paused { until_ns } if *until_ns <= now_ns) {
                *state = State::Idle;
                self.tell(now_ns, at);
            }
        }
        if self.due_ns.is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        match self.registered {
            None => {
                self.due_ns = None;
                self.outputs.push_back(Output::Register);
            }
            Some(registered) => {
                let interval_ns = registered.heartbeat_interval_ms.max(1) * NS_PER_MS;
                self.due_ns = Some(now_ns.saturating_add(interval_ns));
                self.handle_change(now_ns);
            }
        }
    }

    /// Reports a change of the donor to all Monitor Nodes at once: a queued request may wait for
    /// memory that became free.
    pub fn handle_change(&mut self, now_ns: u64) {
        if self.registered.is_none() {
            return;
        }
        self.outputs.push_back(Output::Write);
        for at in 0..self.monitors.len() {
            self.monitors[at].is_behind = true;
            self.tell(now_ns, at);
        }
    }

    /// Sends the newest report, unless one is on its way.
    fn tell(&mut self, now_ns: u64, at: usize) {
        let monitor = &mut self.monitors[at];
        if monitor.state == State::Idle && monitor.is_behind {
            (monitor.state, monitor.is_behind) = (State::Reporting, false);
            let until_ns = now_ns.saturating_add(REPORT_WITHIN_NS);
            self.outputs.push_back(Output::Report(ReportCall { at, round: self.round, until_ns }));
        }
    }

    /// Handles the result of [`Output::Register`]; `None`: it failed.
    pub fn handle_registered(&mut self, now_ns: u64, registered: Option<Registered>) {
        let Some(registered) = registered else {
            self.pause_ns = (2 * self.pause_ns).clamp(MIN_PAUSE_NS, MAX_PAUSE_NS);
            self.due_ns = Some(now_ns.saturating_add(self.pause_ns));
            return;
        };
        self.registration.previous = Some(registered.identity);
        self.registration.secret = registered.secret;
        self.registered = Some(registered);
        (self.pause_ns, self.due_ns) = (0, Some(now_ns));
        self.handle_timeout(now_ns);
    }

    /// Handles the result of [`Output::Report`].
    pub fn handle_report_result(&mut self, now_ns: u64, call: ReportCall, result: ReportResult) {
        if !self.is_current(call) {
            return;
        }
        match result {
            ReportResult::Acknowledged(mut ack) => {
                let monitor = &mut self.monitors[call.at];
                (monitor.state, monitor.answers) = (State::Idle, true);
                monitor.called_back = std::mem::take(&mut ack.called_back);
                self.call_back();
                if !self.monitors[..call.at].iter().any(|monitor| monitor.answers) {
                    self.outputs.push_back(Output::Follow(ack));
                }
                self.tell(now_ns, call.at);
            }
            ReportResult::NotRegistered => self.outputs.push_back(Output::RegisterAt(call)),
            ReportResult::None => self.note_silence(now_ns, call.at),
        }
    }

    /// Handles the registration asked for by [`Output::RegisterAt`]; one that fails is a report
    /// without an answer.
    pub fn handle_known_again(&mut self, call: ReportCall, registered: Registered) {
        let Some(present) = self.registered.filter(|_| self.is_current(call)) else { return };
        if registered.identity == present.identity {
            self.outputs.push_back(Output::Report(call));
        } else {
            // It must register again.
            let next = Self::new(self.registration.clone(), self.monitors.len());
            *self = Self { round: self.round + 1, ..next };
        }
    }

    fn is_current(&self, call: ReportCall) -> bool {
        self.registered.is_some() && call.round == self.round
    }

    fn note_silence(&mut self, now_ns: u64, at: usize) {
        let monitor = &mut self.monitors[at];
        monitor.state = State::Paused { until_ns: now_ns.saturating_add(PAUSE_NS) };
        monitor.answers = false;
        monitor.called_back.clear();
        self.call_back();
    }

    fn call_back(&mut self) {
        let all = self.monitors.iter().flat_map(|monitor| monitor.called_back.clone());
        self.outputs.push_back(Output::CalledBack(all.collect()));
    }
}
