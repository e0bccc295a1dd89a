//! Reservations for a workload with a daily pattern, in a rack that others fill: the Monitor Node's
//! logic with real donors, in virtual time. The same run without reservations stands beside it.

use crate::common::lenders::{Rack, SLABS};
use crate::common::{CountingKeys, S, registration, settings};
use venice_rack::caller::Owner;
use venice_rack::forecast::{ForecastSettings, Windows};
use venice_rack::monitor::{MonitorCore, MonitorSettings};
use venice_rack::types::{AllocationRequest, Grant, HeartbeatReport, PortReport, RackError, Want};
use venice_wire::SLAB_BYTES;

const DONORS: u32 = 4;
/// Samples of a day, one every five minutes of virtual time.
const DAY: u64 = 48;
const SAMPLE_NS: u64 = 300 * S;
/// Samples of a prediction window.
const WINDOW: usize = 4;

struct DailyRack(Rack);

impl DailyRack {
    fn new(share: f64) -> Self {
        let windows = Windows { observation: 96, prediction: WINDOW };
        let forecast = ForecastSettings { sample_ns: SAMPLE_NS, windows, share };
        // No lease is renewed here, and no node dies.
        let settings = MonitorSettings { forecast, lease_ns: 1_000_000 * S, ..settings() };
        let monitor = MonitorCore::recover(settings, Box::new(CountingKeys(0)), 0, []);
        let node = |number: u32| registration(&format!("node{number}"), number.into(), SLABS);
        Self(Rack::new(monitor, (1..=DONORS).map(node)))
    }

    /// Requests slabs for a purpose.
    fn get(&mut self, purpose: &str, slabs: u64) -> Result<Vec<Grant>, RackError> {
        self.0.requests += 1;
        let request = AllocationRequest {
            wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
            client_id: self.0.requests,
            recipient: purpose.to_owned(),
            donors: vec![],
            home: String::new(),
            placement: None,
            queueing: Default::default(),
            purpose: purpose.to_owned(),
        };
        let owner = Owner { node: "node1".into(), user: purpose.to_owned(), is_bound: false };
        self.0.ask(owner, request)
    }

    /// Lets five minutes pass; the nodes report all the while.
    fn pass(&mut self) {
        let rack = &mut self.0;
        rack.now_ns += SAMPLE_NS;
        for (identity, core) in rack.donors.values_mut() {
            let report = HeartbeatReport {
                usage: Vec::new(),
                peers_version: 0,
                identity: *identity,
                instance: identity.node.0.into(),
                memory: core.report(),
                links: vec![],
                port: PortReport::default(),
                pressure: Default::default(),
                door: Default::default(),
            };
            rack.monitor.handle_heartbeat(rack.now_ns, report).unwrap();
        }
        rack.monitor.handle_timeout(rack.now_ns);
        rack.settle();
    }

    fn release(&mut self, grants: &[Grant]) {
        self.0.release(grants);
    }

    fn reserved_slabs(&self) -> u64 {
        self.0.monitor.forecast_rows().iter().map(|row| row.reserved_bytes / SLAB_BYTES).sum()
    }
}

/// Totals over all days but the first two, in slabs by samples.
#[derive(Debug, Default)]
struct Outcome {
    /// Slabs that the daily workload wanted and did not have.
    missing: u64,
    /// Slabs that it had.
    had: u64,
    /// Slabs reserved and unused in that sample.
    kept: u64,
    most_kept: u64,
    least_kept: u64,
}

/// Returns the need of the daily workload: 8 slabs at night, 56 at noon.
fn wanted(sample: u64) -> usize {
    let angle = sample as f64 / DAY as f64 * std::f64::consts::TAU;
    (8.0 + 24.0 * (1.0 - angle.cos())) as usize
}

fn run(share: f64) -> Outcome {
    let mut rack = DailyRack::new(share);
    let (mut daily, mut others) = (Vec::new(), Vec::new());
    let mut outcome = Outcome { least_kept: u64::MAX, ..Outcome::default() };
    let mut seed = 7u64;
    for sample in 0..6 * DAY {
        let counts = sample >= 2 * DAY;
        while daily.len() > wanted(sample) {
            let grant: Grant = daily.pop().unwrap();
            rack.release(&[grant]);
        }
        // The others come first in every sample and release an eighth of their slabs at a time. For
        // two days they want half of the rack, then all of it.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for _ in 0..others.len() / 8 {
            let at = (seed >> 33) as usize % others.len();
            let grant: Grant = others.swap_remove(at);
            rack.release(&[grant]);
        }
        while counts || others.len() < SLABS as usize * 2 {
            let Ok(grants) = rack.get("others", 1) else { break };
            others.extend(grants);
        }
        while daily.len() < wanted(sample) {
            let Ok(grants) = rack.get("daily", 1) else {
                // A refused request states its need.
                rack.get("daily", (wanted(sample) - daily.len()) as u64).unwrap_err();
                break;
            };
            daily.extend(grants);
        }
        if counts {
            outcome.missing += (wanted(sample) - daily.len()) as u64;
            outcome.had += daily.len() as u64;
            let kept = rack.reserved_slabs();
            outcome.kept += kept;
            outcome.most_kept = outcome.most_kept.max(kept);
            outcome.least_kept = outcome.least_kept.min(kept);
        }
        rack.pass();
    }
    outcome
}

#[test]
fn reservation_serves_daily_workload() {
    let (with, without) = (run(0.5), run(0.0));
    println!("kept: {with:?}\nnot kept: {without:?}");
    assert!(without.missing > 0 && without.kept == 0, "{without:?}");
    assert!(with.missing * 20 < without.missing, "{with:?} beside {without:?}");
    // The price: slabs that lie idle in a sample, because the forecast was too high.
    assert!(with.kept < with.had / 2, "{with:?}");
    let total = u64::from(DONORS * SLABS);
    assert!(with.most_kept > 0 && with.most_kept <= total / 2, "{with:?}");
    assert_eq!(with.least_kept, 0, "slabs beyond the forecast are released: {with:?}");
}

#[test]
fn reserved_slabs_are_refused_to_others() {
    let mut rack = DailyRack::new(0.25);
    for sample in 0..3 * DAY {
        let grants: Vec<_> =
            (0..wanted(sample)).flat_map(|_| rack.get("daily", 1).unwrap()).collect();
        rack.pass();
        rack.release(&grants);
    }
    let kept = rack.reserved_slabs();
    assert!(kept > 0 && kept <= u64::from(DONORS * SLABS) / 4, "{kept}");
    let others = std::iter::from_fn(|| rack.get("others", 1).ok()).count() as u64;
    assert_eq!(others, u64::from(DONORS * SLABS) - kept);
    let refused = rack.get("others", 1).unwrap_err();
    assert!(refused.to_string().starts_with("no room for 16MiB: 0B free"), "{refused}");
    rack.get("daily", 1).unwrap();
    let row = &rack.0.monitor.forecast_rows()[0];
    assert_eq!((row.user.as_str(), row.purpose.as_str()), ("daily", "daily"));
    assert!(row.windows > 20 && row.mean_error_bytes < row.persistence_mean_error_bytes, "{row:?}");
}
