//! A rack in one thread: a Monitor Node that may crash, donors that may crash, recipients that
//! renew, and a network that loses, repeats and delays.

pub mod world;

use proptest::prelude::*;

pub const DONORS: usize = 3;
/// Monitor Nodes, where there are several.
pub const MONITORS: usize = 3;
pub const SLABS_PER_DONOR: u32 = 8;
/// The users, in turn.
pub const USERS: [&str; 2] = ["alice", "bob"];
pub const MS: u64 = 1_000_000;
pub const HEARTBEAT_MS: u64 = 1_000;
pub const LEASE_MS: u64 = 10_000;
pub const REQUEST_TIMEOUT_MS: u64 = 4_000;
pub const PREEMPT_NOTICE_MS: u64 = 6_000;
pub const WANT_BACK_WITHIN_MS: u64 = 15_000;

/// The fate of a call on its way to a donor.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    Answered,
    RequestLost,
    AnswerLost,
    /// Processed now, and a copy arrives later.
    Repeated,
    /// Lost for now; it arrives later.
    Late,
}

/// One step of a run. Numbers select an existing item, modulo their count.
#[derive(Debug, Clone)]
pub enum Op {
    Request {
        slabs: u32,
        named: Option<usize>,
    },
    /// An operation on a device.
    Device(DeviceOp),
    /// A request for memory and a device, all or nothing.
    Both {
        slabs: u32,
        which: usize,
        units: u64,
        waits: Option<Waits>,
    },
    /// The same for a recipient that may be queued.
    Wait {
        slabs: u32,
        named: Option<usize>,
        wait_ms: u64,
        priority: u8,
        preempts: bool,
    },
    /// A recipient without an answer withdraws its request.
    Leave(usize),
    /// A recipient without an answer repeats its request.
    AskAgain(usize),
    /// A recipient repeats its request, answered or not.
    Repeat(usize),
    Release(usize),
    /// A third party releases a recipient's grants with forged keys.
    Forge(usize),
    /// A recipient dies without releasing anything.
    Abandon(usize),
    /// The Monitor Node performs its next action.
    Act,
    Deliver(usize, Fate),
    /// A delayed copy arrives.
    DeliverStray(usize),
    Heartbeat(usize),
    /// A heartbeat is made and delayed.
    SlowHeartbeat(usize),
    DeliverSlowHeartbeat(usize),
    /// A donor wipes ended grants.
    Wipe(usize),
    RenewAll,
    /// An operator starts or ends the drain of a donor.
    Drain(usize, bool),
    /// A donor's machine reclaims slabs.
    WantBack(usize, u32),
    /// An administrator sets the quota of a user, or the default.
    SetQuota(usize, Option<u64>),
    /// The same for the devices of each donor: which, and how many, or units of storage.
    SetDeviceQuota(usize, usize, Option<u64>),
    RemoveQuota(usize),
    Pass {
        ms: u64,
    },
    CrashMonitor,
    /// Selects the Monitor Node, of several, for the following operations.
    Turn(usize),
    /// That Monitor Node receives the next transaction of its peers.
    Hear(usize),
    KillDonor(usize),
    /// A donor stops in an orderly way and deregisters at all Monitor Nodes.
    EndDonor(usize),
    StartDonor(usize),
}

/// One operation on a device. `which` selects among those that each donor has.
#[derive(Debug, Clone)]
pub enum DeviceOp {
    Get {
        which: usize,
        units: u64,
        named: Option<usize>,
        /// Its queueing options; `None`: it does not wait.
        waits: Option<Waits>,
    },
    /// A donor finds a device faulty, or healthy again.
    Break { index: usize, which: usize, fault: bool },
}

/// The queueing options of a request.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    pub wait_ms: u64,
    pub priority: u8,
    pub preempts: bool,
}

fn device_op() -> impl Strategy<Value = DeviceOp> {
    let which = 0..world::DEVICES.len();
    prop_oneof![
        6 => (which.clone(), 1u64..5, prop::option::weighted(0.3, 0..DONORS))
            .prop_map(|(which, units, named)| DeviceOp::Get { which, units, named, waits: None }),
        1 => (0..DONORS, which, any::<bool>())
            .prop_map(|(index, which, fault)| DeviceOp::Break { index, which, fault }),
    ]
}

