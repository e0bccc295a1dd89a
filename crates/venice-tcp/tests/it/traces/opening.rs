//! Handshakes and the first windows.

use venice_tcp::{Config, Connection, Events, Flags, Segment, State};

use super::MS;
use crate::pair::Pair;

#[test]
fn handshake_takes_three_segments() {
    let mut pair = Pair::new([Config::linux_today(), Config::linux_today()], 100, 1);
    pair.run();
    let flags: Vec<(usize, u16)> =
        pair.log().map(|(_, end, segment)| (end, segment.flags.0)).collect();
    let syn = Flags::SYN.with(Flags::SACK_PERMITTED);
    assert_eq!(flags, [(0, syn.0), (1, syn.with(Flags::ACK).0), (0, Flags::ACK.0)]);
    for end in 0..2 {
        assert_eq!(pair.end(end).state(), State::Established);
        assert!(pair.end(end).take_events().has(Events::CONNECTED));
    }
}

#[test]
fn lost_syn_backs_off() {
    let mut pair = Pair::new([Config::linux_today(), Config::linux_today()], 100, 1);
    pair.drop = |end, number, _| end == 0 && number <= 3;
    pair.run();
    let start = pair.start;
    let syns: Vec<u64> = pair
        .log()
        .filter(|(_, _, segment)| segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK))
        .map(|(at, _, _)| (at - start) / MS)
        .collect();
    assert_eq!(syns, [0, 1_000, 3_000, 7_000]);
    // RFC 5681, section 3.1: one segment after a lost SYN.
    assert_eq!(pair.info(0).cwnd, 1);
    assert_eq!(pair.info(1).cwnd, 10);
}

#[test]
fn silent_peer_ends_connect() {
    let config = Config { syn_retries: 2, ..Config::linux_today() };
    let mut pair = Pair::new([config.clone(), config], 100, 1);
    pair.drop = |_, _, _| true;
    pair.run();
    assert_eq!(pair.now - pair.start, 7_000 * MS);
    assert!(pair.end(0).is_closed() && pair.end(0).take_events().has(Events::TIMED_OUT));
}

#[test]
fn lost_answer_is_repeated() {
    let mut pair = Pair::new([Config::linux_today(), Config::linux_today()], 100, 1);
    pair.drop = |end, number, _| end == 1 && number == 1;
    pair.run();
    assert!(pair.end(0).is_connected() && pair.end(1).is_connected());
}

#[test]
fn options_need_both_ends() {
    let plain = Config { sack: false, timestamps: false, mss: 536, ..Config::linux_today() };
    let mut pair = Pair::new([Config { ecn: true, ..Config::linux_today() }, plain], 100, 1);
    pair.clear_log();
    pair.transfer(0, 5_000);
    for (_, _, segment) in pair.log().filter(|(_, _, segment)| !segment.flags.has(Flags::SYN)) {
        assert!(segment.timestamps.is_none() && !segment.flags.has_any(Flags::ECT));
        assert!(segment.len <= 536);
    }
}

#[test]
fn both_may_open_at_once() {
    let config = Config::linux_today();
    let mut ends = [Connection::connect(1, &config), Connection::connect(500, &config)];
    let mut flying: Vec<(usize, Segment)> = Vec::new();
    for round in 0..6 {
        let now = round * MS;
        for (to, segment) in std::mem::take(&mut flying) {
            ends[to].handle_segment(now, &config, &segment, false);
        }
        for (end, connection) in ends.iter_mut().enumerate() {
            while let Some(segment) = connection.poll_transmit(now, &config) {
                flying.push((1 - end, segment));
            }
        }
    }
    assert!(ends.iter().all(|end| end.state() == State::Established));
    assert!(flying.is_empty());
}

#[test]
fn nobody_listens_and_refuses() {
    let config = Config::linux_today();
    let mut client = Connection::connect(1, &config);
    let syn = client.poll_transmit(0, &config).unwrap();
    let reset = Connection::refuse(&syn).unwrap();
    client.handle_segment(MS, &config, &reset, false);
    assert!(client.is_closed() && client.take_events().has(Events::RESET));
    assert_eq!(Connection::refuse(&reset), None);
}

#[test]
fn window_doubles_in_slow_start() {
    let config = Config { delayed_ack: every_segment(), ..Config::rfc() };
    let mut pair = Pair::new([config.clone(), config], 100, 1);
    pair.run();
    pair.clear_log();
    pair.transfer(0, 70 * 1460);
    assert_eq!(pair.bursts(0), [10, 20, 40]);
    assert_eq!(pair.info(0).cwnd, 80);
}

#[test]
fn idle_window_is_halved() {
    let mut pair = Pair::new([Config::linux_today(), Config::linux_today()], 100, 1);
    pair.transfer(0, 300 * 1448);
    let before = pair.info(0).cwnd;
    assert!(before > 80, "{before}");
    // Twice the time-out, and a little.
    pair.now += 2 * pair.info(0).rto_ns + 10 * MS;
    pair.transfer(0, 1);
    assert_eq!(pair.info(0).cwnd, before >> 2);
    pair.now += 3_600_000 * MS;
    pair.transfer(0, 1);
    assert_eq!(pair.info(0).cwnd, 10);
}

fn every_segment() -> venice_tcp::DelayedAck {
    venice_tcp::DelayedAck { segments: 1, ..Config::rfc().delayed_ack }
}
