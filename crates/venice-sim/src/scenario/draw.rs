//! Scenarios drawn from a seed, the input of thousands of runs.

use std::num::NonZeroU64;

use venice_fabric::LinkModel;

use super::{Fault, FaultKind, Impairment, Mix, Protocol, Scenario, Workload};
use venice_simkernel::random::Stream;
use venice_simkernel::units::{Nanos, Share};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Bounds of a random scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Fewest nodes.
    pub min_nodes: u16,
    /// Most nodes.
    pub max_nodes: u16,
    /// Accesses of the whole rack, about; larger racks do less on each node.
    pub accesses: u32,
    /// Most faults.
    pub max_faults: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { min_nodes: 8, max_nodes: 64, accesses: 600, max_faults: 6 }
    }
}

impl Scenario {
    /// Draws the scenario of a seed.
    pub fn random(seed: u64, bounds: &Bounds) -> Self {
        let root = Stream::new(seed).split("scenario", &[]);
        let nodes = draw_nodes(&mut root.split("nodes", &[]), bounds);
        let (topology, nodes) = draw_topology(&mut root.split("topology", &[]), bounds, nodes);
        let has_relays = topology != "all-to-all";
        let source_routes = has_relays && root.split("routing", &[]).chance(250_000);
        let protocol = draw_protocol(&mut root.split("protocol", &[]), has_relays);
        let protocol = Protocol { source_routes, ..protocol };
        let workload = draw_workload(&mut root.split("workload", &[]), bounds, nodes);
        let span_ns = u64::from(workload.accesses) * workload.think.0;
        let mut rng = root.split("faults", &[]);
        let count = rng.below(u64::from(bounds.max_faults) + 1);
        let draw = |n| draw_fault(&mut root.split("fault", &[n]), nodes, &protocol, span_ns);
        let faults = (0..count).map(draw).collect();
        let mut rng = root.split("link", &[]);
        Self {
            seed,
            nodes,
            topology,
            link: draw_link(&mut rng),
            queue_bytes: *rng.pick(&[32 << 10, 1 << 20]),
            impairment: draw_impairment(&mut rng),
            protocol,
            workload,
            faults,
        }
    }
}

/// Draws the number of nodes: small racks are more frequent than large ones, since they allow more
/// seeds.
fn draw_nodes(rng: &mut Stream, bounds: &Bounds) -> u16 {
    let (low, high) = (u64::from(bounds.min_nodes), u64::from(bounds.max_nodes));
    let once = rng.between(low, high);
    let twice = rng.between(low, once);
    rng.between(low, twice) as u16
}

/// Draws the topology: three racks of eight have switches; a mesh has as many nodes as its shape.
fn draw_topology(rng: &mut Stream, bounds: &Bounds, nodes: u16) -> (String, u16) {
    let shapes = [(2, 2, 2), (3, 3, 1), (4, 3, 1), (8, 1, 1), (4, 4, 1), (3, 3, 3), (4, 4, 4)];
    let fits = |(x, y, z): &&(u16, u16, u16)| {
        (bounds.min_nodes..=nodes.max(bounds.min_nodes)).contains(&(x * y * z))
    };
    let fitting: Vec<_> = shapes.iter().filter(fits).collect();
    match rng.below(8) {
        0 => ("router".into(), nodes),
        n @ 1..3 if !fitting.is_empty() => {
            let (x, y, z) = **rng.pick(&fitting);
            let kind = if n == 1 { "mesh" } else { "torus" };
            (format!("{kind}:{x}x{y}x{z}"), x * y * z)
        }
        _ => ("all-to-all".into(), nodes),
    }
}

/// Draws the protocol's settings. With relays every access needs several hop links at once. On
/// links that lose a fifth of the frames, few pings in a short silence would keep taking some of
/// them down, and nothing would pass; there the links ping more often, and wait longer.
fn draw_protocol(rng: &mut Stream, has_relays: bool) -> Protocol {
    let window = *rng.pick(&[4, 4, 4, 8, 8, 8, 16, 16, 16, 64]);
    let (crma_depth, hop_packets) = (*rng.pick(&[4, 32]), *rng.pick(&[1, 4, 32]));
    if rng.chance(200_000) {
        // The product's defaults.
        return Protocol { window, crma_depth, hop_packets, ..Protocol::default() };
    }
    let silence_ns = *rng.pick(&[20 * MS, 200 * MS]);
    let (silence_ns, pings) = if has_relays { (200 * MS, 32) } else { (silence_ns, 8) };
    Protocol {
        window,
        crma_depth,
        hop_packets,
        ack_delay: Nanos(*rng.pick(&[0, 20 * US, 500 * US])),
        replay_min: Nanos(*rng.pick(&[100 * US, MS])),
        replay_max: Nanos(silence_ns / 4),
        keepalive: Nanos(silence_ns / pings),
        silence: Nanos(silence_ns),
        source_routes: false,
    }
}

