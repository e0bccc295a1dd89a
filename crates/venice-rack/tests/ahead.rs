//! Slabs kept for a workload with a daily pattern, in a rack that others fill: by the Monitor Node's
//! own logic, with real donors, in virtual time. The same with nothing kept stands beside it.

mod common;

use common::{OneTwoThree, S, registration, settings};
use std::collections::BTreeMap;
use venice_rack::caller::Owner;
use venice_rack::donor::{DonorAction, DonorCore, DonorSettings};
use venice_rack::forecast::{LookAhead, Windows};
use venice_rack::monitor::{Action, CallError, MonitorCore, MonitorSettings, Token};
use venice_rack::types::{
    DonorStatus, Grant, HeartbeatReport, Identity, MemoryRequest, PortReport, RackError,
};
use venice_wire::{ByteSize, GrantId, NodeId, SLAB_BYTES};

const DONORS: u32 = 4;
const SLABS: u32 = 32;
/// Samples of a day, one every five minutes of this rack.
const DAY: u64 = 48;
const SAMPLE_NS: u64 = 300 * S;
/// Samples of a prediction window.
const WINDOW: usize = 4;

struct Rack {
    now_ns: u64,
    monitor: MonitorCore,
    donors: BTreeMap<NodeId, (Identity, DonorCore)>,
    answers: BTreeMap<u128, Result<Vec<Grant>, RackError>>,
    requests: u128,
}

impl Rack {
    fn new(share: f64) -> Self {
        let windows = Windows { observation: 96, prediction: WINDOW };
        let ahead = LookAhead { sample_ns: SAMPLE_NS, windows, share };
        // Nobody renews here, and nobody dies.
        let settings = MonitorSettings { ahead, lease_ns: 1_000_000 * S, ..settings() };
        let monitor = MonitorCore::recover(settings, Box::new(OneTwoThree(0)), 0, []);
        let (donors, answers) = (BTreeMap::new(), BTreeMap::new());
        let mut rack = Self { now_ns: 0, monitor, donors, answers, requests: 0 };
        for number in 1..=DONORS {
            let node = registration(&format!("node{number}"), number.into(), SLABS);
            rack.monitor.handle_register(0, Token(number.into()), node);
        }
        rack.settle();
        rack
    }

