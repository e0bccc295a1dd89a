//! The load: heartbeats of all agents, and requests beside them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use venice_control::client::MonitorClient;
use venice_control::{AllocationRequest, ControlError, Want};
use venice_wire::SLAB_BYTES;

use super::agent::{Agent, Agents};
use super::heartbeats::{HeartbeatClock, HeartbeatClocks, PERIOD};
use super::machines::Machines;
use super::monitor_node::MonitorUnderTest;
use venice_measure::interrupt;
use venice_measure::progress::Phase;

/// Parts of a request's latency that are measured separately.
pub(super) const LEGS: usize = 3;
/// Heartbeats before the measurement begins.
const WARM_UP: Duration = Duration::from_secs(3);
/// Period of the checks of the Monitor Node during the run.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Limit of outstanding requests: a rate above the Monitor Node's capacity shows as late requests.
const REQUESTS_AT_ONCE: usize = 64;
/// Time limit until the last released grant is gone: longer than its lease.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(30);
/// Largest latency that is recorded.
const LONGEST: Duration = Duration::from_secs(60);
/// Purpose of the requests.
const PURPOSE: &str = "venice bench monitor";

/// The measured figures.
#[derive(Debug)]
pub(super) struct Measured {
    /// Duration of the measurement.
    pub(super) span: Duration,
    /// Latency of heartbeats, nanoseconds.
    pub(super) heartbeats: Histogram<u64>,
    /// Heartbeats that were skipped, because earlier ones had no answer.
    pub(super) late_heartbeats: u64,
    /// Latency of requests for memory, nanoseconds.
    pub(super) requests: Histogram<u64>,
    /// Its parts: until the donor's prepare, until its commit, and until the answer.
    pub(super) legs: [Histogram<u64>; LEGS],
    /// Requests that were skipped.
    pub(super) late_requests: u64,
    /// Requests that were refused.
    pub(super) refused: u64,
    /// Latency of releases, nanoseconds.
    pub(super) releases: Histogram<u64>,
    /// Processor time of the Monitor Node during the measurement, seconds.
    pub(super) monitor_s: f64,
    /// Processor time of its store in another process.
    pub(super) store_s: Option<f64>,
    /// Resident memory of the Monitor Node at the end, bytes.
    pub(super) resident_bytes: u64,
}

/// Runs the heartbeats of all agents and the requests of a recipient, and measures after a warm-up.
///
/// # Errors
/// When a heartbeat or a request fails, when a grant remains without an owner, on an interrupt, and
/// when the Monitor Node ends.
pub(super) fn run(
    monitor_node: &mut MonitorUnderTest,
    machines: &Machines,
    agents: &Agents,
    requests_per_s: f64,
    span: Duration,
) -> Result<Measured> {
    let from = Instant::now() + WARM_UP;
    let until = from + span;
    let clocks = HeartbeatClocks::start(agents.agents.len(), until)?;
    let mut reporting = JoinSet::new();
    for (agent, clock) in agents.agents.iter().zip(&clocks.of_agents) {
        let report = report_all_the_time(Arc::clone(agent), Arc::clone(clock), from);
        reporting.spawn_on(report, machines.reporters.handle());
    }
    let recipient = machines.recipient.handle();
    let client = recipient.block_on(monitor_node.recipient("node1"))?;
    let borrowing =
        recipient.spawn(borrow_all_the_time(client, agents.clone(), requests_per_s, from, until));
    let (monitor_s, store_s) = watch(monitor_node, from, until)?;
    let resident_bytes = monitor_node.resident_bytes();
    let mut heartbeats = histogram();
    let mut late_heartbeats = 0;
    while let Some(reported) = recipient.block_on(reporting.join_next()) {
        let (waited, late) = reported??;
        late_heartbeats += late;
        waited.into_iter().for_each(|ns| heartbeats.saturating_record(ns));
    }
    clocks.end();
    let Borrowed { requests, legs, releases, late: late_requests, refused } =
        recipient.block_on(borrowing)??;
    recipient.block_on(see_all_given_back(agents))?;
    Ok(Measured {
        span,
        heartbeats,
        late_heartbeats,
        requests,
        legs,
        late_requests,
        refused,
        releases,
        monitor_s,
        store_s,
        resident_bytes,
    })
}

/// Waits until every donor has released its grants; a donor that missed a call learns of it by its
/// next heartbeats.
async fn see_all_given_back(agents: &Agents) -> Result<()> {
    let until = Instant::now() + GIVEN_BACK_WITHIN;
    loop {
        let holders: Vec<_> = agents.agents.iter().filter(|agent| agent.held() > 0).collect();
        if holders.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("{} donors still hold grants after the last release: a leak", holders.len());
        }
        interrupt::check()?;
        for holder in holders {
            // An agent that missed too many heartbeats must register again; its grants then expire.
            let _ = holder.report().await;
        }
        sleep(PERIOD).await;
    }
}

