use super::*;
use crate::caller::Owner;
use crate::queueing::DEFAULT_PRIORITY;
use crate::types::Share;

const S: u64 = 1_000_000_000;
const OLD: GrantId = GrantId(1);
const NEW: GrantId = GrantId(2);

/// Creates a donor of 8 slabs with grant 1 of two slabs.
fn donor() -> DonorNode {
    let settings = DonorSettings { total_slabs: 8, prepare_timeout_ns: 5 * S };
    let mut donor = DonorNode::new(settings, Pong { name: "n1".into(), instance: 1 }, 0);
    donor.core_mut().set_epoch(1);
    donor.handle_call(0, Token(100), DonorCall::Prepare(request()));
    assert_eq!(outputs(&mut donor, 0)[0], Output::SetAside { grant: OLD, slabs: 2 });
    donor.handle_call(0, Token(101), DonorCall::Commit { grant: OLD, donor_epoch: 1 });
    assert_eq!(outputs(&mut donor, 0)[0], Output::Lend(OLD));
    donor
}

fn request() -> PrepareRequest {
    PrepareRequest {
        grant: OLD,
        key: GrantKey(7),
        share: Share::of_slabs(2),
        donor_epoch: 1,
        lease_ms: 60_000,
        owner: None,
        recipient: "r".into(),
        purpose: "p".into(),
        priority: DEFAULT_PRIORITY,
        at_once: false,
    }
}

fn step() -> TransferStep {
    TransferStep {
        from: OLD,
        grant: NEW,
        key: GrantKey(14),
        donor_epoch: 1,
        ownership: 2,
        claim_ms: 0,
        owner: Owner { node: "n2".into(), user: "bob".into(), is_bound: false },
    }
}

fn outputs(donor: &mut DonorNode, clock_ns: u64) -> Vec<Output> {
    std::iter::from_fn(|| donor.poll_output(clock_ns)).collect()
}

/// Makes a call of a transfer, for whose files there is that answer; returns the later outputs.
fn transfer(donor: &mut DonorNode, token: u64, call: DonorCall, is_held: bool) -> Vec<Output> {
    donor.handle_call(S, Token(token), call);
    let Some(Output::HoldFiles(hold)) = donor.poll_output(S) else { panic!("no hold") };
    assert_eq!(hold.of(), OLD);
    donor.handle_files_held(S, hold, is_held);
    outputs(donor, S)
}

fn done(donor: &DonorNode, token: u64) -> Output {
    Output::Reply(Token(token), Ok(DonorAnswer::Status(donor.core().status())))
}

#[test]
fn release_is_answered_once_free() {
    let mut donor = donor();
    donor.handle_call(S, Token(1), DonorCall::Release(vec![OLD]));
    donor.handle_give_back(S, Token(2), &[(OLD, GrantKey(7))]);
    let reason = EndReason::Released;
    // A release of what is gone is answered at once; by its key it is not the caller's.
    let expected = [Output::End { grant: OLD, slabs: 2, reason }, done(&donor, 2)];
    assert_eq!(outputs(&mut donor, S), expected);
    donor.handle_call(S, Token(3), DonorCall::Release(vec![OLD]));
    assert_eq!(outputs(&mut donor, S), []);
    donor.handle_freed(OLD, 1);
    assert_eq!(donor.core().status().free_slabs, 7, "one is withheld");
    let expected = [done(&donor, 1), done(&donor, 3), Output::Report];
    assert_eq!(outputs(&mut donor, S), expected);
}

#[test]
fn wrong_key_releases_nothing() {
    let mut donor = donor();
    donor.handle_give_back(S, Token(1), &[(OLD, GrantKey(8))]);
    assert_eq!(outputs(&mut donor, S), [done(&donor, 1)]);
    assert!(donor.core().grant(OLD).is_some());
}