    /// Everything on its way arrives.
    fn settle(&mut self) {
        while let Some(action) = self.monitor.poll_action() {
            let now_ns = self.now_ns;
            match action {
                Action::ReplyRegister { result, .. } => {
                    let Identity { node, epoch } = result.unwrap().identity;
                    let settings = DonorSettings { total_slabs: SLABS, prepare_timeout_ns: 10 * S };
                    let mut core = DonorCore::new(settings);
                    core.set_epoch(epoch);
                    self.donors.insert(node, (Identity { node, epoch }, core));
                }
                Action::SendPrepare { donor, request, .. } => {
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
                Action::SendCommit { donor, grant, .. } => {
                    let done =
                        self.at(donor, |core| core.handle_commit(now_ns, grant, donor.epoch));
                    let done = done.map_err(CallError::Refused);
                    self.monitor.handle_committed(now_ns, donor, grant, done);
                }
                Action::SendRelease { donor, grants, .. } => {
                    let done = self.at(donor, |core| give_back(core, now_ns, &grants));
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

    /// So many slabs for a purpose, if the rack grants them.
    fn get(&mut self, purpose: &str, slabs: u64) -> Result<Vec<Grant>, RackError> {
        self.requests += 1;
        let request = MemoryRequest {
            client_id: self.requests,
            recipient: purpose.to_owned(),
            bytes: ByteSize(slabs * SLAB_BYTES),
            copies: 1,
            donors: vec![],
            home: String::new(),
            placement: None,
            queueing: Default::default(),
            purpose: purpose.to_owned(),
        };
        let owner = Owner { node: "node1".into(), user: purpose.to_owned() };
        self.monitor.handle_request(self.now_ns, owner, request).unwrap();
        self.settle();
        self.answers.remove(&self.requests).expect("nobody has to wait here")
    }

    fn release(&mut self, grants: &[Grant]) {
        let leases: Vec<_> = grants.iter().map(|grant| (grant.id, grant.key)).collect();
        self.monitor.handle_release(Token(0), &leases);
        self.settle();
    }

    /// Five minutes pass; the nodes report all the while.
    fn pass(&mut self) {
        self.now_ns += SAMPLE_NS;
        for (identity, core) in self.donors.values_mut() {
            let report = HeartbeatReport {
                identity: *identity,
                instance: identity.node.0.into(),
                memory: core.report(),
                links: vec![],
                port: PortReport::default(),
                pressure: Default::default(),
                door: Default::default(),
            };
            self.monitor.handle_heartbeat(self.now_ns, report).unwrap();
        }
        self.monitor.handle_timeout(self.now_ns);
        self.settle();
    }

    fn kept_slabs(&self) -> u64 {
        self.monitor.forecast_rows().iter().map(|row| row.kept_bytes / SLAB_BYTES).sum()
    }
}

fn give_back(core: &mut DonorCore, now_ns: u64, grants: &[GrantId]) -> DonorStatus {
    for grant in grants {
        core.handle_release(now_ns, *grant);
    }
    while let Some(DonorAction::FreeSlabs { grant, .. }) = core.poll_action() {
        core.handle_freed(grant);
    }
    core.status()
}

/// What it came to, over all days but the first two, in slabs by samples.
#[derive(Debug, Default)]
struct Outcome {
    /// That the daily workload wanted and did not have.
    missing: u64,
    /// That it had.
    had: u64,
    /// That were kept free and not used in that sample.
    kept: u64,
    most_kept: u64,
    least_kept: u64,
}

/// The daily workload: 8 slabs at night, 56 at noon.
fn wanted(sample: u64) -> usize {
    let angle = sample as f64 / DAY as f64 * std::f64::consts::TAU;
    (8.0 + 24.0 * (1.0 - angle.cos())) as usize
}

fn live(share: f64) -> Outcome {
    let mut rack = Rack::new(share);
    let (mut daily, mut others) = (Vec::new(), Vec::new());
    let mut outcome = Outcome { least_kept: u64::MAX, ..Outcome::default() };
    let mut seed = 7u64;
    for sample in 0..6 * DAY {
        let counts = sample >= 2 * DAY;
        while daily.len() > wanted(sample) {
            let grant: Grant = daily.pop().unwrap();
            rack.release(&[grant]);
        }
        // The others come first in every sample and leave as they please, an eighth of them at a
        // time. For two days they want half of the rack, then all there is.
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
                // It says how much it would have.
                rack.get("daily", (wanted(sample) - daily.len()) as u64).unwrap_err();
                break;
            };
            daily.extend(grants);
        }
        if counts {
            outcome.missing += (wanted(sample) - daily.len()) as u64;
            outcome.had += daily.len() as u64;
            let kept = rack.kept_slabs();
            outcome.kept += kept;
            outcome.most_kept = outcome.most_kept.max(kept);
            outcome.least_kept = outcome.least_kept.min(kept);
        }
        rack.pass();
    }
    outcome
}

#[test]
fn a_daily_workload_finds_its_slabs_though_others_fill_the_rack() {
    let (with, without) = (live(0.5), live(0.0));
    println!("kept: {with:?}\nnot kept: {without:?}");
    assert!(without.missing > 0 && without.kept == 0, "{without:?}");
    assert!(with.missing * 20 < without.missing, "{with:?} beside {without:?}");
    // What that costs: slabs that lie idle in a sample, for want of one who was foretold.
    assert!(with.kept < with.had / 2, "{with:?}");
    let total = u64::from(DONORS * SLABS);
    assert!(with.most_kept > 0 && with.most_kept <= total / 2, "{with:?}");
    assert_eq!(with.least_kept, 0, "what the forecast does not want is released: {with:?}");
}

#[test]
fn what_is_kept_is_not_free_for_others_and_says_so() {
    let mut rack = Rack::new(0.25);
    for sample in 0..3 * DAY {
        let grants: Vec<_> =
            (0..wanted(sample)).flat_map(|_| rack.get("daily", 1).unwrap()).collect();
        rack.pass();
        rack.release(&grants);
    }
    let kept = rack.kept_slabs();
    assert!(kept > 0 && kept <= u64::from(DONORS * SLABS) / 4, "{kept}");
    let others = std::iter::from_fn(|| rack.get("others", 1).ok()).count() as u64;
    assert_eq!(others, u64::from(DONORS * SLABS) - kept);
    let refused = rack.get("others", 1).unwrap_err();
    assert!(refused.to_string().starts_with("no room for 16MiB: 0B free"), "{refused}");
    rack.get("daily", 1).unwrap();
    let row = &rack.monitor.forecast_rows()[0];
    assert_eq!((row.user.as_str(), row.purpose.as_str()), ("daily", "daily"));
    assert!(row.windows > 20 && row.mean_error_bytes < row.persistence_mean_error_bytes, "{row:?}");
}
