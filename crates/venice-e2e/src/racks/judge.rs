//! Feeds the notes of all processes to the simulator's checkers.

mod streams;

use std::collections::{BTreeMap, BTreeSet};

use venice_sim::checkers::{
    AtomicId, Change, Checker, ConversationId, Direction, Oracle, ReadId, RegionId, WriteId,
    Writing,
};
use venice_sim::scenario::{Kind, Scenario, Workload};

use self::streams::Streams;
use crate::racks::notes::{Note, Source, What, Why};
use crate::racks::plan::{MAX_MESSAGE_BYTES, Port};

/// Time limit of an access after the last fault: a bound for the busiest machine, not an estimate.
pub const PATIENCE_NS: u64 = 60_000_000_000;

/// Results of the checkers.
#[derive(Debug)]
pub struct Judgement {
    /// State of the checkers.
    pub oracle: Oracle,
    /// Accesses that succeeded, by kind; messages that arrived.
    pub succeeded: BTreeMap<&'static str, u64>,
    /// Accesses that failed.
    pub failed: u64,
    /// Links that went down, or could not be made.
    pub downs: u64,
}

/// Evaluates the notes in the order of time; if the rack `is_over`, no result may be missing.
pub fn judge(
    scenario: &Scenario,
    port: Port,
    mut notes: Vec<(Source, Note)>,
    ignored: &[Checker],
    is_over: bool,
) -> Judgement {
    notes.sort_by_key(|(_, note)| note.at_ns);
    let is_calm = |(_, note): &&(Source, Note)| note.what == What::Calm;
    let mut judge = Judge {
        oracle: Oracle::default(),
        is_harmless: scenario.is_harmless(),
        workload: scenario.workload,
        calm_ns: notes.iter().find(is_calm).map_or(u64::MAX, |(_, note)| note.at_ns),
        now_ns: 0,
        regions: BTreeMap::new(),
        begun: BTreeMap::new(),
        streams: Streams::default(),
        ends: BTreeMap::new(),
        pending: BTreeMap::new(),
        held: BTreeSet::new(),
        used: BTreeSet::new(),
        succeeded: BTreeMap::new(),
        failed: 0,
        downs: 0,
    };
    judge.oracle.findings.ignore(ignored);
    if port == Port::Shm {
        // Stores into mapped memory are not observed.
        judge.oracle.findings.ignore(&[Checker::Executions]);
    }
    for (source, note) in notes {
        judge.now_ns = note.at_ns;
        judge.hear(source, note.what);
    }
    if is_over {
        judge.end();
    }
    let Judge { oracle, succeeded, failed, downs, .. } = judge;
    Judgement { oracle, succeeded, failed, downs }
}

struct Judge {
    oracle: Oracle,
    is_harmless: bool,
    workload: Workload,
    calm_ns: u64,
    now_ns: u64,
    regions: BTreeMap<u32, RegionId>,
    /// Conversations, by their beginner.
    begun: BTreeMap<u32, Source>,
    streams: Streams,
    /// The conversation of each end of a QPair.
    ends: BTreeMap<(Source, u32), ConversationId>,
    pending: BTreeMap<(Source, u64), Pending>,
    held: BTreeSet<u32>,
    used: BTreeSet<u32>,
    succeeded: BTreeMap<&'static str, u64>,
    failed: u64,
    downs: u64,
}

#[derive(Debug)]
struct Pending {
    asked_ns: u64,
    region: RegionId,
    lane: u32,
    kind: Kind,
    what: Access,
}

#[derive(Debug)]
enum Access {
    Read(ReadId),
    Write(Writing),
    Atomic(AtomicId),
}

impl Pending {
    fn tell(&self) -> String {
        let Self { region, lane, kind, .. } = self;
        format!("a {} of {region:?} over link {lane}", kind.name())
    }
}

