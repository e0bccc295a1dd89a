//! An agent's registration, and its reports to several Monitor Nodes.

use crate::common::{S, registration};
use venice_rack::agent_member::{AgentMember, Output, ReportCall, ReportResult};
use venice_rack::types::{CalledBack, HeartbeatAck, Identity, Registered};
use venice_wire::{GrantId, NodeId};

fn registered(epoch: u64) -> Registered {
    let identity = Identity { node: NodeId(1), epoch };
    Registered { identity, heartbeat_interval_ms: 1000, lease_ms: 10_000, secret: None }
}

/// Returns a member that has just registered at time 0.
fn member(monitors: usize) -> AgentMember {
    let mut member = AgentMember::new(registration("node1", 1, 8), monitors);
    assert_eq!(outputs(&mut member), [Output::Register]);
    member.handle_registered(0, Some(registered(1)));
    member
}

fn outputs(member: &mut AgentMember) -> Vec<Output> {
    std::iter::from_fn(|| member.poll_output()).collect()
}

fn reports(member: &mut AgentMember) -> Vec<ReportCall> {
    let all = outputs(member).into_iter();
    all.filter_map(|output| if let Output::Report(call) = output { Some(call) } else { None })
        .collect()
}

fn ack(called_back: &[u64]) -> ReportResult {
    let called_back =
        called_back.iter().map(|grant| CalledBack { grant: GrantId(*grant), within_ms: 1 });
    ReportResult::Acknowledged(Box::new(HeartbeatAck {
        peers: None,
        is_draining: false,
        called_back: called_back.collect(),
        revoked: None,
        trust_version: 0,
    }))
}

/// Returns the preempted grants, if they are stated, and true if the answer's state is taken.
fn learnt(member: &mut AgentMember) -> (Option<Vec<u64>>, bool) {
    let (mut grants, mut follows) = (None, false);
    for output in outputs(member) {
        match output {
            Output::CalledBack(all) => grants = Some(all.iter().map(|it| it.grant.0).collect()),
            Output::Follow(_) => follows = true,
            Output::Register | Output::Write | Output::Report(_) | Output::RegisterAt(_) => {}
        }
    }
    (grants, follows)
}

#[test]
fn failed_registrations_pause_longer() {
    let mut member = AgentMember::new(registration("node1", 1, 8), 1);
    let (mut now_ns, mut pauses_ms) = (0, Vec::new());
    for _ in 0..7 {
        assert_eq!(outputs(&mut member), [Output::Register]);
        assert_eq!(member.poll_timeout(), None);
        member.handle_registered(now_ns, None);
        let due_ns = member.poll_timeout().expect("another attempt");
        pauses_ms.push((due_ns - now_ns) / 1_000_000);
        member.handle_timeout(due_ns - 1);
        assert!(outputs(&mut member).is_empty());
        member.handle_timeout(due_ns);
        now_ns = due_ns;
    }
    assert_eq!(pauses_ms, [100, 200, 400, 800, 1600, 2000, 2000]);
}

#[test]
fn slow_monitor_gets_the_newest_report() {
    let mut member = member(2);
    let [first, second] = reports(&mut member)[..] else { panic!("two reports") };
    member.handle_report_result(1, first, ack(&[]));
    assert_eq!(learnt(&mut member), (Some(vec![]), true));
    // Two changes while the second one has not answered.
    for now_ns in [2, 3] {
        member.handle_change(now_ns);
        let sent = reports(&mut member);
        assert_eq!(sent.iter().map(|call| call.at).collect::<Vec<_>>(), [0], "at {now_ns}");
        member.handle_report_result(now_ns, sent[0], ack(&[]));
    }
    outputs(&mut member);
    member.handle_report_result(4, second, ack(&[]));
    assert_eq!(reports(&mut member).len(), 1, "one report has both changes");
    assert_eq!(member.poll_timeout(), Some(S), "the next one is due a second after the first");
}

#[test]
fn silent_monitor_is_tried_after_a_pause() {
    let mut member = member(2);
    let calls = reports(&mut member);
    member.handle_report_result(1, calls[0], ack(&[7]));
    member.handle_report_result(1, calls[1], ack(&[8]));
    assert_eq!(learnt(&mut member), (Some(vec![7, 8]), true));
    member.handle_timeout(S);
    let calls = reports(&mut member);
    member.handle_report_result(S + 1, calls[0], ReportResult::None);
    assert_eq!(learnt(&mut member).0, Some(vec![8]), "its word is void");
    member.handle_report_result(S + 2, calls[1], ack(&[8]));
    assert_eq!(learnt(&mut member), (Some(vec![8]), true), "the second one is followed");
    member.handle_timeout(2 * S);
    let at: Vec<usize> = reports(&mut member).iter().map(|call| call.at).collect();
    assert_eq!(at, [1], "the pause lasts");
    assert_eq!(member.poll_timeout(), Some(2 * S + 1));
    member.handle_timeout(2 * S + 1);
    assert_eq!(reports(&mut member)[0].at, 0);
}

#[test]
fn first_monitor_is_followed() {
    let mut member = member(2);
    let calls = reports(&mut member);
    member.handle_report_result(1, calls[1], ack(&[]));
    assert!(!learnt(&mut member).1, "the first one may answer yet");
    member.handle_report_result(2, calls[0], ack(&[]));
    assert!(learnt(&mut member).1);
}

#[test]
fn forgotten_agent_registers_again() {
    let mut member = member(1);
    let call = reports(&mut member)[0];
    member.handle_report_result(1, call, ReportResult::NotRegistered);
    assert_eq!(outputs(&mut member), [Output::RegisterAt(call)]);
    member.handle_known_again(call, registered(1));
    assert_eq!(outputs(&mut member), [Output::Report(call)], "the report is sent again");
    member.handle_report_result(2, call, ReportResult::NotRegistered);
    outputs(&mut member);
    member.handle_known_again(call, registered(2));
    assert_eq!(outputs(&mut member), [Output::Register], "another identity needs another start");
    assert_eq!(member.registration().previous, Some(registered(1).identity));
    member.handle_registered(3, Some(registered(2)));
    outputs(&mut member);
    member.handle_report_result(4, call, ReportResult::None);
    assert!(outputs(&mut member).is_empty(), "the result is of an earlier registration");
    assert_eq!(member.identity(), Some(registered(2).identity));
}
