//! Transfers: grants change hands.

use super::*;
use venice_rack::caller::User;
use venice_rack::monitor::RecordKey;
use venice_rack::monitor_node::{DonorCall, Reply};
use venice_rack::quota::{Limits, QuotaFor, QuotaRecord};
use venice_rack::types::{
    ClaimRequest, ResourceKind, TransferRequest, TransferState, TransferStep, Transferred,
};

const TRANSFER: u128 = 77;

fn bob() -> Owner {
    Owner { node: "node2".to_owned(), user: "bob".to_owned(), is_bound: false }
}

/// Returns a caller; `None`: an administrator.
fn caller(owner: Option<Owner>) -> User {
    let is_admin = owner.is_none();
    let Owner { node, user: name, .. } = owner.unwrap_or(Owner {
        node: "monitor".to_owned(),
        user: "root".to_owned(),
        is_bound: false,
    });
    User { node, uid: 1000, name, is_admin }
}

fn transfer(grants: &[GrantId]) -> TransferRequest {
    let (client_id, grants) = (TRANSFER, grants.to_vec());
    TransferRequest { client_id, grants, to: bob(), claim_ms: 60_000 }
}

/// Returns the steps that are sent, with true for commits.
fn steps(actions: &[Action]) -> Vec<(bool, Identity, TransferStep)> {
    let step = |action: &Action| match action {
        Action::Call { donor, call: DonorCall::PrepareTransfer(step), .. } => {
            Some((false, *donor, step.clone()))
        }
        Action::Call { donor, call: DonorCall::CommitTransfer(step), .. } => {
            Some((true, *donor, step.clone()))
        }
        _ => None,
    };
    actions.iter().filter_map(step).collect()
}

/// Makes the changes of some actions to records.
fn keep(records: &mut BTreeMap<RecordKey, Record>, actions: Vec<Action>) -> Vec<Action> {
    for action in &actions {
        let Action::Store(changes) = action else { continue };
        for change in changes {
            match change.clone().into_record() {
                Some(record) => drop(records.insert(change.key(), record)),
                None => drop(records.remove(&change.key())),
            }
        }
    }
    actions
}

fn answer(actions: &[Action]) -> Option<Result<Vec<Transferred>, RackError>> {
    actions.iter().find_map(|action| match action {
        Action::Reply(_, Reply::Transferred(result)) => Some(result.clone()),
        _ => None,
    })
}

fn aborted(actions: &[Action]) -> usize {
    actions
        .iter()
        .filter(|it| matches!(it, Action::Call { call: DonorCall::AbortTransfer { .. }, .. }))
        .count()
}

impl Rack {
    /// Lends two slabs of the first node.
    fn lend_at_one(&mut self) -> (Identity, GrantId) {
        self.lend_at_one_to(owner())
    }

    fn lend_at_one_to(&mut self, owner: Owner) -> (Identity, GrantId) {
        let request = AllocationRequest { donors: vec!["node1".to_owned()], ..request(1, 2) };
        self.core.handle_request(0, owner, request).unwrap();
        let (donor, request) = prepares(self.actions()).remove(0);
        self.core.handle_prepared(0, donor, request.grant, Ok(status(6, 2)));
        granted(self.actions()).unwrap();
        self.keys.insert(request.grant, request.key);
        (donor, request.grant)
    }

    fn transfer(&mut self, by: Option<Owner>, request: TransferRequest) -> Vec<Action> {
        self.core.handle_transfer(0, Token(5), caller(by), request);
        self.actions()
    }

    fn refused(&mut self, by: Option<Owner>, request: TransferRequest) -> RackError {
        let actions = self.transfer(by, request);
        assert!(steps(&actions).is_empty(), "no donor was asked");
        answer(&actions).expect("an answer").unwrap_err()
    }

    fn claim(&mut self, owner: &Owner, recipient: &str) -> Vec<Grant> {
        self.try_claim(owner, recipient).unwrap()
    }

