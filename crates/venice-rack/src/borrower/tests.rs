use super::*;
use crate::lease_holder::Renewed;
use crate::queueing::{Asked, Queueing, Standing};
use crate::types::{AllocationRequest, ClaimRequest, Grant, Want};
use venice_wire::GrantId;

const S: u64 = 1_000_000_000;
const BEGAN: u64 = 100 * S;

type Answer<T> = Result<T, Failure<&'static str>>;

fn grant(id: u64) -> Grant {
    crate::lease_holder::tests::grant(id, 10.0)
}

fn asking() -> Asking<&'static str> {
    let request = AllocationRequest {
        client_id: 7,
        recipient: String::new(),
        wants: vec![Want::memory(1, 1)],
        donors: Vec::new(),
        home: String::new(),
        placement: None,
        purpose: String::new(),
        queueing: Queueing { wait_ms: 60_000, ..Queueing::default() },
    };
    Asking::new(BEGAN, request)
}

/// Returns the waiting time in the next output, a request under the first number.
fn sent_waited_ms(asking: &mut Asking<&'static str>) -> u64 {
    match asking.poll_output() {
        Some(AskingOutput::Ask(request)) if request.client_id == 7 => request.queueing.waited_ms,
        other => panic!("no request: {other:?}"),
    }
}

fn queued() -> Asked {
    Asked::Waits(Standing { rank: 1, waited_ms: 0, is_over_quota: false, wants: Vec::new() })
}

#[test]
fn lone_monitor_is_called_once() {
    let mut call = RepeatedCall::new(BEGAN, 1, false);
    let silent: Answer<()> = Err(Failure::Silent("late"));
    assert_eq!(call.handle_result(BEGAN + S, silent), Some(Err("late")));
    assert!(call.is_in_doubt());
}

#[test]
fn silent_call_repeats_until_patience() {
    for (monitors, waits) in [(2, false), (1, true)] {
        let mut call = RepeatedCall::new(BEGAN, monitors, waits);
        let (mut now_ns, mut calls) = (BEGAN, 1);
        while call.handle_result::<(), _>(now_ns, Err(Failure::Silent("late"))).is_none() {
            assert!(!call.handle_timeout(now_ns), "a pause comes first");
            now_ns = call.poll_timeout().expect("it is to be repeated");
            assert!(call.handle_timeout(now_ns) && !call.handle_timeout(now_ns));
            calls += 1;
        }
        assert_eq!((calls, now_ns), (61, BEGAN + PATIENCE_NS));
    }
}

#[test]
fn refused_call_is_not_repeated() {
    let mut call = RepeatedCall::new(BEGAN, 3, true);
    let refused: Answer<()> = Err(Failure::Refused("no"));
    assert_eq!(call.handle_result(BEGAN, refused), Some(Err("no")));
    assert!(!call.is_in_doubt());
}

#[test]
fn queued_request_is_repeated_at_once() {
    let mut asking = asking();
    assert_eq!(sent_waited_ms(&mut asking), 0);
    asking.handle_answer(BEGAN + S, Ok(queued()));
    assert!(matches!(asking.poll_output(), Some(AskingOutput::Waits(_))));
    assert_eq!(sent_waited_ms(&mut asking), 1000);
    asking.handle_answer(BEGAN + 2 * S, Ok(Asked::Granted(vec![grant(1)])));
    assert_eq!(asking.poll_output(), Some(AskingOutput::Granted(vec![grant(1)])));
    assert_eq!(asking.poll_output(), None);
}

#[test]
fn withdrawn_request_ignores_late_answers() {
    let mut asking = asking();
    sent_waited_ms(&mut asking);
    asking.handle_answer(BEGAN + S, Ok(queued()));
    asking.handle_leave();
    assert_eq!(asking.poll_output(), Some(AskingOutput::Leave(7)), "and no request");
    asking.handle_answer(BEGAN + S, Ok(Asked::Granted(vec![grant(1)])));
    asking.handle_leave();
    assert_eq!(asking.poll_output(), None);
}

/// A claim that waits for two seconds, with its first call sent.
fn claiming() -> Claiming<&'static str> {
    let request = ClaimRequest { recipient: "new".into(), transfer: None };
    let mut claiming = Claiming::new(BEGAN, request.clone(), 2 * S);
    assert_eq!(claiming.poll_output(), Some(ClaimingOutput::Claim(request)));
    claiming
}

#[test]
fn empty_claim_is_repeated_in_time() {
    let (mut claiming, mut now_ns, mut calls) = (claiming(), BEGAN, 1);
    loop {
        claiming.handle_claimed(now_ns, Ok(Vec::new()));
        let Some(due_ns) = claiming.poll_timeout() else { break };
        now_ns = due_ns;
        claiming.handle_timeout(now_ns);
        assert!(matches!(claiming.poll_output(), Some(ClaimingOutput::Claim(_))));
        calls += 1;
    }
    assert_eq!((calls, now_ns), (11, BEGAN + 2 * S));
    let nothing = ClaimingOutput::Claimed { live: vec![], lost: vec![], asked_ns: now_ns };
    assert_eq!(claiming.poll_output(), Some(nothing));
}

#[test]
fn claimed_grants_are_renewed_first() {
    let mut claiming = claiming();
    claiming.handle_claimed(BEGAN + S, Ok([3, 1, 2].map(grant).to_vec()));
    for index in 0..3 {
        let renew = ClaimingOutput::Renew(index, grant(index as u64 + 1));
        assert_eq!(claiming.poll_output(), Some(renew));
    }
    claiming.handle_renewed(0, &Renewed::Live(None));
    claiming.handle_renewed(1, &Renewed::Unknown);
    assert_eq!(claiming.poll_output(), None, "one has no answer");
    claiming.handle_timeout(claiming.poll_timeout().unwrap());
    let (live, lost) = (vec![grant(1)], vec![grant(2), grant(3)]);
    let claimed = ClaimingOutput::Claimed { live, lost, asked_ns: BEGAN + S };
    assert_eq!(claiming.poll_output(), Some(claimed));
    claiming.handle_renewed(2, &Renewed::Live(None));
    assert_eq!((claiming.poll_output(), claiming.poll_timeout()), (None, None));
}

#[test]
fn refused_claim_fails() {
    let mut claiming = claiming();
    claiming.handle_claimed(BEGAN, Err("quota"));
    assert_eq!(claiming.poll_output(), Some(ClaimingOutput::Failed("quota")));
}

#[test]
fn release_falls_back_to_donors() {
    let grants = || [1, 2, 3].map(grant).to_vec();
    let cases: [(Option<&[u64]>, &[u64]); 3] =
        [(Some(&[]), &[]), (Some(&[2]), &[2]), (None, &[1, 2, 3])];
    for (keyless, at_donors) in cases {
        let mut releasing = Releasing::new(grants());
        assert_eq!(releasing.poll_output(), Some(ReleasingOutput::AtMonitor(grants())));
        assert_eq!(releasing.poll_output(), None);
        let keyless: Option<Vec<_>> =
            keyless.map(|ids| ids.iter().map(|id| GrantId(*id)).collect());
        releasing.handle_released(keyless.as_deref());
        let outputs: Vec<_> = std::iter::from_fn(|| releasing.poll_output()).collect();
        let expected = at_donors.iter().map(|id| ReleasingOutput::AtDonor(grant(*id)));
        assert_eq!(outputs, expected.collect::<Vec<_>>());
    }
}