fn draw_workload(rng: &mut Stream, bounds: &Bounds, nodes: u16) -> Workload {
    let weights = Mix::default();
    let nothing = Mix {
        read: 0,
        write: 0,
        bulk_read: 0,
        bulk_write: 0,
        message: 0,
        fetch_add: 0,
        compare_swap: 0,
        post: 0,
        fence: 0,
        ..weights
    };
    let mixes = [
        Mix::default(),
        Mix { bulk_read: 0, bulk_write: 0, unmap: 1, stream: 1, ..Mix::default() },
        Mix { read: 1, write: 1, bulk_read: 1, bulk_write: 1, message: 1, ..nothing },
        Mix { read: 1, write: 8, bulk_write: 1, post: 4, ..nothing },
        Mix { read: 1, write: 1, message: 8, stream: 1, ..nothing },
        Mix { read: 2, fetch_add: 4, compare_swap: 4, write: 1, stream: 1, ..nothing },
        Mix { read: 4, post: 8, fence: 1, bulk_read: 1, unmap: 1, ..nothing },
    ];
    Workload {
        accesses: (bounds.accesses / u32::from(nodes)).max(8),
        depth: *rng.pick(&[1, 4, 16, 64]),
        donors: rng.between(1, 3) as u16,
        region_bytes: *rng.pick(&[256, 4096, 12 << 10]),
        counters: *rng.pick(&[1, 4]),
        max_access_bytes: *rng.pick(&[16, 256, 4096]),
        max_bulk_bytes: *rng.pick(&[4096, 24 << 10]),
        think: Nanos(*rng.pick(&[2 * US, 50 * US, 500 * US])),
        mix: *rng.pick(&mixes),
    }
}

fn draw_link(rng: &mut Stream) -> LinkModel {
    let bandwidth_bps = NonZeroU64::new(*rng.pick(&[0, 1_000_000_000, 5_000_000_000]));
    LinkModel {
        latency_ns: *rng.pick(&[300, 1_400, 10 * US, 100 * US]),
        bandwidth_bps,
        router_ns: 0,
    }
}

fn draw_impairment(rng: &mut Stream) -> Impairment {
    let share = |rng: &mut Stream, shares: &[u32]| Share(*rng.pick(shares));
    Impairment {
        loss: share(rng, &[0, 0, 1_000, 20_000, 200_000]),
        duplicate: share(rng, &[0, 0, 10_000, 200_000]),
        corrupt: share(rng, &[0, 0, 5_000, 50_000]),
        reorder: share(rng, &[0, 0, 10_000, 300_000]),
        jitter: Nanos(*rng.pick(&[5 * US, 500 * US, 5 * MS])),
        stale: share(rng, &[0, 0, 20_000, 100_000]),
    }
}

fn draw_fault(rng: &mut Stream, nodes: u16, protocol: &Protocol, span_ns: u64) -> Fault {
    let at = Nanos(rng.below(span_ns.max(1) + 1));
    // Durations: shorter than the detection time, about as long, and longer.
    let silence_ns = protocol.silence.0;
    let lasts = Nanos(match rng.below(3) {
        0 => rng.between(silence_ns / 1000, silence_ns / 10),
        1 => rng.between(silence_ns / 2, silence_ns * 2),
        _ => rng.between(silence_ns * 2, silence_ns * 4),
    });
    let node = |rng: &mut Stream| rng.below(u64::from(nodes)) as u16;
    let kind = match rng.below(8) {
        0 | 1 => {
            let from = node(rng);
            let away = rng.between(1, u64::from(nodes) - 1) as u16;
            FaultKind::Cut { from, to: (from + away) % nodes, both: rng.chance(500_000) }
        }
        2 => FaultKind::Isolate { node: node(rng) },
        3 => FaultKind::Crash { node: node(rng), same_keys: rng.chance(500_000) },
        4 => FaultKind::KillRecipient { node: node(rng) },
        5 => FaultKind::Freeze { node: node(rng) },
        6 => FaultKind::Revoke { node: node(rng), abrupt: rng.chance(300_000) },
        _ => FaultKind::Storm { impairment: draw_impairment(rng) },
    };
    Fault { at, lasts, kind }
}