    fn try_claim(&mut self, owner: &Owner, recipient: &str) -> Result<Vec<Grant>, RackError> {
        let request = ClaimRequest { recipient: recipient.to_owned(), transfer: None };
        self.core.handle_claim(Token(6), owner, &request);
        let claimed = self.actions().into_iter().find_map(|action| match action {
            Action::Reply(_, Reply::Claimed(result)) => Some(result),
            _ => None,
        });
        claimed.expect("an answer")
    }

    /// Limits the memory of a user.
    fn limit(&mut self, user: &str, slabs: u64) {
        let limits = Limits::of_memory(Some(slabs * SLAB_BYTES));
        let of = QuotaFor::User(user.to_owned());
        self.core.handle_set_quota(Token(7), QuotaRecord { of, limits }, "root@h");
        self.actions();
    }

    /// Returns the charged slabs by user.
    fn charged(&self) -> Vec<(String, u64)> {
        let users = self.core.quota_table().users;
        let slabs = |it: &venice_rack::rows::QuotaRow| it.used[&ResourceKind::Memory] / SLAB_BYTES;
        users.iter().map(|it| (it.user.clone(), slabs(it))).collect()
    }

    /// Lends one grant, and transfers it up to the commit.
    fn transfer_to_commit(&mut self) -> (Identity, GrantId, TransferStep) {
        let (donor, grant) = self.lend_at_one();
        let actions = self.transfer(Some(owner()), transfer(&[grant]));
        let (_, _, step) = steps(&actions).remove(0);
        self.core.handle_transfer_prepared(0, donor, (grant, step.grant), Ok(status(6, 3)));
        (donor, grant, step)
    }
}

#[test]
fn transfer_is_recorded_before_commit() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (donor, grant, step) = rack.transfer_to_commit();
    let actions = rack.actions();
    let [Action::Store(changes), Action::Call { call: DonorCall::CommitTransfer(_), .. }] =
        &actions[..]
    else {
        panic!("one record, then the commit: {actions:?}");
    };
    let [Change::TransferGrant(from), Change::PutGrant(to)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((*from, to.from, to.ownership), (grant, Some(grant), 2));
    assert_eq!((to.state, to.owner.as_ref()), (GrantState::Transferring, Some(&bob())));
    assert_eq!(rack.claim(&bob(), "r2"), [], "no key before the donor has switched");

    rack.core.handle_transfer_committed(0, donor, step.grant, Ok(status(6, 4)));
    let actions = rack.actions();
    let done = Transferred { from: grant, to: step.grant, state: TransferState::Done };
    assert_eq!(answer(&actions), Some(Ok(vec![done])));
    assert!(matches!(actions[0], Action::Store(_)), "recorded first");
    let claimed = rack.claim(&bob(), "r2");
    assert_eq!((claimed[0].id, claimed[0].key), (step.grant, step.key));
    assert_eq!(rack.claim(&bob(), "r2"), claimed, "a repeated claim gets the same");
    assert_eq!(rack.claim(&bob(), "r3"), [], "another program does not");
    assert_eq!(rack.claim(&owner(), "r2"), []);
    // A repeated transfer is not a second one.
    let again = rack.transfer(Some(owner()), transfer(&[grant]));
    assert_eq!(answer(&again), Some(Ok(vec![done])));
}

#[test]
fn strangers_transfer_nothing() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (_, grant) = rack.lend_at_one();
    let refused = rack.refused(Some(bob()), transfer(&[grant]));
    assert!(matches!(refused, RackError::Forbidden(_)), "{refused}");
    let elsewhere = Owner { node: "node2".to_owned(), ..owner() };
    assert!(matches!(rack.refused(Some(elsewhere), transfer(&[grant])), RackError::Forbidden(_)));
    let to = Owner { node: "node9".to_owned(), ..bob() };
    let unknown = TransferRequest { to, ..transfer(&[grant]) };
    assert!(matches!(rack.refused(Some(owner()), unknown), RackError::UnknownNode(_)));
    let none = rack.refused(None, transfer(&[GrantId(99)]));
    assert!(none.to_string().contains("no grant 99"), "{none}");
    assert_eq!(steps(&rack.transfer(None, transfer(&[grant]))).len(), 1, "root may");
}

