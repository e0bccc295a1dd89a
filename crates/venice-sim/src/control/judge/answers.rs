//! Checkers of Monitor Nodes' calls to donors and answers to recipients.

use venice_rack::monitor::{Record, RecordKey};
use venice_rack::rat::{GrantRecord, GrantState};
use venice_rack::types::{Grant, HeldState, Identity, PrepareRequest, Want};
use venice_wire::GrantId;

use super::{Answer, Checker, Judge, Scene};
use crate::control::agent::number_of;
use crate::control::desk::Knows;

impl Judge {
    /// Checks a prepare.
    pub(super) fn prepares(
        &mut self,
        scene: &Scene<'_>,
        (monitor, donor): (u16, Identity),
        request: &PrepareRequest,
        knows: Knows,
    ) {
        let (now_ns, grant) = (scene.now_ns, request.grant);
        let other = self.numbers.insert(grant, request.key);
        // A prepare is repeated if it is unclear whether the grant was lent at once.
        let is_again = knows.is_recorded && request.at_once && other == Some(request.key);
        self.findings.check(Checker::Numbers, now_ns, other.is_none() || is_again, || {
            format!("{grant} is assigned twice")
        });
        if knows.is_recorded {
            return;
        }
        if self.is_alone {
            self.check_passing(scene, donor, request);
        }
        for (is_wrong, what) in [(knows.is_draining, "drained"), (knows.is_down, "down")] {
            self.findings.check(Checker::TurnedAway, now_ns, !is_wrong, || {
                format!(
                    "monitor{monitor} places {grant} on {}, although its table has it {what}",
                    donor.node
                )
            });
        }
    }

    /// Checks an answer with grants.
    pub(super) fn tells(&mut self, scene: &Scene<'_>, client_id: u128, grants: &[Grant]) {
        for grant in grants {
            let result = self.recorded(scene, client_id, grant);
            self.findings.check(Checker::Record, scene.now_ns, result.is_ok(), || {
                result.err().unwrap_or_default()
            });
        }
        let answered: Vec<(u16, GrantId)> = grants
            .iter()
            .map(|grant| (number_of(&grant.donor).unwrap_or_default(), grant.id))
            .collect();
        let now = Answer { at_ns: scene.now_ns, grants: answered };
        let Some(before) = self.answered.insert(client_id, now) else { return };
        let now = &self.answered[&client_id].grants;
        // A donor without contact for a lease counts as dead, whatever it holds.
        let is_good = scene.now_ns < before.at_ns + self.lease_ns
            && before
                .grants
                .iter()
                .all(|grant| self.lent.contains_key(grant) && !self.left.contains(&grant.1));
        let is_same = before.grants == *now;
        self.findings.check(Checker::Single, scene.now_ns, is_same || !is_good, || {
            format!("request {client_id:#x} was granted {:?} and then {now:?}", before.grants)
        });
    }

    fn recorded(&self, scene: &Scene<'_>, client_id: u128, grant: &Grant) -> Result<(), String> {
        let key = RecordKey::Grant(grant.id);
        let record = match self.is_alone {
            true => scene.monitors[0].file().get(&key),
            false => scene.store.get(&key),
        };
        let donor = number_of(&grant.donor).unwrap_or_default();
        match record {
            // Several Monitor Nodes may learn late that a program has released it, or stopped
            // waiting.
            _ if !self.is_alone && !scene.recipients.iter().any(|it| it.asks(client_id)) => Ok(()),
            Some(Record::Grant(record)) if is_answer(record, client_id, grant) => Ok(()),
            None if !self.lent.contains_key(&(donor, grant.id)) => Ok(()),
            other => Err(format!("{} is in an answer, and the store has {other:?}", grant.id)),
        }
    }

    /// Checks an answer that reached its recipient.
    pub(super) fn check_truth(
        &mut self,
        scene: &Scene<'_>,
        grants: &[Grant],
        (wants, asked_ns): (&[Want], u64),
    ) {
        let held = |kind| {
            let shares = grants.iter().filter(|grant| grant.share.kind == kind);
            shares.map(|grant| grant.share.amount()).sum::<u64>()
        };
        let wanted = |want: &Want| match want.kind.is_divisible() {
            true => want.bytes.0 * u64::from(want.count),
            false => want.count.into(),
        };
        let is_whole = wants.iter().all(|want| held(want.kind) == wanted(want));
        self.findings.check(Checker::Truth, scene.now_ns, is_whole, || {
            format!("{grants:?} are granted for {wants:?}")
        });
        // The leases began after that.
        if scene.now_ns >= asked_ns + self.lease_ns {
            return;
        }
        for grant in grants {
            let donor = number_of(&grant.donor).unwrap_or_default();
            let agent = &scene.agents[usize::from(donor)];
            let identity = Identity { node: grant.donor_node, epoch: grant.donor_epoch };
            if agent.identity() != Some(identity) || self.taken_back.contains(&(donor, grant.id)) {
                continue;
            }
            let view = agent.core().and_then(|core| core.grant(grant.id));
            let is_so = view
                .is_some_and(|view| view.state == HeldState::Committed && view.key == grant.key);
            self.findings.check(Checker::Truth, scene.now_ns, is_so, || {
                format!("{} is in an answer, and {} has {view:?}", grant.id, grant.donor)
            });
        }
    }
}

fn is_answer(record: &GrantRecord, client_id: u128, grant: &Grant) -> bool {
    let is_lent = record.state == GrantState::Committed || record.is_lent_at_once();
    let is_its =
        |origin: venice_rack::rat::Origin| origin.client_id == client_id && origin.key == grant.key;
    is_lent && record.origin.is_some_and(is_its)
}
