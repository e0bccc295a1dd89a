//! The end of connections.

use venice_tcp::{Config, Events, Flags, State};

use super::{MS, SECOND};
use crate::pair::Pair;

fn connected() -> Pair {
    let mut pair = Pair::new([Config::linux_today(), Config::linux_today()], 7, 1);
    pair.run();
    for end in 0..2 {
        pair.end(end).take_events();
    }
    pair
}

#[test]
fn close_waits_for_data() {
    let mut pair = connected();
    pair.write(0, 50_000);
    pair.close(0);
    assert_eq!(pair.end(0).write(1, 9, &Config::linux_today()), 0);
    pair.run_until(pair.now + SECOND);
    assert_eq!(pair.received[1], 50_000);
    assert!(pair.end(1).take_events().has(Events::PEER_CLOSED));
    assert_eq!((pair.end(0).state(), pair.end(1).state()), (State::FinWait2, State::CloseWait));
    // The other direction is open.
    pair.transfer(1, 5_000);
    assert_eq!(pair.received[0], 5_000);
    pair.close(1);
    pair.run_until(pair.now + SECOND);
    assert_eq!((pair.end(0).state(), pair.end(1).state()), (State::TimeWait, State::Closed));
    let start = pair.now;
    pair.run();
    assert!(pair.end(0).is_closed());
    assert!((59 * SECOND..=60 * SECOND).contains(&(pair.now - start)));
}

#[test]
fn both_close_at_once() {
    let mut pair = connected();
    for end in 0..2 {
        pair.end(end).close();
    }
    for end in 0..2 {
        pair.flush(end);
    }
    pair.run_until(pair.now + 60 * MS);
    assert_eq!((pair.end(0).state(), pair.end(1).state()), (State::TimeWait, State::TimeWait));
}

#[test]
fn lost_fin_is_repeated() {
    let mut pair = connected();
    pair.drop = |_, _, segment| {
        use std::sync::atomic::{AtomicU32, Ordering};
        static FINS: AtomicU32 = AtomicU32::new(0);
        segment.flags.has(Flags::FIN) && FINS.fetch_add(1, Ordering::Relaxed) < 3
    };
    pair.close(0);
    pair.run_until(pair.now + 100 * SECOND);
    assert_eq!(pair.end(1).state(), State::CloseWait);
    assert_eq!(pair.end(0).state(), State::FinWait2);
}

#[test]
fn abort_resets_peer() {
    let mut pair = connected();
    pair.write(0, 500_000);
    pair.end(0).abort();
    pair.flush(0);
    pair.run();
    for end in 0..2 {
        assert!(pair.end(end).is_closed());
        assert_eq!(pair.end(end).poll_timeout(), None);
    }
    assert!(pair.end(1).take_events().has(Events::RESET));
}

#[test]
fn vanished_peer_is_given_up() {
    let config = Config { data_retries: 3, ..Config::linux_today() };
    let mut pair = Pair::new([config.clone(), config], 7, 1);
    pair.run();
    pair.drop = |_, _, _| true;
    pair.write(0, 1_000);
    pair.run();
    assert!(pair.end(0).is_closed() && pair.end(0).take_events().has(Events::TIMED_OUT));
    assert_eq!(pair.end(0).statistics().timeouts, 3);
}