#[test]
fn ended_grant_is_remembered() {
    let mut donor = donor();
    donor.handle_timeout(S);
    donor.handle_call(S, Token(1), DonorCall::Release(vec![OLD]));
    outputs(&mut donor, S);
    let mut clock_ns = S;
    let forgotten = loop {
        donor.handle_timeout(clock_ns);
        let outputs = outputs(&mut donor, clock_ns);
        if !outputs.is_empty() {
            break outputs;
        }
        clock_ns = donor.poll_timeout(clock_ns).expect("it is to be forgotten");
    };
    assert_eq!(forgotten, [Output::Forget(OLD)]);
    assert_eq!(clock_ns, S + NOTIFY_FOR_NS);
    assert_eq!(donor.poll_timeout(clock_ns), None);
}

#[test]
fn mapped_memory_is_not_promised() {
    let mut donor = donor();
    let refused = transfer(&mut donor, 1, DonorCall::PrepareTransfer(step()), false);
    let why = Err(Refusal::Failed(MAPPED.to_owned()));
    assert_eq!(refused, [Output::Reply(Token(1), why)]);
    assert_eq!(donor.core().promised(OLD), None);
    assert_eq!(donor.core().grant(OLD).unwrap().key, GrantKey(7), "it stays its owner's");
}

#[test]
fn memory_mapped_since_ends() {
    let mut donor = donor();
    let promised = transfer(&mut donor, 1, DonorCall::PrepareTransfer(step()), true);
    assert_eq!(promised, [done(&donor, 1)]);
    let refused = transfer(&mut donor, 2, DonorCall::CommitTransfer(step()), false);
    let end = Output::End { grant: OLD, slabs: 2, reason: EndReason::Released };
    assert_eq!(refused, [end, Output::Reply(Token(2), Err(Refusal::UnknownGrant))]);
}

#[test]
fn withdrawn_promise_releases_files() {
    let mut donor = donor();
    transfer(&mut donor, 1, DonorCall::PrepareTransfer(step()), true);
    let abort = |grant| DonorCall::AbortTransfer { from: OLD, grant };
    donor.handle_call(S, Token(2), abort(GrantId(3)));
    assert_eq!(outputs(&mut donor, S), [done(&donor, 2)], "another's promise stays");
    donor.handle_call(S, Token(3), abort(NEW));
    assert_eq!(outputs(&mut donor, S), [Output::ReleaseFiles(OLD), done(&donor, 3)]);
}

#[test]
fn successor_waits_for_old_reads() {
    let mut donor = donor();
    let commit = || DonorCall::CommitTransfer(step());
    assert_eq!(transfer(&mut donor, 1, commit(), true), [Output::Switch(step())]);
    donor.handle_call(S, Token(2), commit());
    let Some(Output::HoldFiles(hold)) = donor.poll_output(S) else { panic!("no hold") };
    donor.handle_files_held(S, hold, true);
    assert_eq!(outputs(&mut donor, S), [], "the repetition waits, too");
    let before = donor.report();
    assert_eq!(before.held, [], "no key for the new owner yet");
    donor.handle_unused(NEW);
    let begun = [Output::Lend(NEW), done(&donor, 1), done(&donor, 2)];
    assert_eq!(outputs(&mut donor, S), begun);
    let after = donor.report();
    assert_eq!(after.held[0].id, NEW);
    assert!(after.status.revision > before.status.revision, "the earlier report is outdated");
    donor.handle_unused(NEW);
    assert_eq!(outputs(&mut donor, S), []);
}

#[test]
fn ended_successor_is_answered() {
    let mut donor = donor();
    transfer(&mut donor, 1, DonorCall::CommitTransfer(step()), true);
    donor.handle_call(S, Token(2), DonorCall::Release(vec![NEW]));
    let end = Output::End { grant: NEW, slabs: 2, reason: EndReason::Released };
    assert_eq!(outputs(&mut donor, S), [end, done(&donor, 1)]);
    donor.handle_unused(NEW);
    assert_eq!(outputs(&mut donor, S), [], "it is not lent again");
}

#[test]
fn refused_switch_releases_files() {
    let mut donor = donor();
    let stale = TransferStep { ownership: 1, ..step() };
    let refused = transfer(&mut donor, 1, DonorCall::CommitTransfer(stale), true);
    let why = Err(Refusal::StaleOwnership { asked: 1, current: 1 });
    assert_eq!(refused, [Output::ReleaseFiles(OLD), Output::Reply(Token(1), why)]);
}