#[test]
fn bound_grant_is_not_given_away() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let bound = Owner { is_bound: true, ..owner() };
    let (_, grant) = rack.lend_at_one_to(bound);
    let refused = rack.refused(Some(owner()), transfer(&[grant]));
    assert!(matches!(&refused, RackError::Forbidden(_)), "{refused}");
    assert!(refused.to_string().contains("swap device"), "{refused}");
    // Its user does not call it off either, and is charged for it.
    assert!(matches!(rack.core.handle_leave(0, &owner(), 1), Err(RackError::Forbidden(_))));
    assert_eq!(rack.charged(), [(owner().user, 2)]);
    assert_eq!(steps(&rack.transfer(None, transfer(&[grant]))).len(), 1, "root may");
}

#[test]
fn memory_of_one_request_stays_together() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let shares = rack.ask(0, 1, MORE_THAN_ONE_HAS);
    for (donor, request) in &shares {
        let status = status(8 - request.share.slabs(), 1);
        rack.core.handle_prepared(0, *donor, request.grant, Ok(status));
    }
    for (donor, request) in &shares {
        rack.core.handle_committed(0, *donor, request.grant, Ok(status(0, 2)));
    }
    rack.actions();
    let [one, other] = [shares[0].1.grant, shares[1].1.grant];
    let refused = rack.refused(Some(owner()), transfer(&[one])).to_string();
    assert!(refused.contains("name also 2"), "{refused}");

    // One donor refuses: nothing is transferred, and the other's promise ends.
    let sent = steps(&rack.transfer(Some(owner()), transfer(&[one, other])));
    let (_, donor, step) = &sent[0];
    let promised = (step.from, step.grant);
    rack.core.handle_transfer_prepared(0, *donor, promised, Ok(status(0, 3)));
    assert!(rack.actions().is_empty());
    let (_, donor, step) = &sent[1];
    let why = Refusal::Failed("mapped".to_owned());
    let promised = (step.from, step.grant);
    rack.core.handle_transfer_prepared(0, *donor, promised, Err(CallError::Refused(why)));
    let actions = rack.actions();
    assert!(matches!(answer(&actions), Some(Err(RackError::TransferFailed(_)))));
    assert_eq!((aborted(&actions), rack.states()), (2, vec!["committed".to_owned(); 2]));
}

fn charges(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter().map(|(user, slabs)| ((*user).to_owned(), *slabs)).collect()
}

#[test]
fn claim_moves_the_charge() {
    let mut rack = Rack::new(&["node1", "node2"]);
    rack.limit("bob", 1);
    let (donor, grant) = rack.lend_at_one();
    let refused = rack.refused(Some(owner()), transfer(&[grant]));
    assert!(matches!(refused, RackError::OverQuota(_)), "never claimable: {refused}");
    rack.limit("bob", 2);
    let actions = rack.transfer(Some(owner()), transfer(&[grant]));
    let (_, _, step) = steps(&actions).remove(0);
    rack.core.handle_transfer_prepared(0, donor, (grant, step.grant), Ok(status(6, 3)));
    rack.core.handle_transfer_committed(0, donor, step.grant, Ok(status(6, 4)));
    rack.actions();
    assert_eq!(rack.charged(), charges(&[("alice", 2), ("bob", 0)]));
    // Lowered meanwhile: it stays unclaimed.
    rack.limit("bob", 1);
    let refused = rack.try_claim(&bob(), "r2");
    assert!(matches!(refused, Err(RackError::OverQuota(_))), "{refused:?}");
    assert_eq!(rack.charged(), charges(&[("alice", 2), ("bob", 0)]));
    rack.limit("bob", 2);
    assert_eq!(rack.claim(&bob(), "r3").len(), 1, "by another program too");
    assert_eq!(rack.charged(), charges(&[("bob", 2)]));
    assert_eq!(rack.claim(&bob(), "r3").len(), 1, "a repetition charges nothing");
}