/// A request for memory and a device, with some queueing options.
fn both(waits: Option<BoxedStrategy<Waits>>) -> impl Strategy<Value = Op> {
    let waits = match waits {
        Some(waits) => prop::option::weighted(0.8, waits).boxed(),
        None => Just(None).boxed(),
    };
    (1u32..14, 0..world::DEVICES.len(), 1u64..5, waits)
        .prop_map(|(slabs, which, units, waits)| Op::Both { slabs, which, units, waits })
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        8 => Just(Fate::Answered),
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Repeated),
        1 => Just(Fate::Late),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let pick = 0usize..64;
    prop_oneof![
        6 => (1u32..20, prop::option::weighted(0.3, 0..DONORS))
            .prop_map(|(slabs, named)| Op::Request { slabs, named }),
        6 => device_op().prop_map(Op::Device),
        2 => both(None),
        3 => pick.clone().prop_map(Op::AskAgain),
        1 => pick.clone().prop_map(Op::Repeat),
        5 => pick.clone().prop_map(Op::Release),
        1 => pick.clone().prop_map(Op::Forge),
        1 => pick.clone().prop_map(Op::Abandon),
        40 => Just(Op::Act),
        30 => (pick.clone(), fate()).prop_map(|(i, fate)| Op::Deliver(i, fate)),
        3 => pick.clone().prop_map(Op::DeliverStray),
        6 => (0..DONORS).prop_map(Op::Heartbeat),
        3 => (0..DONORS).prop_map(Op::SlowHeartbeat),
        3 => pick.prop_map(Op::DeliverSlowHeartbeat),
        6 => (0..DONORS).prop_map(Op::Wipe),
        6 => Just(Op::RenewAll),
        2 => (0..DONORS, any::<bool>()).prop_map(|(index, drains)| Op::Drain(index, drains)),
        2 => (0..DONORS, 0u32..6).prop_map(|(index, slabs)| Op::WantBack(index, slabs)),
        8 => (1u64..2_500).prop_map(|ms| Op::Pass { ms }),
        1 => Just(Op::CrashMonitor),
        1 => (0..DONORS).prop_map(Op::KillDonor),
        1 => (0..DONORS).prop_map(Op::EndDonor),
        2 => (0..DONORS).prop_map(Op::StartDonor),
    ]
}

/// Operations on a rack that is full most of the time, with queued recipients.
pub fn op_with_waiting() -> impl Strategy<Value = Op> {
    let pick = 0usize..64;
    let wait =
        (1u32..14, prop::option::weighted(0.3, 0..DONORS), 1u64..20_000, 98u8..103, any::<bool>());
    prop_oneof![
        20 => op(),
        14 => wait.prop_map(|(slabs, named, wait_ms, priority, preempts)| {
            Op::Wait { slabs, named, wait_ms, priority, preempts }
        }),
        6 => (1u32..6).prop_map(|slabs| Op::Request { slabs, named: None }),
        2 => pick.clone().prop_map(Op::Leave),
        16 => pick.clone().prop_map(Op::AskAgain),
        9 => pick.clone().prop_map(Op::Release),
        60 => Just(Op::Act),
        40 => (pick, fate()).prop_map(|(pick, fate)| Op::Deliver(pick, fate)),
        10 => (0..DONORS).prop_map(Op::Wipe),
        10 => (0..DONORS).prop_map(Op::Heartbeat),
        8 => Just(Op::RenewAll),
    ]
}

/// The same with devices, most of which are lent.
pub fn op_with_waiting_for_devices() -> impl Strategy<Value = Op> {
    let pick = 0usize..64;
    let waits = (1u64..20_000, 98u8..103, any::<bool>())
        .prop_map(|(wait_ms, priority, preempts)| Waits { wait_ms, priority, preempts });
    let get = (
        0..world::DEVICES.len(),
        1u64..5,
        prop::option::weighted(0.3, 0..DONORS),
        prop::option::weighted(0.8, waits.clone()),
    );
    let op = prop_oneof![
        12 => get.prop_map(|(which, units, named, waits)| {
            Op::Device(DeviceOp::Get { which, units, named, waits })
        }),
        4 => both(Some(waits.boxed())),
        2 => pick.clone().prop_map(Op::Leave),
        14 => pick.clone().prop_map(Op::AskAgain),
        8 => pick.prop_map(Op::Release),
        1 => device_op().prop_map(Op::Device),
    ];
    prop_oneof![1 => op, 3 => op_with_waiting()]
}

/// Operations of users with tight quotas: many requests and releases, few grants.
pub fn op_with_quotas() -> impl Strategy<Value = Op> {
    let (pick, whose) = (0usize..64, 0..=USERS.len());
    let rough = prop_oneof![
        4 => Just(Fate::Answered),
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::AnswerLost),
        1 => fate(),
    ];
    prop_oneof![
        20 => op(),
        16 => (1u32..5).prop_map(|slabs| Op::Request { slabs, named: None }),
        8 => pick.clone().prop_map(Op::Release),
        60 => Just(Op::Act),
        40 => (pick.clone(), rough).prop_map(|(pick, fate)| Op::Deliver(pick, fate)),
        2 => (whose.clone(), prop::option::weighted(0.9, 0u64..10))
            .prop_map(|(whose, slabs)| Op::SetQuota(whose, slabs)),
        2 => (whose.clone(), 0..world::DEVICES.len(), prop::option::weighted(0.9, 0u64..5))
            .prop_map(|(whose, which, most)| Op::SetDeviceQuota(whose, which, most)),
        6 => (0..world::DEVICES.len(), 1u64..4).prop_map(|(which, units)| {
            Op::Device(DeviceOp::Get { which, units, named: None, waits: None })
        }),
        3 => both(None),
        3 => pick.clone().prop_map(Op::Release),
        1 => whose.prop_map(Op::RemoveQuota),
    ]
}

/// The same with several Monitor Nodes, which receive each other's transactions at times.
pub fn op_of_several(op: impl Strategy<Value = Op>) -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => op,
        3 => (0usize..MONITORS).prop_map(Op::Turn),
        2 => (0usize..MONITORS).prop_map(Op::Hear),
    ]
}
