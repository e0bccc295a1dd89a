//! Latency by hand, over one to three switches.

use super::*;
use crate::switch::config::Forwarding;

const MICRO: u64 = Picos::MICRO;

/// Sends one packet of 1000 bytes through a chain of switches of 1 µs and cables of 50 ns, the ports
/// between them at `rates`; returns the times of the first and last bit at the end of the last cable.
fn through_chain(forwarding: Forwarding, rates: &[u64]) -> (u64, u64) {
    let config = PacketSwitchConfig { forwarding, ..PacketSwitchConfig::default() };
    let config = SwitchConfig::Packet(config);
    let (mut first_bit, mut last_bit) = (0, 0);
    for pair in rates.windows(2) {
        let ports = [BitRate(pair[0]), BitRate(pair[1])];
        let arriving = Arriving { input_rate: ports[0], ..packet(1, 1000, 0, 1) };
        let mut rig = Rig::new(Switch::new(&config, &ports), [(first_bit, arriving)]);
        let departures = rig.departures();
        let &[(1, first, last)] = &departures[..] else { panic!("{departures:?}") };
        (first_bit, last_bit) = (first + 50_000, last + 50_000);
    }
    (first_bit, last_bit)
}

#[test]
fn cut_through_costs_latency_and_cable() {
    let gigabit = GIGABIT.0;
    for switches in 1..=3u64 {
        let rates = vec![gigabit; switches as usize + 1];
        let first = switches * (MICRO + 50_000);
        assert_eq!(through_chain(Forwarding::CutThrough, &rates), (first, first + 8 * MICRO));
    }
}

#[test]
fn stored_packet_waits_for_its_end() {
    let gigabit = GIGABIT.0;
    for switches in 1..=3u64 {
        let rates = vec![gigabit; switches as usize + 1];
        let first = switches * (8 * MICRO + MICRO + 50_000);
        assert_eq!(through_chain(Forwarding::StoreAndForward, &rates), (first, first + 8 * MICRO));
    }
}

#[test]
fn faster_output_never_runs_dry() {
    // 8 µs in, 0.8 µs out: it may begin 7.2 µs after the first bit came.
    let (slow, fast) = (GIGABIT.0, 10 * GIGABIT.0);
    let up = 7_200_000 + MICRO + 50_000;
    assert_eq!(through_chain(Forwarding::CutThrough, &[slow, fast]), (up, up + 800_000));
    // Down again: at once.
    let down = up + MICRO + 50_000;
    assert_eq!(
        through_chain(Forwarding::CutThrough, &[slow, fast, slow]),
        (down, down + 8 * MICRO)
    );
    // Stored and forwarded, it waits for all of each line.
    let stored = 8 * MICRO + MICRO + 50_000;
    assert_eq!(
        through_chain(Forwarding::StoreAndForward, &[slow, fast]),
        (stored, stored + 800_000)
    );
    let stored = stored + 800_000 + MICRO + 50_000;
    let whole = through_chain(Forwarding::StoreAndForward, &[slow, fast, slow]);
    assert_eq!(whole, (stored, stored + 8 * MICRO));
}

#[test]
fn output_is_busy_for_the_line() {
    let config = PacketSwitchConfig { latency: Picos(MICRO), ..roomy() };
    let arrivals =
        [(0, packet(1, 1000, 0, 3)), (500, packet(2, 500, 1, 3)), (900, packet(3, 1, 2, 3))];
    let mut rig = Rig::new(packet_switch(config, 4), arrivals);
    let (one, two) = (1000 * BYTE, 1500 * BYTE);
    assert_eq!(
        rig.departures(),
        [
            (1, MICRO, MICRO + one),
            (2, MICRO + one, MICRO + two),
            (3, MICRO + two, MICRO + two + BYTE)
        ]
    );
    let counters = rig.switch.counters(3, two);
    assert_eq!((counters.packets, counters.bytes, counters.queued), (3, 1501, 2));
    assert_eq!(counters.most_queued, 501);
    // 500 bytes from 500 ps until the first packet is gone, one byte from 900 ps until the second is.
    assert_eq!(counters.queued_time, u128::from(500 * (one - 500) + two - 900));
}

#[test]
fn one_event_sends_an_uncontended_packet() {
    let arrivals = (0..100u32).map(|n| (u64::from(n) * 1000 * BYTE, packet(n, 1000, 0, 1)));
    let mut rig = Rig::new(packet_switch(PacketSwitchConfig::default(), 2), arrivals);
    let steps = rig.run();
    assert_eq!(steps.len(), 100);
    assert!(steps.iter().all(|(_, step)| matches!(step, Step::Arrived(_, Outcome::Sent(_)))));
    // Two events for each that waits: it arrives, and its output is woken.
    let arrivals = (0..100u32).map(|n| (0, packet(n, 1000, (n % 10) as u16, 11)));
    let steps = Rig::new(packet_switch(roomy(), 12), arrivals).run();
    assert_eq!(steps.len(), 100 + 99);
}

#[test]
fn earlier_packet_replaces_a_wake() {
    // A long packet that is stored until 8 µs; a short one comes whole before that.
    let config = PacketSwitchConfig { forwarding: Forwarding::StoreAndForward, ..roomy() };
    let arrivals = [(0, packet(1, 1000, 0, 2)), (1000, packet(2, 64, 1, 2))];
    let departures = Rig::new(packet_switch(config, 3), arrivals).departures();
    let short = 1000 + 64 * BYTE;
    assert_eq!(departures, [(2, short, short + 64 * BYTE), (1, 8 * MICRO, 16 * MICRO)]);
}

#[test]
fn replaced_wake_does_nothing() {
    let config = PacketSwitchConfig { forwarding: Forwarding::StoreAndForward, ..roomy() };
    let mut switch = packet_switch(config, 3);
    let whole = [(0, 1000, 0), (1000, 64, 1)].map(|(at, bytes, input)| {
        match switch.arrive(at, &packet(bytes, bytes, input, 2)) {
            Outcome::Queued { wake_at: Some(at) } => at,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(whole, [8 * MICRO, 1000 + 64 * BYTE]);
    let (short, next) = switch.wake(whole[1], 2);
    assert_eq!((short.map(|short| short.packet), next), (Some(64), Some(1000 + 128 * BYTE)));
    assert_eq!(switch.wake(1000 + 128 * BYTE, 2), (None, Some(8 * MICRO)));
    let (long, next) = switch.wake(8 * MICRO, 2);
    assert_eq!((long.map(|long| long.packet), next), (Some(1000), None));
    assert_eq!(switch.wake(8 * MICRO, 2), (None, None), "the replaced one");
}

#[test]
fn saved_switch_goes_on_alike() {
    let arrivals =
        (0..200u32).map(|n| (u64::from(n) * 3 * BYTE, packet(n, 100 + n, (n % 7) as u16, 7)));
    for config in [SwitchConfig::Packet(roomy()), SwitchConfig::Circuit(Default::default())] {
        let switch = || Switch::new(&config, &[GIGABIT; 8]);
        let mut whole = Rig::new(switch(), arrivals.clone());
        let mut saved = Rig::new(switch(), arrivals.clone());
        for _ in 0..120 {
            assert_eq!(whole.step(), saved.step());
        }
        let text = serde_json::to_string(&saved.switch).unwrap();
        saved.switch = serde_json::from_str(&text).unwrap();
        assert_eq!(whole.run(), saved.run());
        assert_eq!(whole.switch.total(0), saved.switch.total(0));
    }
}