#[test]
fn parked_grant_fills_own_quota() {
    let mut rack = Rack::new(&["node1", "node2"]);
    rack.limit("alice", 3);
    let (donor, _, step) = rack.transfer_to_commit();
    rack.core.handle_transfer_committed(0, donor, step.grant, Ok(status(6, 4)));
    rack.actions();
    rack.core.handle_request(0, owner(), request(2, 2)).unwrap();
    let refused = granted(rack.actions()).unwrap_err();
    assert!(matches!(refused, RackError::OverQuota(_)), "{refused}");
    // Bob passes it on unclaimed, and is not charged.
    let carol = Owner { user: "carol".to_owned(), ..bob() };
    let on = TransferRequest { client_id: 78, to: carol.clone(), ..transfer(&[step.grant]) };
    let (_, _, on) = steps(&rack.transfer(Some(bob()), on)).remove(0);
    rack.core.handle_transfer_prepared(0, donor, (step.grant, on.grant), Ok(status(6, 5)));
    rack.core.handle_transfer_committed(0, donor, on.grant, Ok(status(6, 6)));
    rack.actions();
    assert_eq!(rack.charged(), charges(&[("alice", 2)]));
    assert_eq!(rack.claim(&carol, "r2").len(), 1);
    assert_eq!(rack.charged(), charges(&[("alice", 0), ("carol", 2)]));
    rack.core.handle_request(0, owner(), request(3, 2)).unwrap();
    assert_eq!(prepares(rack.actions()).len(), 1);
}

#[test]
fn charged_users_alone_are_recorded() {
    let core = MonitorCore::recover_with_peers(settings(), Box::new(CountingKeys(1)), 0, []);
    let mut rack = Rack { core, keys: BTreeMap::new() };
    for (name, token) in [("node1", 1), ("node2", 2)] {
        rack.register(name, token).unwrap().unwrap();
    }
    let users = |actions: &[Action]| -> Vec<String> {
        let changes = actions.iter().filter_map(|action| match action {
            Action::Store(changes) => Some(changes),
            _ => None,
        });
        let user = |change: &Change| match change {
            Change::PutLastRequest { user, .. } => Some(user.clone()),
            _ => None,
        };
        changes.flatten().filter_map(user).collect()
    };
    let request = AllocationRequest { donors: vec!["node1".to_owned()], ..request(1, 2) };
    rack.core.handle_request(0, owner(), request).unwrap();
    let (donor, request) = prepares(rack.actions()).remove(0);
    rack.core.handle_prepared(0, donor, request.grant, Ok(status(6, 2)));
    assert_eq!(users(&rack.actions()), ["alice"]);
    rack.core.handle_committed(0, donor, request.grant, Ok(status(6, 2)));
    rack.actions();
    let (_, _, step) = steps(&rack.transfer(Some(owner()), transfer(&[request.grant]))).remove(0);
    rack.core.handle_transfer_prepared(0, donor, (request.grant, step.grant), Ok(status(6, 3)));
    rack.core.handle_transfer_committed(0, donor, step.grant, Ok(status(6, 4)));
    assert_eq!(users(&rack.actions()), [""; 0], "nobody but the old owner has asked");
    let claim = ClaimRequest { recipient: "r2".to_owned(), transfer: None };
    rack.core.handle_claim(Token(6), &bob(), &claim);
    assert_eq!(users(&rack.actions()), ["bob"], "Monitor Nodes that charge one user conflict");
}

