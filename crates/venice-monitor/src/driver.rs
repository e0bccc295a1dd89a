//! Gives the Monitor Node (`venice_rack::monitor_node`) its input and the time, and performs its
//! outputs.

mod stopping;

use crate::clock::Clock;
use crate::donors::Donors;
use crate::error::MonitorError;
use crate::inputs::{Heard, Input, RecordsAnswer, Reply, Report};
use crate::log::{log, log_granted};
use crate::metrics::{Counters, Snapshot};
use crate::records::RecordStore;
use crate::tenure::Tenure;
use crate::trust::TrustState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use venice_control::{Asked, HeartbeatAck, HeartbeatReport, Identity, RackError};
use venice_rack::monitor::{CallError, Change, MonitorCore, Sight, Token};
use venice_rack::monitor_node::{
    Call, DonorAnswer, DonorCall, MonitorNode, Now, Output, Reply as CallReply, Written,
};

/// Length from which a stall is logged.
const LONG_STALL: Duration = Duration::from_secs(1);
/// Most inputs handled at once, so that their changes are written together.
const INPUTS_AT_ONCE: usize = 64;
/// Most batches of reports handled at once.
const HEARD_AT_ONCE: usize = 64;
/// Yields to other tasks before a blocking write, so that a started call is sent first.
const YIELDS_PER_CALL: usize = 8;

/// A finished call to a donor.
struct Returned {
    donor: Identity,
    call: DonorCall,
    result: Result<DonorAnswer, CallError>,
}

pub(crate) struct Driver {
    pub(crate) node: MonitorNode,
    store: RecordStore,
    clock: Clock,
    donors: Arc<Donors>,
    calls: JoinSet<Returned>,
    next_token: u64,
    /// Callers that wait.
    replies: BTreeMap<Token, Reply<CallReply>>,
    trust: TrustState,
    tenure: Tenure,
    counters: Arc<Counters>,
    inputs: mpsc::Receiver<Input>,
    /// Reports, ahead of all other inputs, and the time.
    heard: mpsc::Receiver<Heard>,
    /// Callers that await all records.
    record_readers: Vec<Reply<RecordsAnswer>>,
    is_stopping: bool,
}

impl Driver {
    pub(crate) fn new(
        node: MonitorNode,
        store: RecordStore,
        clock: Clock,
        donors: Donors,
        trust: TrustState,
        counters: Arc<Counters>,
    ) -> Self {
        trust.revoke(node.core().revocations());
        let tenure = store.tenure();
        Self {
            node,
            store,
            clock,
            donors: Arc::new(donors),
            calls: JoinSet::new(),
            next_token: 0,
            replies: BTreeMap::new(),
            trust,
            tenure,
            counters,
            // Placeholders until `run`.
            inputs: mpsc::channel(1).1,
            heard: mpsc::channel(1).1,
            record_readers: Vec::new(),
            is_stopping: false,
        }
    }

    /// Runs until a stop input, after which earlier inputs are completed, or until the store fails.
    pub(crate) async fn run(
        mut self,
        inputs: mpsc::Receiver<Input>,
        heard: mpsc::Receiver<Heard>,
    ) -> Result<(), MonitorError> {
        (self.inputs, self.heard) = (inputs, heard);
        let mut batch = Vec::with_capacity(INPUTS_AT_ONCE);
        loop {
            // Heartbeats wait for one batch of other inputs at most.
            self.handle_all_heard();
            self.perform_all().await?;
            self.answer_record_readers().await;
            if self.is_stopping && self.node.obstacle().is_none() {
                return self.finish().await;
            }
            let now_ns = self.node.now_ns(self.clock.now_ns());
            let wait_ns = self.node.poll_timeout().saturating_sub(now_ns);
            tokio::select! {
                count = self.inputs.recv_many(&mut batch, INPUTS_AT_ONCE) => {
                    if count == 0 {
                        return Ok(());
                    }
                    for input in batch.drain(..) {
                        // Callers after the stop learn that the Monitor Node stops.
                        if !self.is_stopping {
                            self.handle_input(input);
                        }
                    }
                }
                Some(done) = self.calls.join_next(), if !self.calls.is_empty() => {
                    self.handle_returned(done.map_err(MonitorError::Driver)?);
                    // Their changes are written together: most of a write is the disk's latency.
                    for _ in 1..INPUTS_AT_ONCE {
                        let Some(done) = self.calls.try_join_next() else { break };
                        self.handle_returned(done.map_err(MonitorError::Driver)?);
                    }
                }
                news = self.store.news() => self.handle_news(news?),
                Some(heard) = self.heard.recv() => self.handle_heard(heard),
                // Without stalls, that is.
                () = tokio::time::sleep(Duration::from_nanos(wait_ns)) => self.handle_timeout(),
            }
        }
    }