/// Measures the processor time of the Monitor Node, and of its store, between the two moments.
fn watch(
    monitor_node: &mut MonitorUnderTest,
    from: Instant,
    until: Instant,
) -> Result<(f64, Option<f64>)> {
    let steps = until.duration_since(from).as_secs_f64() / LOOK_EVERY.as_secs_f64();
    std::thread::sleep(from.saturating_duration_since(Instant::now()));
    let (monitor_s, store_s) = monitor_node.used_s();
    let phase = Phase::new("heartbeats and requests", steps as u64);
    while Instant::now() < until {
        interrupt::check()?;
        monitor_node.ensure_alive()?;
        std::thread::sleep(LOOK_EVERY);
        phase.advance(1);
    }
    let after = monitor_node.used_s();
    let store = after.1.zip(store_s).map(|(after, before)| after - before);
    Ok((after.0 - monitor_s, store))
}

/// Sends heartbeats; returns the latency of each from `from` on in nanoseconds, and how many were
/// skipped.
async fn report_all_the_time(
    agent: Arc<Agent>,
    clock: Arc<HeartbeatClock>,
    from: Instant,
) -> Result<(Vec<u64>, u64)> {
    let (mut waited, mut late) = (Vec::new(), 0);
    while let Some(missed) = clock.next().await {
        let sent = Instant::now();
        agent.report().await?;
        if sent >= from {
            waited.push(nanoseconds(sent.elapsed()));
            late += missed;
        }
    }
    Ok((waited, late))
}

#[derive(Debug)]
struct Borrowed {
    requests: Histogram<u64>,
    legs: [Histogram<u64>; LEGS],
    releases: Histogram<u64>,
    late: u64,
    refused: u64,
}

/// Borrows and gives back at a steady rate, independent of the answers.
async fn borrow_all_the_time(
    client: MonitorClient,
    agents: Agents,
    per_s: f64,
    from: Instant,
    until: Instant,
) -> Result<Borrowed> {
    let mut borrowed = Borrowed {
        requests: histogram(),
        legs: std::array::from_fn(|_| histogram()),
        releases: histogram(),
        late: 0,
        refused: 0,
    };
    let mut ticks = interval(Duration::from_secs_f64(1.0 / per_s));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = JoinSet::new();
    let mut client_id = 0;
    while Instant::now() < until {
        let counts = ticks.tick().await.into_std() >= from;
        if !counts || under_way.len() < REQUESTS_AT_ONCE {
            client_id += 1;
            under_way.spawn(borrow(client.clone(), agents.clone(), client_id, counts));
        } else {
            borrowed.late += 1;
        }
        while let Some(done) = under_way.try_join_next() {
            borrowed.take(done??);
        }
    }
    while let Some(done) = under_way.join_next().await {
        borrowed.take(done??);
    }
    Ok(borrowed)
}

struct OneBorrowed {
    /// True if it falls into the measurement.
    counts: bool,
    request_ns: u64,
    legs_ns: [u64; LEGS],
    release_ns: u64,
}

impl Borrowed {
    fn take(&mut self, one: Option<OneBorrowed>) {
        let Some(one) = one else {
            self.refused += 1;
            return;
        };
        if one.counts {
            self.requests.saturating_record(one.request_ns);
            for (leg, ns) in self.legs.iter_mut().zip(one.legs_ns) {
                leg.saturating_record(ns);
            }
            self.releases.saturating_record(one.release_ns);
        }
    }
}

/// Borrows one slab; `None` if refused: on an overloaded machine donors count as down.
async fn borrow(
    mut client: MonitorClient,
    agents: Agents,
    client_id: u128,
    counts: bool,
) -> Result<Option<OneBorrowed>> {
    let request = AllocationRequest {
        wants: vec![Want::memory(SLAB_BYTES, 1)],
        client_id,
        recipient: "bench".to_owned(),
        donors: Vec::new(),
        home: String::new(),
        purpose: PURPOSE.to_owned(),
        queueing: Default::default(),
        placement: None,
    };
    let asked = Instant::now();
    let grants = match client.allocate(request).await {
        Ok(grants) => grants,
        Err(ControlError::NoRoom { .. } | ControlError::Rack(_)) => return Ok(None),
        Err(error) => return Err(error).context("a request failed"),
    };
    let answered = Instant::now();
    let request_ns = nanoseconds(answered.duration_since(asked));
    let [grant] = &grants[..] else { bail!("{} donors lend one slab", grants.len()) };
    let call_times = agents.call_times(grant).context("no donor received the grant")?;
    let legs_ns = [
        (asked, call_times.prepare),
        (call_times.prepare, call_times.commit),
        (call_times.commit, answered),
    ]
    .map(|(from, to)| nanoseconds(to.saturating_duration_since(from)));
    let given = Instant::now();
    client.release(&[(grant.id, grant.key)]).await.context("a grant was not released")?;
    let release_ns = nanoseconds(given.elapsed());
    Ok(Some(OneBorrowed { counts, request_ns, legs_ns, release_ns }))
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, nanoseconds(LONGEST), 3).expect("the bounds are in order")
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
