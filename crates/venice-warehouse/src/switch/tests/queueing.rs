//! Waiting times against theory, and shares of inputs.

use venice_simkernel::random::Stream;

use super::*;
use crate::switch::config::Arbitration;

/// Returns the mean wait at a load, in packet times, and its standard error from 40 batches.
fn mean_wait(load: f64, arbitration: Arbitration) -> (f64, f64) {
    let mut random = Stream::new(1).split("arrivals", &[]);
    let mut now = 0.0;
    let time = (1000 * BYTE) as f64;
    let arrivals: Vec<(u64, Arriving)> = (0..400_000u32)
        .map(|n| {
            let uniform = (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
            now -= (1.0 - uniform).ln() * time / load;
            (now as u64, packet(n, 1000, random.below(16) as u16, 16))
        })
        .collect();
    let config = PacketSwitchConfig { arbitration, ..roomy() };
    let departures = Rig::new(packet_switch(config, 17), arrivals.clone()).departures();
    assert_eq!(departures.len(), arrivals.len());
    let wait = |&(packet, first, _): &(PacketId, u64, u64)| {
        (first - arrivals[packet as usize].0) as f64 / time
    };
    let waits: Vec<f64> = departures.iter().map(wait).collect();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let batches: Vec<f64> = waits.chunks(10_000).map(mean).collect();
    let all = mean(&batches);
    let variance =
        batches.iter().map(|batch| (batch - all).powi(2)).sum::<f64>() / (batches.len() - 1) as f64;
    (all, (variance / batches.len() as f64).sqrt())
}

/// The mean wait of M/D/1 is ρ / 2(1 - ρ) service times (Pollaczek and Khinchine). It is the same for
/// any order that does not look at sizes.
#[test]
fn waits_agree_with_theory() {
    for load in [0.3, 0.5, 0.7, 0.8, 0.9] {
        for arbitration in [Arbitration::Fifo, Arbitration::RoundRobin] {
            let theory = load / (2.0 * (1.0 - load));
            let (mean, error) = mean_wait(load, arbitration);
            assert!((mean - theory).abs() < 4.0 * error, "{load}: {mean} ± {error}, not {theory}");
            assert!(error < 0.05 * theory, "{load}: an error of {error} proves little");
        }
    }
}

/// Returns the inputs served, of three with ten packets each, that came input by input.
fn served(arbitration: Arbitration) -> Vec<u32> {
    let config = PacketSwitchConfig { arbitration, ..roomy() };
    let arrivals = (0..30u32).map(|n| (u64::from(n), packet(n, 1000, (n / 10) as u16, 3)));
    let departures = Rig::new(packet_switch(config, 4), arrivals).departures();
    departures.into_iter().map(|(packet, _, _)| packet / 10).collect()
}

#[test]
fn backlogged_inputs_take_turns() {
    let turns: Vec<u32> = (0..30).map(|n| n % 3).collect();
    assert_eq!(served(Arbitration::RoundRobin), turns);
    let order: Vec<u32> = (0..30).map(|n| n / 10).collect();
    assert_eq!(served(Arbitration::Fifo), order);
}

#[test]
fn crossbar_passes_one_packet_an_input() {
    // Two outputs want the same input.
    let arrivals: Vec<(u64, Arriving)> =
        (0..20u32).map(|n| (u64::from(n), packet(n, 1000, 0, 1 + (n / 10) as u16))).collect();
    let run = |crossbar_speedup| {
        let config = PacketSwitchConfig { crossbar_speedup, ..roomy() };
        let mut rig = Rig::new(packet_switch(config, 3), arrivals.clone());
        let departures = rig.departures();
        assert_eq!(departures.len(), 20);
        departures
    };
    // Unlimited: both lines are full. Limited: one after the other, in turn.
    let end = |run: &[(u32, u64, u64)]| run.iter().map(|(_, _, last)| *last).max().unwrap();
    assert_eq!(end(&run(0)), 10 + 10_000 * BYTE);
    let one = run(1);
    assert_eq!(end(&one), 20_000 * BYTE);
    let outputs: Vec<u32> = one.iter().map(|(packet, _, _)| packet / 10).collect();
    assert_eq!(outputs, (0..20).map(|n| n % 2).collect::<Vec<u32>>());
    // Twice as fast: the second output begins half a packet later, and both lines are full.
    assert_eq!(end(&run(2)), 500 * BYTE + 10_000 * BYTE);
}
