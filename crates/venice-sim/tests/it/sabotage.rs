//! The checkers notice: each thing broken on purpose is found, and found by the checker it is for.

use venice_sim::checkers::Checker;
use venice_sim::rack::{self, Options, Sabotage};
use venice_sim::scenario::{Bounds, Scenario};

/// Runs seeds until `checker` is the first to find it, the `deaf` ones not being listened to.
fn assert_found_by(sabotage: Sabotage, checker: Checker, deaf: &[Checker]) {
    let mut others = Vec::new();
    for seed in 0..60 {
        let scenario = Scenario::random(seed, &Bounds { max_nodes: 12, ..Bounds::default() });
        let options = Options { sabotage: Some(sabotage), deaf, ..Options::default() };
        let report = rack::run(&scenario, options).expect("a random scenario is valid");
        match report.violations.first() {
            Some(found) if found.checker == checker => return,
            Some(found) => others.push(found.checker),
            None => {}
        }
    }
    panic!("{sabotage:?} is found by {others:?}, not by {checker:?}");
}

#[test]
fn a_write_that_is_answered_and_not_done() {
    assert_found_by(Sabotage::DropWrite, Checker::Executions, &[]);
    assert_found_by(Sabotage::DropWrite, Checker::History, &[Checker::Executions]);
}

#[test]
fn a_bit_stored_the_wrong_way_round() {
    assert_found_by(Sabotage::FlipBit, Checker::History, &[]);
}

#[test]
fn a_write_that_gets_past_the_datalink_twice() {
    assert_found_by(Sabotage::RepeatWrite, Checker::Executions, &[]);
    assert_found_by(Sabotage::RepeatWrite, Checker::History, &[Checker::Executions]);
}

#[test]
fn a_read_that_brings_old_bytes() {
    assert_found_by(Sabotage::StaleRead, Checker::History, &[]);
}

#[test]
fn a_read_that_brings_other_bytes() {
    assert_found_by(Sabotage::SwapReads, Checker::History, &[]);
}

#[test]
fn an_access_that_never_completes() {
    assert_found_by(Sabotage::LoseCompletion, Checker::Progress, &[]);
}

#[test]
fn a_replay_that_is_no_repetition() {
    assert_found_by(Sabotage::AlterReplay, Checker::Wire, &[]);
}

#[test]
fn more_frames_than_there_are_buffers() {
    assert_found_by(Sabotage::OverdrawCredit, Checker::Wire, &[]);
}

#[test]
fn a_grant_that_one_side_has_forgotten() {
    assert_found_by(Sabotage::KeepGrant, Checker::Agreement, &[]);
}

#[test]
fn an_atomic_carried_out_twice() {
    assert_found_by(Sabotage::RepeatAtomic, Checker::Counters, &[]);
}

#[test]
fn an_atomic_that_brings_what_it_left() {
    assert_found_by(Sabotage::StaleAtomic, Checker::Counters, &[]);
}

#[test]
fn a_fence_that_waits_for_nothing() {
    assert_found_by(Sabotage::EarlyFence, Checker::Executions, &[]);
}

#[test]
fn a_window_that_only_the_table_knows() {
    assert_found_by(Sabotage::LeakWindow, Checker::Agreement, &[]);
}

#[test]
fn bytes_of_a_stream_in_each_others_place() {
    assert_found_by(Sabotage::SwapBytes, Checker::Streams, &[]);
}

#[test]
fn a_stream_that_seems_to_end_before_its_end() {
    assert_found_by(Sabotage::EarlyEnd, Checker::Streams, &[]);
}

#[test]
fn credit_for_what_was_not_read() {
    assert_found_by(Sabotage::ForgeCredit, Checker::Credit, &[]);
}

#[test]
fn two_messages_in_each_others_place() {
    assert_found_by(Sabotage::SwapMessages, Checker::Conversations, &[]);
}