impl Judge {
    fn hear(&mut self, source: Source, what: What) {
        match what {
            What::Lent { region, salt } => {
                let counters = self.workload.counters.into();
                let id = self.oracle.add_region(salt, self.workload.region_bytes, counters);
                self.regions.insert(region, id);
            }
            What::Ended { region } => {
                let id = self.regions[&region];
                self.oracle.region(id).is_revoked = true;
            }
            What::Died { process } => self.bury(process),
            What::Calm => {}
            What::Stuck { why } => self.check(Checker::Progress, Err(why)),
            What::Asked { token, region, lane, kind, at, len, write } => {
                let region = self.regions[&region];
                let what = self.ask(region, lane, kind, (at, len), write);
                let pending = Pending { asked_ns: self.now_ns, region, lane, kind, what };
                self.pending.insert((source, token), pending);
            }
            What::AskedAtomic { token, region, lane, word, expected, operand } => {
                let region = self.regions[&region];
                let (kind, change) = change(expected, operand);
                let id = self.oracle.ask_atomic(region, word, lane, change);
                let what = Access::Atomic(id);
                let pending = Pending { asked_ns: self.now_ns, region, lane, kind, what };
                self.pending.insert((source, token), pending);
            }
            What::Withdrawn { token } => {
                if let Some(pending) = self.take(source, token) {
                    self.withdraw(&pending);
                }
            }
            What::Done { token, data } => {
                if let Some(pending) = self.take(source, token) {
                    self.succeed(&pending, &data.0);
                }
            }
            What::Failed { token, why, text } => self.fail(source, token, why, &text),
            What::Down { text } => {
                self.downs += 1;
                self.blame(!self.is_harmless, || format!("{source:?}: {text}"));
            }
            What::Stored { region, at, data } => {
                let region = self.regions[&region];
                self.oracle.executed(self.now_ns, region, at, &data.0);
            }
            What::Holds { region, data } => {
                self.held.insert(region);
                let region = self.regions[&region];
                let (bytes, words) = self.workload.split_window(&data.0);
                let known = self.oracle.region(region);
                let result = known.history.check_memory(bytes);
                let counters = known.counters.check_memory(&words);
                self.check(Checker::History, result.map_err(|what| format!("at the end: {what}")));
                self.check(Checker::Counters, counters);
            }
            What::Uses { region } => drop(self.used.insert(region)),
            What::Revoked { region } => {
                let id = self.regions[&region];
                let result = match self.oracle.region(id).is_revoked {
                    true => Ok(()),
                    false => {
                        Err(format!("{source:?}: got a revocation of {id:?}, which is not revoked"))
                    }
                };
                self.check(Checker::Agreement, result);
            }
            What::Overruns { packets: 0 } => {}
            What::Overruns { packets } => {
                let what = format!("{source:?}: {packets} packets came without credit");
                self.check(Checker::Wire, Err(what));
            }
            What::Began { .. }
            | What::Sent { .. }
            | What::Received { .. }
            | What::Closed { .. } => {
                self.listen(source, what);
            }
            What::StreamBegan { .. }
            | What::StreamSent { .. }
            | What::StreamEnded { .. }
            | What::StreamRead { .. }
            | What::StreamEndSeen { .. }
            | What::StreamClosed { .. } => self.follow(source, what),
        }
    }

    fn listen(&mut self, source: Source, what: What) {
        match what {
            What::Began { conversation } => {
                self.begun.insert(conversation, source);
                self.oracle.conversations.begin_as(ConversationId(conversation));
            }
            What::Sent { conversation, is_there } if self.begun.contains_key(&conversation) => {
                let id = ConversationId(conversation);
                self.oracle.conversations.sent(self.now_ns, id, direction(is_there));
            }
            What::Received { end, is_there, data } => {
                let known = self.ends.get(&(source, end)).copied();
                let received = self.oracle.conversations.received(
                    self.now_ns,
                    known,
                    direction(is_there),
                    MAX_MESSAGE_BYTES,
                    &data.0,
                );
                let result = received.map(|(id, _)| {
                    self.ends.insert((source, end), id);
                    *self.succeeded.entry(Kind::Message.name()).or_default() += 1;
                });
                self.check(Checker::Conversations, result);
            }
            What::Closed { conversation, text } if self.begun.contains_key(&conversation) => {
                self.oracle.conversations.close(ConversationId(conversation));
                self.blame(!self.is_harmless, || format!("{source:?}: a QPair ended: {text}"));
            }
            _ => {}
        }
    }

    fn ask(
        &mut self,
        region: RegionId,
        lane: u32,
        kind: Kind,
        (at, len): (u32, u32),
        write: u32,
    ) -> Access {
        let is_bulk = matches!(kind, Kind::BulkRead | Kind::BulkWrite);
        if matches!(kind, Kind::Read | Kind::BulkRead) {
            let lane = (!is_bulk).then_some(lane);
            return Access::Read(self.oracle.ask_read(region, at, len, lane));
        }
        let (writing, _) = self.oracle.ask_write(region, at, len, lane, is_bulk);
        assert_eq!(writing.write, WriteId(write), "a region's writes are counted by one program");
        Access::Write(writing)
    }

    /// Removes a completed access from the outstanding ones, and checks its time.
    fn take(&mut self, source: Source, token: u64) -> Option<Pending> {
        let Some(pending) = self.pending.remove(&(source, token)) else {
            let what = format!("{source:?}: access {token} is over and was not under way");
            self.check(Checker::Executions, Err(what));
            return None;
        };
        let waited_ns = self.now_ns.saturating_sub(pending.asked_ns.max(self.calm_ns));
        let in_time = waited_ns <= PATIENCE_NS;
        let late = || format!("{source:?}: {} took {waited_ns} ns", pending.tell());
        self.check(Checker::Progress, if in_time { Ok(()) } else { Err(late()) });
        Some(pending)
    }

