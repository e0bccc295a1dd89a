//! Model test: the indexes of the table agree with its entries after every change.

use super::*;
use crate::types::{FlowReport, NodeRegistration};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Insert { node: u32, epoch: u64, slabs: u32 },
    Remove(u32),
    Up(u32, bool),
    Drain(u32, bool),
    Status(u32, u32),
    Reserve(u32, u32),
    Pressure(u32, PressureLevel, Option<f64>),
    Flow(u32, Option<f64>),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 1u32..5;
    prop_oneof![
        (node(), 1u64..3, 0u32..3).prop_map(|(node, epoch, slabs)| Step::Insert {
            node,
            epoch,
            slabs
        }),
        node().prop_map(Step::Remove),
        (node(), any::<bool>()).prop_map(|(node, up)| Step::Up(node, up)),
        (node(), any::<bool>()).prop_map(|(node, drains)| Step::Drain(node, drains)),
        (node(), 0u32..4).prop_map(|(node, free)| Step::Status(node, free)),
        (node(), 0u32..3).prop_map(|(node, reserved)| Step::Reserve(node, reserved)),
        (node(), any::<bool>(), prop::option::of(0f64..0.2)).prop_map(|(node, low, stall)| {
            let level = if low { PressureLevel::Low } else { PressureLevel::None };
            Step::Pressure(node, level, stall)
        }),
        (node(), prop::option::of(0f64..3.0)).prop_map(|(node, flow)| Step::Flow(node, flow)),
    ]
}

fn entry(node: u32, epoch: u64, slabs: u32) -> NodeEntry {
    let registration = NodeRegistration {
        name: format!("node{node}"),
        instance: epoch,
        pid: None,
        control_addr: String::new(),
        udp_addr: String::new(),
        shm_socket: String::new(),
        resources: vec![ResourceSpec {
            kind: ResourceKind::Memory,
            address: String::new(),
            bytes: u64::from(slabs) * SLAB_BYTES,
            slab_bytes: SLAB_BYTES,
            capabilities: Vec::new(),
        }],
        previous: None,
        secret: None,
        is_plain: true,
        relay: None,
        link: String::new(),
        is_pool: false,
    };
    let identity = Identity { node: NodeId(node), epoch };
    NodeEntry::new(NodeRecord::new(identity, registration, None), 0)
}

impl Step {
    fn take(self, rrt: &mut Rrt) {
        let mut with = |node: u32, change: &mut dyn FnMut(&mut NodeEntry)| {
            if let Some(mut entry) = rrt.get_mut(NodeId(node)) {
                change(&mut entry);
            }
        };
        match self {
            Self::Insert { node, epoch, slabs } => rrt.insert(entry(node, epoch, slabs)),
            Self::Remove(node) => rrt.remove(NodeId(node)),
            Self::Up(node, up) => with(node, &mut |entry| entry.up = up),
            Self::Drain(node, drains) => {
                if rrt.get(NodeId(node)).is_some() {
                    rrt.change_record(NodeId(node), |record| record.is_draining = drains);
                }
            }
            Self::Status(node, free_slabs) => with(node, &mut |entry| {
                entry.status.free_slabs = free_slabs;
            }),
            Self::Reserve(node, slabs) => with(node, &mut |entry| entry.reserved_slabs = slabs),
            Self::Pressure(node, level, stall_ratio) => with(node, &mut |entry| {
                entry.pressure = PressureReport { level, available_bytes: None, stall_ratio };
            }),
            Self::Flow(node, bytes_per_s) => with(node, &mut |entry| {
                let flow = |bytes_per_s| FlowReport { with: FlowPeer::Anybody, bytes_per_s };
                entry.port.flows = bytes_per_s.map(flow).into_iter().collect();
            }),
        }
    }
}

/// Returns what peer lists are made of.
fn visible(rrt: &Rrt) -> Vec<(NodeId, bool, NodeRecord)> {
    rrt.iter().map(|(node, entry)| (node, entry.up, NodeRecord::clone(&entry.record))).collect()
}

proptest! {
    #[test]
    fn indexes_follow_entries(steps in prop::collection::vec(step(), 0..40)) {
        let mut rrt = Rrt::default();
        for step in steps {
            let (before, revision) = (visible(&rrt), rrt.revision());
            step.take(&mut rrt);
            prop_assert!(rrt.revision() > revision || visible(&rrt) == before);
            let rooms: Vec<_> = rrt.with_room().collect();
            let by_entries = rrt.iter().filter_map(|(node, entry)| Some((node, Room::of(entry)?)));
            prop_assert_eq!(rooms, by_entries.collect::<Vec<_>>());
        }
    }
}
