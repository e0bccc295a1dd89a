//! Requests for devices at the Monitor Node, and the validation of device reports.

use crate::common::{CountingKeys, S, owner, registration, settings};
use venice_rack::door::DoorReport;
use venice_rack::monitor::{Action, CallError, MonitorCore, Token};
use venice_rack::monitor_node::DonorCall;
use venice_rack::pressure::PressureReport;
use venice_rack::queueing::{Preempt, Queueing};
use venice_rack::quota::{Limit, QuotaFor, QuotaRecord};
use venice_rack::types::{
    AllocationRequest, DeviceReport, DonorReport, DonorStatus, Grant, GrantUsage, HeartbeatReport,
    HeldGrant, HeldState, Identity, PortReport, RackError, Refusal, ResourceKind, ResourceSpec,
    Share, Want,
};
use venice_wire::{GrantId, SLAB_BYTES};

const STORAGE_UNIT_BYTES: u64 = ResourceKind::Storage.spec().unit_bytes;

const GPU: ResourceKind = ResourceKind::Accelerator;

fn spec(kind: ResourceKind, address: &str, bytes: u64) -> ResourceSpec {
    let slab_bytes = kind.spec().unit_bytes;
    let capabilities = vec!["fft".to_owned()];
    ResourceSpec { kind, address: address.to_owned(), bytes, slab_bytes, capabilities }
}

struct Rack {
    core: MonitorCore,
    answers: Vec<(u128, Result<Vec<Grant>, RackError>)>,
}

impl Rack {
    /// Creates `nodes` nodes, each with these devices.
    fn new(nodes: usize, devices: &[ResourceSpec]) -> Self {
        let core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, Vec::new());
        let mut rack = Rack { core, answers: Vec::new() };
        for index in 1..=nodes as u64 {
            let mut node = registration(&format!("node{index}"), index, 4);
            node.resources.extend(devices.iter().cloned());
            rack.core.handle_register(0, Token(index), node);
        }
        rack.act(&|| Ok(()));
        rack
    }

    /// Performs all actions; donors answer a prepare by `prepared`, and confirm the rest.
    fn act(&mut self, prepared: &dyn Fn() -> Result<(), CallError>) {
        let status = DonorStatus { total_slabs: 4, free_slabs: 4, revision: 1 };
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
                    let result = prepared().map(|()| status);
                    self.core.handle_prepared(0, donor, request.grant, result);
                }
                Action::Call { donor, call: DonorCall::Commit { grant, .. }, .. } => {
                    self.core.handle_committed(0, donor, grant, Ok(status));
                }
                Action::ReplyRequest { client_id, result } => {
                    self.answers.push((client_id, result));
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, request: AllocationRequest) -> Result<(), RackError> {
        self.core.handle_request(0, owner(), request)
    }

    /// Returns the error of a request that donors refuse with `refusal`.
    fn why_not(&mut self, request: AllocationRequest, refusal: &str) -> String {
        self.ask(request).unwrap();
        self.act(&|| Err(CallError::Refused(Refusal::NoDevice(refusal.to_owned()))));
        self.answers.pop().unwrap().1.unwrap_err().to_string()
    }

    fn report(&mut self, held: Vec<HeldGrant>, devices: Vec<DeviceReport>) {
        self.report_usage(held, devices, Vec::new());
    }

    fn report_usage(
        &mut self,
        held: Vec<HeldGrant>,
        devices: Vec<DeviceReport>,
        usage: Vec<GrantUsage>,
    ) {
        let node = self.core.node_rows(0)[0].node_id;
        let report = HeartbeatReport {
            usage,
            peers_version: 0,
            identity: Identity { node: venice_wire::NodeId(node), epoch: 1 },
            instance: 1,
            memory: DonorReport {
                status: DonorStatus { total_slabs: 4, free_slabs: 4, revision: 5 },
                held,
                devices,
            },
            links: vec![],
            port: PortReport::default(),
            pressure: PressureReport::default(),
            door: DoorReport::default(),
        };
        self.core.handle_heartbeat(S, report).unwrap();
        self.act(&|| Ok(()));
    }
}

fn request(client_id: u128, kind: ResourceKind, bytes: u64) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::device(kind, bytes)],
        home: String::new(),
        placement: None,
        client_id,
        recipient: "r".into(),
        donors: vec![],
        purpose: "p".into(),
        queueing: Queueing::default(),
    }
}

