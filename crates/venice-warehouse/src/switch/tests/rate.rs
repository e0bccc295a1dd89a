//! Packet-hops a second of a switch alone.

use std::hint::black_box;
use std::time::Instant;

use super::*;

/// Prints the rate at which one switch of each size sends packets: that wait for nothing, and of which
/// most wait. Run it with
/// `cargo test --release -p venice-warehouse switch::tests::rate -- --ignored --nocapture`.
#[test]
#[ignore = "it measures"]
fn rates_are_printed() {
    for ports in [32, 128] {
        let seconds = uncontended(ports, 50_000_000);
        println!("{ports} ports, uncontended: {:.1} M packet-hops/s", 50.0 / seconds);
        let seconds = contended(ports, 20_000_000);
        println!("{ports} ports, contended:   {:.1} M packet-hops/s", 20.0 / seconds);
    }
}

fn uncontended(ports: u16, packets: u32) -> f64 {
    let mut switch = packet_switch(PacketSwitchConfig::default(), ports.into());
    let start = Instant::now();
    let mut now = 0;
    for n in 0..packets {
        let input = (n % u32::from(ports)) as u16;
        now += if input == 0 { 1538 * BYTE } else { 0 };
        let arriving = packet(n, 1538, input, (input + 7) % ports);
        let outcome = black_box(switch.arrive(now, black_box(&arriving)));
        assert!(matches!(outcome, Outcome::Sent(_)));
    }
    start.elapsed().as_secs_f64()
}

/// Two inputs send to each of half of the outputs, each at half of the line rate.
fn contended(ports: u16, packets: u32) -> f64 {
    let mut switch = packet_switch(roomy(), ports.into());
    let mut wakes = vec![None; ports.into()];
    let start = Instant::now();
    let (mut now, mut sent) = (0, 0);
    for n in 0..packets {
        let input = (n % u32::from(ports)) as u16;
        if input == 0 {
            now += 2 * 1538 * BYTE;
        }
        let output = input / 2;
        match switch.arrive(now, black_box(&packet(n, 1538, input, output))) {
            Outcome::Sent(_) => sent += 1,
            Outcome::Queued { wake_at } => wakes[usize::from(output)] = wake_at,
            Outcome::Dropped(_) => unreachable!("there is room"),
        }
        if input + 1 == ports {
            for (output, wake_at) in (0..).zip(&mut wakes) {
                while let Some(at) = wake_at.take() {
                    let (departure, next) = black_box(switch.wake(at, output));
                    sent += u32::from(departure.is_some());
                    *wake_at = next;
                }
            }
        }
    }
    assert!(sent + u32::from(ports) >= packets);
    start.elapsed().as_secs_f64()
}