#[test]
fn recovery_finishes_recorded_transfer() {
    let mut rack = Rack::new(&["node1"]);
    let mut records = BTreeMap::new();
    for number in 1..=2 {
        let registration = registration(&format!("node{number}"), number);
        let registration = NodeRegistration { pid: Some(number as u32), ..registration };
        rack.core.handle_register(0, Token(number), registration);
    }
    keep(&mut records, rack.actions());
    let request = AllocationRequest { donors: vec!["node1".to_owned()], ..request(1, 2) };
    rack.core.handle_request(0, owner(), request).unwrap();
    let (donor, request) = prepares(keep(&mut records, rack.actions())).remove(0);
    let grant = request.grant;
    rack.core.handle_prepared(0, donor, grant, Ok(status(6, 2)));
    keep(&mut records, rack.actions());
    rack.core.handle_transfer(0, Token(5), caller(None), transfer(&[grant]));
    let (_, _, step) = steps(&keep(&mut records, rack.actions())).remove(0);
    rack.core.handle_transfer_prepared(0, donor, (grant, step.grant), Ok(status(6, 3)));
    keep(&mut records, rack.actions());
    let records = records.into_values();
    let core = MonitorCore::recover(settings(), Box::new(CountingKeys(100)), S, records);
    let mut rack = Rack { core, keys: BTreeMap::new() };
    let sent = steps(&rack.actions());
    assert_eq!(sent.len(), 1);
    assert_eq!(rack.charged(), charges(&[("alice", 2)]), "until it is claimed");
    let (is_commit, to, again) = &sent[0];
    assert!(*is_commit && *to == donor);
    assert_eq!(*again, step, "all of it, the time to claim too");
    // The donor still lends to the old owner: that grant does not come back into the table.
    rack.core.handle_transfer_committed(S, donor, step.grant, Err(CallError::NoAnswer));
    rack.report(S, donor, 9, &[(grant, HeldState::Committed)]);
    assert_eq!(steps(&rack.actions()).len(), 1, "told again");
    assert_eq!(rack.states(), ["transferring"]);
    rack.core.handle_transfer_committed(S, donor, step.grant, Err(CallError::NoAnswer));
    rack.report(S, donor, 10, &[(step.grant, HeldState::Committed)]);
    assert_eq!(rack.states(), ["committed"]);
    assert_eq!(rack.claim(&bob(), "r2").len(), 1);
}

#[test]
fn grant_ended_before_switch_is_lost() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (donor, grant, step) = rack.transfer_to_commit();
    rack.actions();
    let gone = Err(CallError::Refused(Refusal::UnknownGrant));
    rack.core.handle_transfer_committed(0, donor, step.grant, gone);
    let lost = Transferred { from: grant, to: step.grant, state: TransferState::Gone };
    assert_eq!(answer(&rack.actions()), Some(Ok(vec![lost])));
    assert_eq!(rack.states(), [""; 0]);
}

#[test]
fn silent_donor_delays_answer_only() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (_, grant, step) = rack.transfer_to_commit();
    rack.actions();
    rack.core.handle_timeout(4 * S);
    let pending = Transferred { from: grant, to: step.grant, state: TransferState::Pending };
    assert_eq!(answer(&rack.actions()), Some(Ok(vec![pending])));
}

#[test]
fn late_prepare_fails_transfer() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (donor, grant) = rack.lend_at_one();
    let actions = rack.transfer(Some(owner()), transfer(&[grant]));
    let (_, _, step) = steps(&actions).remove(0);
    rack.report(2 * S, donor, 3, &[(grant, HeldState::Committed)]);
    rack.core.handle_timeout(4 * S);
    let actions = rack.actions();
    assert!(matches!(answer(&actions), Some(Err(RackError::TransferFailed(_)))));
    assert_eq!(aborted(&actions), 1);
    rack.core.handle_transfer_prepared(4 * S, donor, (grant, step.grant), Ok(status(6, 3)));
    let actions = rack.actions();
    assert_eq!(aborted(&actions), 1, "the first abort may have come too early");
    assert_eq!(rack.states(), ["committed"]);
}

#[test]
fn old_key_releases_nothing() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (donor, grant, step) = rack.transfer_to_commit();
    rack.core.handle_transfer_committed(0, donor, step.grant, Ok(status(6, 4)));
    rack.actions();
    rack.release(grant);
    let actions = rack.actions();
    let kept = Kept::default();
    assert!(matches!(&actions[..], [Action::Reply(_, Reply::Released(it))] if *it == kept));
    assert_eq!(rack.states(), ["committed"]);
}