/// Adds capabilities to the only want of a request.
fn with(capabilities: &[&str], mut request: AllocationRequest) -> AllocationRequest {
    request.wants[0].capabilities = capabilities.iter().map(|it| (*it).to_owned()).collect();
    request
}

fn memory(client_id: u128) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::memory(SLAB_BYTES, 1)],
        client_id,
        recipient: "r".into(),
        home: String::new(),
        donors: vec![],
        purpose: "p".into(),
        placement: None,
        queueing: Queueing::default(),
    }
}

#[test]
fn reused_request_number_is_refused() {
    let mut rack = Rack::new(1, &[spec(GPU, "/dev/gpu0", 0)]);
    rack.ask(request(1, GPU, 0)).unwrap();
    rack.core.handle_request(0, owner(), memory(2)).unwrap();
    let for_memory = rack.core.handle_request(0, owner(), memory(1));
    assert!(matches!(for_memory, Err(RackError::BadRequest(_))), "{for_memory:?}");
    for other in [
        request(2, GPU, 0),
        request(1, ResourceKind::Nic, 0),
        request(1, GPU, 5),
        with(&["fft"], request(1, GPU, 0)),
    ] {
        let answer = rack.ask(other);
        assert!(matches!(answer, Err(RackError::BadRequest(_))), "{answer:?}");
    }
    rack.ask(request(1, GPU, 0)).unwrap();
    rack.act(&|| Ok(()));
    let answers: Vec<_> = rack.answers.iter().map(|(id, result)| (*id, result.is_ok())).collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers.contains(&(1, true)) && answers.contains(&(2, true)), "{answers:?}");
    // Once granted, a repetition is answered alike, and another request is not.
    rack.ask(request(1, GPU, 0)).unwrap();
    assert!(rack.ask(request(1, GPU, 5)).is_err());
}

#[test]
fn donor_refusal_reaches_recipient() {
    let mut rack = Rack::new(1, &[spec(GPU, "/dev/gpu0", 0)]);
    let why = rack.why_not(request(1, GPU, 0), "its agent started 3 s ago");
    assert!(why.contains("node1 /dev/gpu0: its agent started 3 s ago"), "{why}");
    let why = rack.why_not(request(2, GPU, 1 << 30), "");
    assert!(why.contains("its size is unknown"), "{why}");
}

#[test]
fn refusal_fits_in_header() {
    let devices: Vec<_> = (0..200).map(|index| spec(GPU, &format!("/dev/{index}"), 0)).collect();
    let mut rack = Rack::new(3, &devices);
    let why = rack.why_not(with(&[&*"x".repeat(255); 32], request(1, GPU, 0)), "");
    assert!(why.len() < 4096 && why.contains("592 more"), "{why}");
    let donors = vec!["node2".to_owned()];
    let wanted = AllocationRequest { donors, ..with(&["cuda"], request(2, GPU, 0)) };
    let why = rack.why_not(wanted, "");
    assert!(why.contains("node2 /dev/0: cannot \"cuda\""), "{why}");
    assert!(!why.contains("node1") && !why.contains("node3"), "{why}");
}

#[test]
fn device_grants_per_user_are_limited() {
    let mut rack = Rack::new(1, &[spec(ResourceKind::Storage, "/srv", 1 << 40)]);
    for client_id in 0..256 {
        rack.ask(request(client_id, ResourceKind::Storage, 1)).unwrap();
        rack.act(&|| Ok(()));
    }
    assert!(rack.answers.iter().all(|(_, result)| result.is_ok()));
    rack.ask(request(1000, ResourceKind::Storage, 1)).unwrap();
    rack.act(&|| Ok(()));
    let error = rack.answers.pop().unwrap().1.unwrap_err().to_string();
    assert!(error.contains("256 grants of devices"), "{error}");
}

