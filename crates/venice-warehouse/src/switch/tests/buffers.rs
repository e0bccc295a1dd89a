//! Room for packets that wait, by hand.

use super::*;
use crate::switch::config::Alpha;

/// Returns the fates of packets of 1000 bytes that come at once, given as inputs and outputs: sent,
/// queued, or the cause of the drop.
fn fates(buffer: BufferConfig, packets: &[(PortNumber, PortNumber)]) -> String {
    let config = PacketSwitchConfig { buffer, ..roomy() };
    let mut switch = packet_switch(config, 8);
    let fate = |(number, (input, output)): (u32, &(PortNumber, PortNumber))| match switch
        .arrive(0, &packet(number, 1000, *input, *output))
    {
        Outcome::Sent(_) => 's',
        Outcome::Queued { .. } => 'q',
        Outcome::Dropped(DropCause::QueueFull) => 'Q',
        Outcome::Dropped(DropCause::PoolFull) => 'P',
        Outcome::Dropped(DropCause::OverThreshold) => 'T',
    };
    (0..).zip(packets).map(fate).collect()
}

const TWO: Bytes = Bytes(2000);

#[test]
fn queue_has_its_room() {
    let buffer = BufferConfig::PerQueue { bytes: TWO };
    let packets = [(0, 7), (0, 7), (0, 7), (0, 7), (1, 7), (0, 6), (0, 6), (0, 6), (0, 6)];
    assert_eq!(fates(buffer, &packets), "sqqQqsqqQ");
}

#[test]
fn input_has_its_room() {
    let buffer = BufferConfig::PerInput { bytes: TWO };
    let packets = [(0, 7), (0, 7), (0, 6), (0, 6), (0, 7), (0, 6), (1, 7), (1, 6), (1, 7)];
    assert_eq!(fates(buffer, &packets), "sqsqQQqqQ");
}

#[test]
fn output_has_its_room() {
    let buffer = BufferConfig::PerOutput { bytes: TWO };
    let packets = [(0, 7), (0, 7), (1, 7), (2, 7), (2, 6), (2, 6), (3, 6), (4, 6)];
    assert_eq!(fates(buffer, &packets), "sqqQsqqQ");
}

#[test]
fn four_kilobytes_hold_two_packets() {
    let config = PacketSwitchConfig { latency: Picos(0), ..PacketSwitchConfig::default() };
    let mut switch = packet_switch(config, 2);
    let mut arrive = |n| switch.arrive(0, &packet(n, 1538, 0, 1));
    assert!(matches!(arrive(1), Outcome::Sent(_)));
    assert!(matches!(arrive(2), Outcome::Queued { wake_at: Some(_) }));
    assert!(matches!(arrive(3), Outcome::Queued { wake_at: None }));
    assert_eq!(arrive(4), Outcome::Dropped(DropCause::QueueFull));
}

fn shared(bytes: u64, alpha: (u32, u32), reserved: u64) -> BufferConfig {
    let alpha = Alpha::new(alpha.0, alpha.1).unwrap();
    BufferConfig::Shared { bytes: Bytes(bytes), alpha, reserved: Bytes(reserved) }
}

#[test]
fn threshold_follows_free_pool() {
    // With alpha 1 of 10 packets: a queue of q is below 10 - q until q is 5.
    let one = [(0, 7); 8];
    assert_eq!(fates(shared(10_000, (1, 1), 0), &one), "sqqqqqTT");
    // A second output, with 5 taken, until 5 - q is q: 3.
    let two = [[(0, 7); 7].as_slice(), &[(1, 6); 6]].concat();
    assert_eq!(fates(shared(10_000, (1, 1), 0), &two), "sqqqqqTsqqqTT");
    // Alpha 1/2: until q is (10 - q) / 2, 4.
    assert_eq!(fates(shared(10_000, (1, 2), 0), &one), "sqqqqTTT");
    // Alpha 8: until q is 8 (10 - q), above 8, and the ninth.
    let many = [(0, 7); 12];
    assert_eq!(fates(shared(10_000, (8, 1), 0), &many), "sqqqqqqqqqTT");
    // A threshold above all there is: the pool ends.
    assert_eq!(fates(shared(2500, (100, 1), 0), &one), "sqqPPPPP");
}

#[test]
fn reserved_room_comes_first() {
    // Two packets reserved, then alpha 1 of 4: two more.
    let one = [(0, 7); 7];
    assert_eq!(fates(shared(4000, (1, 1), 2000), &one), "sqqqqTT");
    // The other output has its own two, and one of the two left in the pool.
    let two = [[(0, 7); 5].as_slice(), &[(1, 6); 5]].concat();
    assert_eq!(fates(shared(4000, (1, 1), 2000), &two), "sqqqqsqqqT");
}

#[test]
fn room_comes_back() {
    let config = PacketSwitchConfig { buffer: shared(4000, (1, 1), 1000), ..roomy() };
    let mut rig = Rig::new(packet_switch(config, 4), []);
    for round in 0..3u32 {
        for n in 0..6 {
            let at = u64::from(round) * Picos::SECOND;
            rig.events.push(at, Event::Arrive(packet(round * 6 + n, 1000, (n % 3) as u16, 3)));
        }
    }
    // One at once, one reserved, two of the pool.
    assert_eq!(rig.departures().len(), 3 * 4);
    assert_eq!(rig.switch.total(0).drops, Drops { over_threshold: 6, ..Drops::default() });
}

#[test]
fn capable_packets_are_marked() {
    let config = PacketSwitchConfig { ecn_threshold: Some(TWO), ..roomy() };
    let arrivals = (0..8u32).map(|n| {
        let ecn_capable = n != 5;
        (0, Arriving { ecn_capable, ..packet(n, 1000, 0, 1) })
    });
    let mut rig = Rig::new(packet_switch(config, 2), arrivals);
    let marked: Vec<PacketId> = rig
        .run()
        .into_iter()
        .filter_map(|(_, step)| match step {
            Step::Arrived(_, Outcome::Sent(departure)) | Step::Woken(_, Some(departure)) => {
                departure.marked.then_some(departure.packet)
            }
            Step::Arrived(..) | Step::Woken(_, None) => None,
        })
        .collect();
    // One on the line, and two that wait at the threshold: the fourth to wait finds more. One of the
    // rest is not capable.
    assert_eq!(marked, [4, 6, 7]);
    assert_eq!(rig.switch.counters(1, 0).marked, 3);
}
