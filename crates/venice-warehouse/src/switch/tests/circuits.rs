//! Virtual circuits.

use proptest::prelude::*;

use super::*;
use crate::switch::config::CircuitSwitchConfig;

const MICRO: u64 = Picos::MICRO;

/// Four circuits a port, each of 250 Mb/s: 32 ns a byte. Set-up in 10 µs, torn down after 100 µs.
fn config() -> CircuitSwitchConfig {
    CircuitSwitchConfig {
        latency: Picos(100_000),
        set_up: Picos(10 * MICRO),
        idle: Picos(100 * MICRO),
        circuits_per_port: 4,
    }
}

fn rig(config: CircuitSwitchConfig, arrivals: &[(u64, Arriving)]) -> Rig {
    let config = SwitchConfig::Circuit(config);
    config.check().expect("it is a valid configuration");
    Rig::new(Switch::new(&config, &[GIGABIT; 8]), arrivals.iter().copied())
}

fn circuits_made(rig: &Rig) -> u64 {
    match &rig.switch {
        Switch::Circuit(switch) => switch.circuits_made(),
        Switch::Packet(_) => 0,
    }
}

#[test]
fn first_packet_waits_for_set_up() {
    let arrivals = [
        (0, packet(1, 1000, 0, 7)),
        (8 * MICRO, packet(2, 1000, 0, 7)),
        // The circuit is idle from 74 µs on.
        (80 * MICRO, packet(3, 1000, 0, 7)),
        // The circuit is idle for 100 µs at 212 µs.
        (211 * MICRO, packet(4, 1000, 0, 7)),
        (343 * MICRO, packet(5, 1000, 0, 7)),
    ];
    let mut rig = rig(config(), &arrivals);
    let bit = |at: u64| at * MICRO + 100_000;
    assert_eq!(
        rig.departures(),
        [
            (1, bit(10), bit(42)),
            (2, bit(42), bit(74)),
            (3, bit(80), bit(112)),
            (4, bit(211), bit(243)),
            (5, bit(353), bit(385)),
        ]
    );
    assert_eq!(circuits_made(&rig), 2);
}

#[test]
fn circuit_keeps_its_rate_among_others() {
    let own: Vec<(u64, Arriving)> =
        (0..10u32).map(|n| (u64::from(n) * 40 * MICRO, packet(n, 1000, 0, 7))).collect();
    let alone = rig(config(), &own).departures();
    let others =
        (100..400u32).map(|n| (u64::from(n) * MICRO, packet(n, 1500, 1 + (n % 3) as u16, 7)));
    let mut both: Vec<(u64, Arriving)> = own.iter().copied().chain(others).collect();
    both.sort_by_key(|(at, _)| *at);
    let mut shared = rig(config(), &both).departures();
    assert_eq!(shared.len(), 310);
    shared.retain(|(packet, _, _)| *packet < 10);
    assert_eq!(shared, alone);
}

#[test]
fn packet_waits_for_a_slot() {
    // Four inputs hold the slots of the output; the fifth waits until one is idle.
    let mut arrivals: Vec<(u64, Arriving)> =
        (0..4u32).map(|n| (u64::from(n) * MICRO, packet(n, 1000, n as u16, 7))).collect();
    arrivals.push((20 * MICRO, packet(4, 1000, 4, 7)));
    let mut rig = rig(config(), &arrivals);
    let departures = rig.departures();
    // The first circuit is idle from 42 µs, torn down at 142 µs.
    let first = 152 * MICRO + 100_000;
    assert_eq!(departures.last(), Some(&(4, first, first + 32 * MICRO)));
    assert_eq!(circuits_made(&rig), 5);
}

#[test]
fn slot_of_an_input_is_shared() {
    // One input to five outputs.
    let arrivals: Vec<(u64, Arriving)> =
        (0..5u32).map(|n| (u64::from(n) * MICRO, packet(n, 1000, 0, 1 + n as u16))).collect();
    let departures = rig(config(), &arrivals).departures();
    let first = 152 * MICRO + 100_000;
    assert_eq!(departures.last(), Some(&(4, first, first + 32 * MICRO)));
}

#[test]
fn busy_circuit_is_kept() {
    // One circuit a port, always busy for a millisecond: the other input waits for its end.
    let config = CircuitSwitchConfig { circuits_per_port: 1, ..config() };
    let busy = (0..125u32).map(|n| (u64::from(n) * 8 * MICRO, packet(n, 1000, 0, 7)));
    let arrivals: Vec<(u64, Arriving)> = busy.chain([(MICRO, packet(1000, 1000, 1, 7))]).collect();
    let departures = rig(config, &arrivals).departures();
    assert_eq!(departures.len(), 126);
    let end = (10 + 125 * 8) * MICRO;
    assert_eq!(departures[124].2, end + 100_000);
    // It looks at least every 100 µs from the time that the circuit is idle.
    let (last, first, _) = departures[125];
    assert_eq!(last, 1000);
    let wait = first - 100_000 - end;
    assert!((110 * MICRO..=210 * MICRO).contains(&wait), "{wait}");
}

proptest! {
    #[test]
    fn every_packet_leaves_in_order(
        packets in prop::collection::vec((0..400u64, 1..1500u32, 0..8u16, 0..8u16), 1..200),
        circuits_per_port in 1..5u16,
    ) {
        let mut arrivals: Vec<(u64, Arriving)> = (0..)
            .zip(packets)
            .map(|(n, (at, bytes, input, output))| (at * MICRO, packet(n, bytes, input, output)))
            .collect();
        arrivals.sort_by_key(|(at, _)| *at);
        let mut rig = rig(CircuitSwitchConfig { circuits_per_port, ..config() }, &arrivals);
        let departures = rig.departures();
        prop_assert_eq!(departures.len(), arrivals.len());
        prop_assert_eq!(rig.switch.total(0).drops.total(), 0);
        // By pair: the order of arrival, one packet at a time at the circuit's rate.
        let of_packet = |number: PacketId| departures.iter().find(|one| one.0 == number).unwrap();
        for input in 0..8 {
            for output in 0..8 {
                let pair = arrivals.iter().filter(|(_, a)| (a.input, a.output) == (input, output));
                let mut line_free_at = 0;
                for (at, arriving) in pair {
                    let &(_, first, last) = of_packet(arriving.packet);
                    prop_assert!(first >= at + 100_000 && first >= line_free_at);
                    let rate = BitRate(GIGABIT.0 / u64::from(circuits_per_port));
                    prop_assert_eq!(last - first, rate.time_of(arriving.bytes.into()));
                    line_free_at = last;
                }
            }
        }
        // By port: no more circuits at once than slots.
        for port in 0..8u16 {
            let sending = |is_of: fn(&Arriving) -> u16| {
                let ends = arrivals.iter().filter(|(_, a)| is_of(a) == port);
                let mut edges: Vec<(u64, i32)> = ends
                    .flat_map(|(_, a)| {
                        let &(_, first, last) = of_packet(a.packet);
                        [(first, 1), (last, -1)]
                    })
                    .collect();
                edges.sort_unstable();
                edges.iter().scan(0, |count, (_, edge)| { *count += edge; Some(*count) }).max()
            };
            prop_assert!(sending(|a| a.output).unwrap_or(0) <= i32::from(circuits_per_port));
            prop_assert!(sending(|a| a.input).unwrap_or(0) <= i32::from(circuits_per_port));
        }
    }
}