#[test]
fn device_report_is_sanitised() {
    let mut rack = Rack::new(1, &[spec(ResourceKind::Storage, "/srv", 8 * STORAGE_UNIT_BYTES)]);
    let share = Share {
        kind: ResourceKind::Storage,
        address: "/srv".into(),
        bytes: STORAGE_UNIT_BYTES + 1,
        capabilities: vec!["made\nup".into(); 50],
    };
    let held = HeldGrant {
        ownership: 1,
        id: GrantId(7),
        share,
        state: HeldState::Committed,
        lease_ms: 10_000,
        owner: Some(owner()),
        recipient: "r".into(),
        purpose: "p".into(),
        priority: 100,
    };
    let report = |address: &str| DeviceReport {
        kind: ResourceKind::Storage,
        address: address.into(),
        fault: "\x1b[2Jbroken ".repeat(1000),
    };
    rack.report(vec![held], vec![report("/other"), report("/srv")]);
    let grants = rack.core.grant_rows(S);
    assert_eq!(grants[0].bytes, 2 * STORAGE_UNIT_BYTES, "in whole units");
    let rows = rack.core.resource_rows();
    let row = rows.iter().find(|row| row.address == "/srv").unwrap();
    assert!(row.health.contains("broken") && row.health.len() < 256, "{}", row.health);
    assert!(!row.health.contains(char::is_control));
}

#[test]
fn reported_usage_is_listed() {
    let mut rack = Rack::new(1, &[spec(GPU, "/dev/gpu0", 0), spec(GPU, "/dev/gpu1", 0)]);
    for client_id in [1, 2] {
        rack.ask(request(client_id, GPU, 0)).unwrap();
        rack.act(&|| Ok(()));
    }
    let granted: Vec<Grant> =
        rack.answers.drain(..).flat_map(|(_, result)| result.unwrap()).collect();
    let held = |grant: &Grant| HeldGrant {
        id: grant.id,
        share: grant.share.clone(),
        state: HeldState::Committed,
        lease_ms: 10_000,
        owner: None,
        recipient: "r".into(),
        purpose: "p".into(),
        priority: 100,
        ownership: 1,
    };
    let grant = granted[0].id;
    let (busy_ratio, in_bytes, out_bytes, commands) = (Some(0.5), Some(7), None, 3);
    let usage = vec![
        GrantUsage { grant, busy_ratio, in_bytes, out_bytes, commands },
        GrantUsage { grant: GrantId(99), busy_ratio, in_bytes, out_bytes, commands },
    ];
    rack.report_usage(granted.iter().map(held).collect(), Vec::new(), usage);
    let listed = |rack: &Rack, now_ns: u64| {
        let rows = rack.core.grant_rows(now_ns).into_iter();
        rows.map(|row| (row.busy_ratio, row.in_bytes, row.out_bytes, row.commands)).collect()
    };
    let rows: Vec<_> = listed(&rack, S);
    assert_eq!(rows, [(busy_ratio, in_bytes, None, Some(3)), (None, None, None, None)]);
    rack.core.handle_timeout(1000 * S);
    let rows: Vec<_> = listed(&rack, 1000 * S);
    assert_eq!(rows, [(None, None, None, None); 2], "the donor is down");
}

/// Returns a request for storage, or an accelerator, that waits a minute.
fn waiting(client_id: u128, kind: ResourceKind, units: u64, priority: u8) -> AllocationRequest {
    let queueing =
        Queueing { wait_ms: 60_000, priority, preempt: Preempt::All, ..Queueing::default() };
    AllocationRequest { queueing, ..request(client_id, kind, units * STORAGE_UNIT_BYTES) }
}

impl Rack {
    /// Makes a request, and returns the grants that are then being preempted.
    fn get(&mut self, request: AllocationRequest) -> Vec<u64> {
        self.ask(request).unwrap();
        self.act(&|| Ok(()));
        let rows = self.core.grant_rows(0).into_iter();
        rows.filter(|row| row.preempted_in_s.is_some()).map(|row| row.id).collect()
    }
}

#[test]
fn preemption_takes_least_storage() {
    const STORAGE: ResourceKind = ResourceKind::Storage;
    let mut rack = Rack::new(1, &[spec(STORAGE, "/srv", 8 * STORAGE_UNIT_BYTES)]);
    for (client_id, units, priority) in [(1, 4, 50), (2, 2, 50), (3, 2, 40)] {
        assert_eq!(rack.get(waiting(client_id, STORAGE, units, priority)), [0u64; 0]);
    }
    let ids: Vec<u64> = rack.core.grant_rows(0).iter().map(|row| row.id).collect();
    let mut preempted = |units| {
        let preempted = rack.get(waiting(9, STORAGE, units, 100));
        rack.core.handle_leave(0, &owner(), 9).unwrap();
        // The withdrawal answers the driver before the next request.
        while rack.core.poll_action().is_some() {}
        preempted
    };
    assert_eq!(preempted(2), [ids[2]], "the lowest priority");
    assert_eq!(preempted(3), [ids[1], ids[2]], "and no more than will do");
    assert_eq!(preempted(8), ids);
}