    fn now(&self) -> Now {
        let (wall_ms, signed_until_ms) = self.trust.now();
        Now { clock_ns: self.clock.now_ns(), wall_ms, signed_until_ms }
    }

    fn handle_all_heard(&mut self) {
        for _ in 0..HEARD_AT_ONCE {
            let Ok(heard) = self.heard.try_recv() else { return };
            self.handle_heard(heard);
        }
    }

    fn handle_heard(&mut self, heard: Heard) {
        match heard {
            Heard::Reports(reports) => {
                let now = self.now();
                for Report { name, report, reply } in reports {
                    let ack = self.handle_report(now, &name, report);
                    // A caller that has hung up needs no answer; the same below.
                    let _ = reply.send(ack);
                }
            }
            Heard::Tick => self.tick(),
        }
    }

    /// Handles deadlines, after the reports that have arrived.
    fn handle_timeout(&mut self) {
        self.handle_all_heard();
        self.node.handle_timeout(self.now());
    }

    /// Advances the clock. Time in which this driver, or the heartbeat server, stood still does not
    /// count against the nodes: their reports come the same way as the ticks.
    fn tick(&mut self) {
        let missed = Duration::from_nanos(self.node.handle_tick(self.now()));
        self.counters.note_stall(missed);
        if missed >= LONG_STALL {
            tracing::warn!(?missed, "stalled: nodes have that much longer to report");
        }
        if let Some(shared) = self.store.shared() {
            shared.member().set_silent(self.node.core().silent_nodes());
        }
    }

    fn handle_report(
        &mut self,
        now: Now,
        name: &str,
        mut report: HeartbeatReport,
    ) -> Result<HeartbeatAck, RackError> {
        let reported = std::mem::take(&mut report.door.revoked_besides);
        report.door.revoked_besides = self.trust.sealed_only(name, reported);
        let mut ack = self.node.handle_report(now, name, report)?;
        ack.trust_version = self.trust.version;
        if let Some(news) = &mut ack.revoked {
            let known = std::mem::take(&mut news.known).into_iter();
            news.known = known.map(|it| self.trust.authority.seal(it)).collect();
        }
        Ok(ack)
    }

    /// Handles changes of other Monitor Nodes.
    fn handle_news(&mut self, news: (u64, Vec<Change>)) {
        let silent = self.store.shared().and_then(|it| it.member().silent_at_peers());
        self.node.handle_news(self.now(), news, silent);
    }

    fn handle_returned(&mut self, Returned { donor, call, result }: Returned) {
        self.node.handle_returned(self.now(), donor, call, result);
    }

    fn handle_input(&mut self, input: Input) {
        match input {
            Input::Call(call, reply) => {
                if !call.needs_caller() || !reply.is_closed() {
                    self.handle_call(*call, reply);
                }
            }
            Input::Query(query) => query(self),
            Input::Records(reply) => self.record_readers.push(reply),
            Input::Stop => self.is_stopping = true,
        }
    }

    fn handle_call(&mut self, call: Call, reply: Reply<CallReply>) {
        self.next_token += 1;
        let token = Token(self.next_token);
        self.replies.insert(token, reply);
        self.node.handle_call(self.now(), token, call);
    }

    /// Returns the addresses of the Monitor Nodes that serve beside this one.
    pub(crate) fn peers(&self) -> Vec<String> {
        self.store.shared().map(|it| it.member().peers()).unwrap_or_default()
    }

