//! Sabotage tests: each injected bug is found, and found by its checker.

use venice_sim::checkers::Checker;
use venice_sim::rack::{self, Options, Sabotage};
use venice_sim::scenario::{Bounds, Scenario};

/// Runs seeds until `checker` is the first to find the bug; the `ignored` ones are ignored.
fn assert_found_by(sabotage: Sabotage, checker: Checker, ignored: &[Checker]) {
    let mut others = Vec::new();
    for seed in 0..60 {
        let scenario = Scenario::random(seed, &Bounds { max_nodes: 12, ..Bounds::default() });
        let options = Options { sabotage: Some(sabotage), ignored, ..Options::default() };
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
fn answered_write_without_execution() {
    assert_found_by(Sabotage::DropWrite, Checker::Executions, &[]);
    assert_found_by(Sabotage::DropWrite, Checker::History, &[Checker::Executions]);
}

#[test]
fn flipped_bit_in_memory() {
    assert_found_by(Sabotage::FlipBit, Checker::History, &[]);
}

#[test]
fn write_executed_twice() {
    assert_found_by(Sabotage::RepeatWrite, Checker::Executions, &[]);
    assert_found_by(Sabotage::RepeatWrite, Checker::History, &[Checker::Executions]);
}

#[test]
fn read_of_stale_bytes() {
    assert_found_by(Sabotage::StaleRead, Checker::History, &[]);
}

#[test]
fn read_of_another_reads_bytes() {
    assert_found_by(Sabotage::SwapReads, Checker::History, &[]);
}

#[test]
fn access_without_completion() {
    assert_found_by(Sabotage::LoseCompletion, Checker::Progress, &[]);
}

#[test]
fn altered_replay() {
    assert_found_by(Sabotage::AlterReplay, Checker::Wire, &[]);
}

#[test]
fn frames_beyond_the_credit() {
    assert_found_by(Sabotage::OverdrawCredit, Checker::Wire, &[]);
}

#[test]
fn grant_kept_on_one_side() {
    assert_found_by(Sabotage::KeepGrant, Checker::Agreement, &[]);
}

#[test]
fn atomic_executed_twice() {
    assert_found_by(Sabotage::RepeatAtomic, Checker::Counters, &[]);
}

#[test]
fn atomic_returning_the_new_value() {
    assert_found_by(Sabotage::StaleAtomic, Checker::Counters, &[]);
}

#[test]
fn fence_completing_at_once() {
    assert_found_by(Sabotage::EarlyFence, Checker::Executions, &[]);
}

#[test]
fn leaked_window() {
    assert_found_by(Sabotage::LeakWindow, Checker::Agreement, &[]);
}

#[test]
fn swapped_stream_bytes() {
    assert_found_by(Sabotage::SwapBytes, Checker::Streams, &[]);
}

#[test]
fn early_end_of_stream() {
    assert_found_by(Sabotage::EarlyEnd, Checker::Streams, &[]);
}

#[test]
fn forged_credit() {
    assert_found_by(Sabotage::ForgeCredit, Checker::Credit, &[]);
}

#[test]
fn swapped_messages() {
    assert_found_by(Sabotage::SwapMessages, Checker::Conversations, &[]);
}