#[test]
fn lowest_priority_device_is_preempted() {
    let mut rack = Rack::new(2, &[spec(GPU, "/dev/gpu0", 0), spec(GPU, "/dev/gpu1", 0)]);
    for (client_id, priority) in [(1, 70), (2, 50), (3, 90), (4, 60)] {
        rack.get(waiting(client_id, GPU, 0, priority));
    }
    let ids: Vec<u64> = rack.core.grant_rows(0).iter().map(|row| row.id).collect();
    assert_eq!(rack.get(waiting(5, GPU, 0, 50)), [0u64; 0], "none has a lower priority");
    assert_eq!(rack.get(waiting(6, GPU, 0, 80)), [ids[1]]);
    // A preempted device is not given to another, and nothing more is preempted before it has come.
    assert_eq!(rack.get(waiting(7, GPU, 0, 75)), [ids[1]]);
    let rows = rack.core.queue_rows(0);
    let said: Vec<_> = rows.iter().map(|row| (row.priority, row.wants[0].preempting)).collect();
    assert_eq!(said, [(80, 1), (75, 0), (50, 0)]);
    let plan = rack.core.plan(&owner(), &request(8, GPU, 0)).unwrap();
    assert!(
        plan.refusal.contains("granted") && plan.devices[0].devices.iter().all(|it| !it.is_chosen)
    );
}

#[test]
fn storage_backfill_is_bounded() {
    let bytes = |units: u64| units * STORAGE_UNIT_BYTES;
    let storage = |client_id, units| request(client_id, ResourceKind::Storage, bytes(units));
    let device = |address| spec(ResourceKind::Storage, address, bytes(8));
    let mut rack = Rack::new(1, &[device("/srv"), device("/tmp")]);
    let queueing = Queueing { wait_ms: 60_000, ..Queueing::default() };
    for waits in [
        storage(1, 5),
        storage(2, 5),
        // Three are left of each.
        AllocationRequest { queueing, ..storage(3, 4) },
    ] {
        rack.get(waits);
    }
    let mut ask = |client_id, units| {
        rack.get(storage(client_id, units));
        rack.answers.iter().find(|(id, _)| *id == client_id).unwrap().1.clone()
    };
    assert!(ask(4, 3).is_ok());
    let refused = ask(5, 2).unwrap_err().to_string();
    assert!(refused.contains("/tmp: reserved for requests ahead in the queue"), "{refused}");
    assert!(ask(6, 1).is_ok());
    let row = rack.core.queue_rows(0).remove(0);
    let want = &row.wants[0];
    let said = (want.wanted, want.backfilled, want.free, row.needs.as_str());
    assert_eq!(said, (bytes(4), bytes(4), bytes(2), "device"));
}

/// Returns a request for an accelerator of each of these capabilities; an empty text: of any.
fn accelerators(client_id: u128, capabilities: &[&str]) -> AllocationRequest {
    let want = |able: &&str| {
        let capabilities = (!able.is_empty()).then(|| (*able).to_owned());
        Want { capabilities: capabilities.into_iter().collect(), ..Want::device(GPU, 0) }
    };
    let wants = capabilities.iter().map(want).collect();
    AllocationRequest { wants, ..request(client_id, GPU, 0) }
}

fn able(address: &str, capabilities: &[&str]) -> ResourceSpec {
    let capabilities = capabilities.iter().map(|it| (*it).to_owned()).collect();
    ResourceSpec { capabilities, ..spec(GPU, address, 0) }
}