    /// Returns the tables of this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (core, now_ns) = (self.node.core(), self.now_ns());
        Snapshot {
            nodes: core.node_rows(now_ns),
            resources: core.resource_rows(),
            grants: core.grant_rows(now_ns),
            queue: core.queue_rows(now_ns),
            links: core.link_rows(),
        }
    }

    pub(crate) fn core(&self) -> &MonitorCore {
        self.node.core()
    }

    /// Returns the time of the tables.
    pub(crate) fn now_ns(&self) -> u64 {
        self.node.now_ns(self.clock.now_ns())
    }

    async fn perform_all(&mut self) -> Result<(), MonitorError> {
        while let Some(output) = self.node.poll_output() {
            // A member cut off from its peers must not act on an outdated view.
            if !self.tenure.lasts() {
                return Err(MonitorError::CutOff);
            }
            match output {
                Output::Write { conditions, changes } => self.write(conditions, changes).await?,
                Output::Call { donor, name, addr, call } => self.call(donor, name, addr, call),
                Output::Reply(token, reply) => self.reply(token, reply),
                Output::Granted(request, grants) => {
                    log_granted(&request, &grants);
                    for token in request.calls {
                        let asked = Asked::Granted(grants.clone());
                        self.reply(token, CallReply::Asked(Ok(asked)));
                    }
                }
                Output::Note(event) => {
                    log(&event);
                    self.counters.events.push(event.row());
                }
                Output::Revoked => self.trust.revoke(self.node.core().revocations()),
            }
        }
        Ok(())
    }

    fn reply(&mut self, token: Token, reply: CallReply) {
        self.replies.remove(&token).map(|waiting| waiting.send(reply));
    }

    fn call(&mut self, donor: Identity, name: String, addr: String, call: DonorCall) {
        let donors = Arc::clone(&self.donors);
        self.calls.spawn(async move {
            let result = donors.call(&name, &addr, call.clone()).await;
            Returned { donor, call, result }
        });
    }

    /// Writes the changes; after a conflict, receives those of the peers that caused it.
    async fn write(
        &mut self,
        conditions: Vec<Sight>,
        changes: Vec<Change>,
    ) -> Result<(), MonitorError> {
        yield_to_tasks(!self.calls.is_empty()).await;
        let began = Instant::now();
        let written = self.store.apply(&conditions, changes).await?;
        self.counters.note_write(began.elapsed());
        match (&written, self.node.obstacle().is_some()) {
            (Written::NoRoom { why }, false) => {
                tracing::error!("{why}: no grants or changes until there is room");
            }
            (Written::Made { .. }, true) => {
                tracing::info!("the store has room again; the Monitor Node continues");
            }
            (Written::Made { .. } | Written::Conflict { .. } | Written::NoRoom { .. }, _) => {}
        }
        if let Written::Conflict { .. } = &written {
            self.drop_abandoned();
        }
        self.node.handle_written(self.now(), written);
        while self.node.awaits_news() {
            let news = self.store.news().await?;
            self.drop_abandoned();
            self.handle_news(news);
        }
        Ok(())
    }

    /// Drops calls whose callers have hung up, before calls are repeated.
    fn drop_abandoned(&mut self) {
        self.replies.retain(|_, reply| !reply.is_closed());
        self.node.handle_hang_up(|token| !self.replies.contains_key(&token));
    }

    /// Answers those who read all records: with all changes so far, and no part of one.
    async fn answer_record_readers(&mut self) {
        for reply in std::mem::take(&mut self.record_readers) {
            let read = match self.node.obstacle() {
                Some(why) => Err(RackError::StoreFull(why.to_owned())),
                None => self.store.entries().await.map_err(|error| {
                    tracing::warn!(%error, "cannot read the records for a backup");
                    RackError::StoreFull(error.to_string())
                }),
            };
            let _ = reply.send(read);
        }
    }
}

/// Yields to other tasks before a file store blocks this thread, so that ready answers and started
/// calls go out first and donors work meanwhile. A call passes through several tasks until it is
/// sent.
async fn yield_to_tasks(has_calls: bool) {
    for _ in 0..if has_calls { YIELDS_PER_CALL } else { 1 } {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests;
