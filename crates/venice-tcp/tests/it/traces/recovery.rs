//! Retransmissions after losses, by hand.

use venice_tcp::{Basis, Config, Congestion, DelayedAck, LossDetection, Reduction};

use super::{MS, SECOND};
use crate::pair::Pair;

/// Segments of 1000 bytes, each acknowledged at once.
fn plain() -> Config {
    Config {
        mss: 1_000,
        delayed_ack: DelayedAck { segments: 1, ..Config::rfc().delayed_ack },
        ..Config::rfc()
    }
}

fn connected(config: &Config) -> Pair {
    let mut pair = Pair::new([config.clone(), config.clone()], u32::MAX - 4_000, 1);
    pair.run();
    pair.clear_log();
    pair
}

#[test]
fn third_duplicate_retransmits() {
    let mut pair = connected(&Config { sack: false, ..plain() });
    pair.drop_data(&[3]);
    pair.transfer(0, 10_000);
    // Ten at once; after the third duplicate of 2 the third.
    assert_eq!(pair.numbers(0), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2]);
    let statistics = *pair.end(0).statistics();
    assert_eq!((statistics.fast_retransmits, statistics.timeouts), (1, 0));
    // Two were acknowledged by then: twelve, of which eight were outstanding.
    assert_eq!((pair.info(0).ssthresh, pair.info(0).cwnd), (4, 4));
}

#[test]
fn limited_transmit_sends_new() {
    let mut pair = connected(&Config { sack: false, initial_window: 5, ..plain() });
    pair.drop_data(&[1]);
    pair.transfer(0, 8_000);
    // RFC 3042: the first two duplicates send 5 and 6, the third retransmits.
    assert_eq!(pair.numbers(0)[..8], [0, 1, 2, 3, 4, 5, 6, 0]);
}

#[test]
fn newreno_repairs_one_a_round() {
    let mut pair = connected(&Config { sack: false, ..plain() });
    pair.drop_data(&[2, 4, 6]);
    pair.transfer(0, 10_000);
    let resent = pair.retransmissions(0);
    let numbers: Vec<u32> = resent.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, [1, 3, 5]);
    // RFC 6582: each partial acknowledgment retransmits one, a round trip later.
    assert_eq!(resent[1].0 - resent[0].0, 100_000);
    assert_eq!(resent[2].0 - resent[1].0, 100_000);
    assert_eq!(pair.end(0).statistics().timeouts, 0);
}

#[test]
fn sack_repairs_all_in_round() {
    let mut pair = connected(&plain());
    pair.drop_data(&[2, 4, 6]);
    pair.transfer(0, 10_000);
    let resent = pair.retransmissions(0);
    let numbers: Vec<u32> = resent.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, [1, 3, 5]);
    assert_eq!(resent[2].0, resent[0].0);
    assert_eq!(pair.end(0).statistics().timeouts, 0);
}

#[test]
fn two_duplicates_do_not_suffice() {
    // Of the last three, the first is lost: two duplicates, and nothing new to be sent.
    for (sack, detection) in
        [(false, LossDetection::DuplicateThreshold), (true, LossDetection::DuplicateThreshold)]
    {
        let mut pair = connected(&Config { sack, loss_detection: detection, ..plain() });
        pair.drop_data(&[8]);
        pair.transfer(0, 10_000);
        assert_eq!(pair.end(0).statistics().timeouts, 1);
        // The least time-out, after the last progress.
        let (at, number) = pair.retransmissions(0)[0];
        assert_eq!((at - pair.sent_at - 100_000, number), (SECOND, 7));
    }
}

#[test]
fn forward_acknowledgment_counts_holes() {
    // 6 and 7 are lost: 8 and 9 show it to FACK, not to RFC 6675.
    for (loss_detection, timeouts) in
        [(LossDetection::Forward, 0), (LossDetection::DuplicateThreshold, 1)]
    {
        let mut pair = connected(&Config { loss_detection, ..plain() });
        pair.drop_data(&[7, 8]);
        pair.transfer(0, 10_000);
        assert_eq!(pair.end(0).statistics().timeouts, timeouts, "{loss_detection:?}");
    }
}

#[test]
fn early_retransmit_repairs_tail() {
    let mut pair = connected(&Config { early_retransmit: true, ..plain() });
    pair.drop_data(&[9]);
    pair.transfer(0, 10_000);
    assert_eq!(pair.end(0).statistics().timeouts, 0);
    assert_eq!(pair.numbers(0)[10..], [8]);
}

#[test]
fn tail_loss_is_probed() {
    let config = Config { loss_detection: LossDetection::Rack, tail_loss_probe: true, ..plain() };
    let mut pair = connected(&config);
    pair.drop_data(&[10]);
    pair.transfer(0, 10_000);
    let statistics = *pair.end(0).statistics();
    assert_eq!((statistics.tail_probes, statistics.timeouts), (1, 0));
    assert_eq!(pair.numbers(0)[10..], [9]);
    // Twice the round trip, and the least time-out for a delayed acknowledgment.
    let (at, _) = pair.retransmissions(0)[0];
    assert!(at - pair.sent_at > 200_000);
}