    fn succeed(&mut self, pending: &Pending, data: &[u8]) {
        *self.succeeded.entry(pending.kind.name()).or_default() += 1;
        match &pending.what {
            Access::Read(read) => {
                self.oracle.lane_works(pending.region, pending.lane);
                self.oracle.read_done(self.now_ns, pending.region, read, data);
            }
            Access::Write(writing) => self.oracle.write_done(self.now_ns, pending.region, *writing),
            Access::Atomic(id) => {
                let old = data.first_chunk().map(|old| u64::from_le_bytes(*old));
                self.oracle.atomic_done(self.now_ns, pending.region, pending.lane, *id, old);
            }
        }
    }

    fn fail(&mut self, source: Source, token: u64, why: Why, text: &str) {
        self.failed += 1;
        let Some(pending) = self.take(source, token) else { return };
        let is_revoked = self.oracle.region(pending.region).is_revoked;
        let is_expected = match why {
            Why::UnknownGrant => is_revoked,
            Why::Down | Why::Uncertain => !self.is_harmless,
            Why::Unmapped => true,
            Why::Refused | Why::Wrong => false,
        };
        self.blame(is_expected, || format!("{source:?}: {} failed: {text}", pending.tell()));
        let is_refused = matches!(why, Why::UnknownGrant | Why::Refused);
        match pending.what {
            Access::Write(writing) if is_refused => {
                self.oracle.write_refused(self.now_ns, pending.region, writing);
            }
            Access::Atomic(id) if is_refused => {
                self.oracle.atomic_done(self.now_ns, pending.region, pending.lane, id, None);
            }
            _ => self.give_up(&pending),
        }
    }

    /// Withdraws an access that was noted and then not requested.
    fn withdraw(&mut self, pending: &Pending) {
        match pending.what {
            Access::Read(_) => {}
            Access::Write(writing) => self.oracle.withdraw(pending.region, writing),
            Access::Atomic(id) => {
                let result = self.oracle.region(pending.region).counters.refused(id);
                self.check(Checker::Counters, result);
            }
        }
    }

    /// Handles a failed access: it may have been executed, or may yet be.
    fn give_up(&mut self, pending: &Pending) {
        match pending.what {
            Access::Read(_) => {}
            Access::Write(writing) => self.oracle.write_failed(pending.region, writing),
            Access::Atomic(id) => self.oracle.atomic_failed(self.now_ns, pending.region, id),
        }
    }

    /// Handles the death of a process: a program's accesses may have been executed or not, and its
    /// messages need no answer.
    fn bury(&mut self, program: Source) {
        self.streams.bury(&mut self.oracle.streams, program);
        let later = self.pending.split_off(&(program, 0));
        for ((source, token), pending) in later {
            if source != program {
                self.pending.insert((source, token), pending);
            } else {
                self.give_up(&pending);
            }
        }
        for (&conversation, _) in self.begun.iter().filter(|(_, source)| **source == program) {
            self.oracle.conversations.close(ConversationId(conversation));
        }
    }

    /// Evaluates a note about streams.
    fn follow(&mut self, source: Source, what: What) {
        if let What::StreamClosed { text, .. } = &what {
            self.blame(!self.is_harmless, || format!("{source:?}: a stream ended: {text}"));
        }
        match self.streams.hear(&mut self.oracle.streams, source, what) {
            Ok(0) => {}
            Ok(finished) => *self.succeeded.entry(Kind::Stream.name()).or_default() += finished,
            Err(what) => self.check(Checker::Streams, Err(what)),
        }
    }

    fn end(&mut self) {
        let waiting = self.pending.iter().next();
        if let Some(((source, _), pending)) = waiting {
            let what = format!("{source:?}: {} is never over", pending.tell());
            self.check(Checker::Progress, Err(what));
        }
        let settled = self.oracle.conversations.check_settled();
        self.check(Checker::Conversations, settled);
        let settled = self.oracle.streams.check_settled();
        self.check(Checker::Streams, settled);
        let agree = match self.held == self.used {
            true => Ok(()),
            false => Err(format!("regions {:?} are lent, {:?} used", self.held, self.used)),
        };
        self.check(Checker::Agreement, agree);
    }

    fn blame(&mut self, is_expected: bool, what: impl FnOnce() -> String) {
        self.check(Checker::Blame, if is_expected { Ok(()) } else { Err(what()) });
    }

    fn check(&mut self, checker: Checker, result: Result<(), String>) {
        self.oracle.findings.check(checker, self.now_ns, result);
    }
}

fn change(expected: Option<u64>, operand: u64) -> (Kind, Change) {
    match expected {
        None => (Kind::FetchAdd, Change::Add(operand)),
        Some(expected) => (Kind::CompareSwap, Change::Swap { expected, new: operand }),
    }
}

fn direction(is_there: bool) -> Direction {
    if is_there { Direction::There } else { Direction::Back }
}