#[test]
fn too_many_devices_are_refused() {
    let mut rack = Rack::new(3, &[spec(GPU, "/dev/gpu0", 0)]);
    let mut four = request(1, GPU, 0);
    four.wants[0].count = 4;
    let queueing = Queueing { wait_ms: 60_000, ..Queueing::default() };
    let separate = accelerators(2, &[""; 4]);
    let waits = AllocationRequest { client_id: 3, queueing, ..separate.clone() };
    for asked in [four, separate, waits] {
        let planned = rack.core.plan(&owner(), &asked).unwrap().refusal;
        rack.get(asked);
        let (_, answer) = rack.answers.pop().expect("it is answered at once");
        let Err(RackError::NoDevice(why)) = answer else { panic!("{answer:?}") };
        assert!(
            why.starts_with("no 4 accelerators available (node1 /dev/gpu0: would do, "),
            "{why}"
        );
        assert!(why.contains("waiting does not help") && why.contains("ask for less"), "{why}");
        assert_eq!(why, planned);
    }
    rack.get(accelerators(4, &[""; 3]));
    assert_eq!(rack.answers.pop().unwrap().1.unwrap().len(), 3);
    rack.get(accelerators(5, &[""]));
    let why = rack.answers.pop().unwrap().1.unwrap_err().to_string();
    assert!(why.ends_with("granted); ask for less, lend more, or wait for it (--wait)"), "{why}");
}

#[test]
fn competing_wants_share_devices() {
    let devices = [able("a", &["x", "y"]), able("b", &["x", "z", "t"]), able("c", &["z"])];
    // By itself each want has a device; together these four have three.
    let mut rack = Rack::new(1, &devices);
    rack.get(accelerators(1, &["x", "y", "z", "t"]));
    let why = rack.answers.pop().unwrap().1.unwrap_err().to_string();
    assert!(why.contains("no accelerator with x and accelerator with y and"), "{why}");
    // The first want must leave the device with the fewest capabilities to the second.
    for able in [&["x", "y", "z"][..], &["x", "y"], &["z", "x", "y"], &["z", "x", "t"]] {
        let mut rack = Rack::new(1, &devices);
        rack.get(accelerators(1, able));
        let granted = rack.answers.pop().unwrap().1.unwrap();
        for (grant, able) in granted.iter().zip(able) {
            assert!(grant.share.capabilities.contains(&(*able).to_owned()), "{granted:?}");
        }
    }
}

#[test]
fn preempted_devices_suit_all_wants() {
    let mut rack = Rack::new(1, &[able("a", &["x"]), able("b", &["x", "y"])]);
    for client_id in [1, 2] {
        rack.get(waiting(client_id, GPU, 0, 50));
    }
    let queueing = Queueing { wait_ms: 60_000, preempt: Preempt::All, ..Queueing::default() };
    let both = AllocationRequest { queueing, ..accelerators(3, &["x", "y"]) };
    assert_eq!(rack.get(both).len(), 2);
}

#[test]
fn failed_wait_blames_no_memory() {
    let mut rack = Rack::new(1, &[spec(GPU, "/dev/gpu0", 0)]);
    let queueing = Queueing { wait_ms: 1_000, ..Queueing::default() };
    rack.ask(AllocationRequest { queueing, ..accelerators(1, &[""]) }).unwrap();
    rack.act(&|| Err(CallError::NoAnswer));
    rack.core.handle_timeout(2 * S);
    rack.act(&|| Ok(()));
    let why = rack.answers.pop().unwrap().1.unwrap_err().to_string();
    assert!(!why.contains("no room"), "{why}");
}

#[test]
fn plan_names_node_of_device() {
    let mut rack = Rack::new(2, &[spec(GPU, "/dev/gpu0", 0)]);
    let both = AllocationRequest {
        wants: vec![Want::memory(SLAB_BYTES, 1), Want::device(GPU, 0)],
        ..request(1, GPU, 0)
    };
    let plan = rack.core.plan(&owner(), &both).unwrap();
    let why: Vec<&str> = plan.memory.iter().flat_map(|it| &it.nodes).map(|it| &*it.why).collect();
    assert_eq!(why, ["chosen: on the node of a device", "others come first"]);

    let limits = [(GPU, Limit::AtMost(0))].into_iter().collect();
    let quota = QuotaRecord { of: QuotaFor::Others, limits };
    rack.core.handle_set_quota(Token(9), quota, "root@h");
    let plan = rack.core.plan(&owner(), &both).unwrap();
    let mut rows = plan.devices[0].devices.iter().map(|it| &*it.why);
    assert!(rows.all(|why| why == "would do, but the quota has no room"));
}