#[test]
fn lost_time_outs_back_off() {
    let mut pair = connected(&plain());
    pair.drop_data(&[1, 2, 3, 4]);
    pair.transfer(0, 1_000);
    let at: Vec<u64> =
        pair.retransmissions(0).iter().map(|(at, _)| (at - pair.sent_at) / SECOND).collect();
    assert_eq!(at, [1, 3, 7, 15]);
    // Karn: nothing was measured since; the next progress ends the doubling.
    assert_eq!(pair.info(0).rto_ns, SECOND);
}

#[test]
fn time_out_restarts_slow_start() {
    let mut pair = connected(&plain());
    // All ten are lost.
    pair.drop_data(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    pair.transfer(0, 10_000);
    let times: Vec<u64> = pair
        .retransmissions(0)
        .iter()
        .map(|(at, _)| (at - pair.sent_at - SECOND) / 100_000)
        .collect();
    // One, two, four, and the rest up to the threshold of five.
    assert_eq!(times, [0, 1, 1, 2, 2, 2, 2, 3, 3, 3]);
    assert_eq!(pair.info(0).ssthresh, 5);
}

#[test]
fn lost_retransmission_waits_for_time_out() {
    for (loss_detection, timeouts) in [
        (LossDetection::DuplicateThreshold, 1),
        (LossDetection::Forward, 0),
        (LossDetection::Rack, 0),
    ] {
        let mut pair = connected(&Config { loss_detection, ..plain() });
        // The first, and its retransmission after two new ones.
        pair.drop_data(&[1, 13]);
        pair.transfer(0, 30_000);
        assert_eq!(pair.end(0).statistics().timeouts, timeouts, "{loss_detection:?}");
    }
}

#[test]
fn proportional_reduction_halves_rate() {
    let config = Config {
        initial_window: 20,
        reduction: Reduction::Proportional,
        basis: Basis::Window,
        ..plain()
    };
    let mut pair = connected(&config);
    pair.drop_data(&[1]);
    pair.transfer(0, 60_000);
    // Nineteen duplicates of 0. RFC 6937: at the third, the retransmission; in_flight falls from 16,
    // one segment goes for each two delivered. Two went by limited transmit.
    let first_round = pair.numbers_between(0, pair.sent_at + 100_000, pair.sent_at + 101_000);
    assert_eq!(first_round, [20, 21, 0, 22, 23, 24, 25, 26, 27, 28]);
    assert_eq!(pair.end(0).statistics().timeouts, 0);
}

#[test]
fn cubic_reduces_by_three_tenths() {
    let config = Config {
        congestion: Congestion::Cubic,
        initial_window: 20,
        basis: Basis::Window,
        ..plain()
    };
    let mut pair = connected(&config);
    pair.drop_data(&[1]);
    pair.transfer(0, 20_000);
    assert_eq!(pair.info(0).ssthresh, 14);
}

#[test]
fn zero_window_is_probed() {
    let config = Config { receive_buffer: 4_000, ..plain() };
    let mut pair = connected(&config);
    pair.reads = false;
    pair.write(0, 10_000);
    pair.run_until(pair.now + 20 * SECOND);
    assert_eq!((pair.end(1).readable(), pair.numbers(0).len()), (4_000, 4));
    let probes = pair.log().filter(|(_, end, segment)| *end == 0 && segment.len == 0).count();
    // After 1, 3, 7 and 15 s.
    assert_eq!(probes, 4);
    pair.reads = true;
    pair.read_all(1);
    pair.run();
    assert_eq!(pair.received[1], 10_000);
    assert_eq!(pair.end(0).statistics().retransmits, 0);
}

#[test]
fn lost_window_update_is_probed_for() {
    let mut pair = connected(&Config { receive_buffer: 4_000, ..plain() });
    pair.reads = false;
    pair.write(0, 10_000);
    pair.run_until(pair.now + 500 * MS);
    pair.drop = |end, _, _| end == 1;
    pair.reads = true;
    pair.read_all(1);
    pair.drop = |_, _, _| false;
    pair.run();
    assert_eq!(pair.received[1], 10_000);
}

#[test]
fn mark_reduces_once_a_round() {
    let config = Config { ecn: true, ..plain() };
    let mut pair = connected(&config);
    pair.mark_data(&[2, 3, 4]);
    pair.transfer(0, 30_000);
    let statistics = *pair.end(0).statistics();
    assert_eq!((statistics.ecn_reductions, statistics.retransmits), (1, 0));
    // Eleven segments then, of which ten were outstanding.
    assert_eq!(pair.info(0).ssthresh, 5);
    let cwr = venice_tcp::Flags::CWR;
    assert_eq!(pair.log().filter(|(_, _, segment)| segment.flags.has(cwr)).count(), 1);
}

#[test]
fn dctcp_reduces_by_marked_share() {
    let config = Config { ecn: true, congestion: Congestion::Dctcp, ..plain() };
    let mut pair = connected(&config);
    // A hundred rounds without marks bring the estimate from all to nothing.
    for _ in 0..400 {
        pair.transfer(0, 4_000);
    }
    let before = pair.info(0).cwnd;
    let next = pair.data_sent() + 1;
    pair.mark_data(&[next]);
    pair.transfer(0, 4_000);
    // α is 1/16 of a quarter at most: the window loses next to nothing.
    assert_eq!(pair.end(0).statistics().ecn_reductions, 1);
    assert!(pair.info(0).ssthresh + 1 >= before.min(pair.info(0).ssthresh + 1));
    assert!(pair.info(0).cwnd + 1 >= before, "{} {before}", pair.info(0).cwnd);
}
