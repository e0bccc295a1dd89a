//! Acknowledgments, order and checkpoints.

use venice_tcp::{Config, Connection, DelayedAck, Segment};

use super::MS;
use crate::pair::Pair;

fn delayed(quick: u8) -> Config {
    Config {
        mss: 1_000,
        delayed_ack: DelayedAck { timeout_ns: 40 * MS, segments: 2, quick },
        ..Config::rfc()
    }
}

fn acknowledgments(config: Config, bytes: u32) -> Vec<u64> {
    let mut pair = Pair::new([config.clone(), config], 7, 1);
    pair.run();
    pair.reads = false;
    pair.clear_log();
    pair.transfer(0, bytes);
    let sent_at = pair.sent_at;
    pair.log().filter(|(_, end, _)| *end == 1).map(|(at, _, _)| at - sent_at - 50_000).collect()
}

#[test]
fn second_segment_is_acknowledged() {
    assert_eq!(acknowledgments(delayed(0), 2_000), [0]);
    assert_eq!(acknowledgments(delayed(0), 4_000), [0, 0]);
    assert_eq!(acknowledgments(delayed(0), 1_000), [40 * MS]);
    assert_eq!(acknowledgments(delayed(0), 3_000), [0, 40 * MS]);
}

#[test]
fn quick_acknowledgments_come_first() {
    assert_eq!(acknowledgments(delayed(3), 6_000), [0, 0, 0, 0, 40 * MS]);
}

#[test]
fn answer_carries_acknowledgment() {
    let config = delayed(16);
    let mut pair = Pair::new([config.clone(), config], 7, 1);
    pair.run();
    pair.transfer(0, 100);
    pair.transfer(1, 100);
    pair.clear_log();
    for _ in 0..5 {
        pair.write(0, 100);
        pair.run_until(pair.now + MS);
        pair.write(1, 100);
        pair.run_until(pair.now + MS);
    }
    let sent: Vec<(usize, u32)> = pair.log().map(|(_, end, segment)| (end, segment.len)).collect();
    // Quick ones at the start; then the program is known to answer, and nothing else acknowledges.
    assert_eq!(sent[..4], [(0, 100), (1, 0), (1, 100), (0, 0)]);
    assert_eq!(sent[4..], [(0, 100), (1, 100)].repeat(4));
}

#[test]
fn segment_ends_with_message() {
    let config = Config { nagle: false, ..delayed(0) };
    let mut pair = Pair::new([config.clone(), config], 7, 1);
    pair.run();
    pair.clear_log();
    for (tag, bytes) in [(1, 300), (2, 1_500), (3, 10)] {
        pair.write_message(0, bytes, tag);
    }
    pair.run();
    let sent: Vec<(u32, Option<u64>)> = pair
        .log()
        .filter(|(_, end, _)| *end == 0)
        .map(|(_, _, segment)| (segment.len, segment.message))
        .collect();
    assert_eq!(sent, [(300, Some(1)), (1_000, None), (500, Some(2)), (10, Some(3))]);
    assert_eq!(pair.messages[1], [1, 2, 3]);
}

#[test]
fn nagle_holds_small_segment() {
    for (nagle, early) in [(false, 3), (true, 1)] {
        let config = Config { nagle, ..delayed(0) };
        let mut pair = Pair::new([config.clone(), config], 7, 1);
        pair.run();
        pair.clear_log();
        for tag in 1..4 {
            pair.write_message(0, 10, tag);
        }
        assert_eq!(pair.log().count(), early);
        pair.run();
        assert_eq!(pair.messages[1], [1, 2, 3]);
    }
}

#[test]
fn write_stops_at_full_buffer() {
    let config = Config { send_buffer: 5_000, ..delayed(0) };
    let mut pair = Pair::new([config.clone(), config.clone()], 7, 1);
    pair.run();
    assert_eq!(pair.end(0).write(8_000, 1, &config), 5_000);
    pair.flush(0);
    pair.run();
    assert!(pair.end(0).take_events().has(venice_tcp::Events::WRITABLE));
    assert_eq!((pair.received[1], pair.messages[1].len()), (5_000, 0));
    assert_eq!(pair.end(0).write(3_000, 1, &config), 3_000);
    pair.flush(0);
    pair.run();
    assert_eq!((pair.received[1], &pair.messages[1][..]), (8_000, &[1][..]));
}

#[test]
fn checkpoint_continues_alike() {
    let config = Config::linux_today();
    let mut pair = Pair::new([config.clone(), config], 7, 1);
    pair.run();
    pair.drop = |_, number, _| number % 9 == 0;
    pair.clear_log();
    pair.write(0, 500_000);
    let mut ran = 0;
    while pair.step().is_some() {
        pair.read_all(1);
        ran += 1;
        if ran % 50 == 0 {
            for end in 0..2 {
                let text = serde_json::to_string(pair.end(end)).unwrap();
                let restored: Connection = serde_json::from_str(&text).unwrap();
                assert_eq!(&restored, pair.end(end));
                *pair.end(end) = restored;
            }
        }
    }
    assert_eq!(pair.received[1], 500_000);
}

#[test]
fn idle_connection_is_small() {
    assert!(size_of::<Connection>() <= 368, "{} bytes", size_of::<Connection>());
    assert!(size_of::<Segment>() <= 88, "{} bytes", size_of::<Segment>());
}
