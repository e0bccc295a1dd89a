//! The grants between donors and programs: the Monitor Node's part.

use std::collections::BTreeMap;

use venice_simkernel::random::Stream;

use super::Rack;
use crate::racks::notes::What;
use crate::racks::orders::Order;

/// All grants.
#[derive(Debug)]
pub(super) struct Grants {
    rng: Stream,
    /// Grants by recipient and session.
    all: BTreeMap<(u16, usize), Grant>,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    donor: u16,
    id: u64,
    key: u64,
    region: u32,
    salt: u64,
    /// True once the donor has confirmed it.
    is_lent: bool,
}

impl Grants {
    pub fn new(seed: u64) -> Self {
        let rng = Stream::new(seed).split("grants", &[]);
        Self { rng, all: BTreeMap::new(), next: 1 }
    }

    /// Records the donor's confirmation of a grant.
    pub fn lent(&mut self, id: u64) {
        if let Some(grant) = self.all.values_mut().find(|grant| grant.id == id) {
            grant.is_lent = true;
        }
    }

    fn draw(&mut self, donor: u16) -> Grant {
        let number = self.next;
        self.next += 1;
        let (key, salt) = (self.rng.draw(), self.rng.draw());
        Grant { donor, id: number.into(), key, region: number, salt, is_lent: false }
    }

    /// Removes the grants that match.
    fn take(&mut self, is_so: impl Fn(u16, &Grant) -> bool) -> Vec<Grant> {
        let mut taken = Vec::new();
        self.all.retain(|&(recipient, _), grant| {
            let goes = is_so(recipient, grant);
            taken.extend(goes.then_some(*grant));
            !goes
        });
        taken
    }
}

impl Rack<'_> {
    /// Gives the programs the memory they want, if the donors are available.
    pub(super) fn give_grants(&mut self) {
        for recipient in 0..self.plan.scenario.nodes {
            let wants = std::mem::take(&mut self.nodes[usize::from(recipient)].wants);
            for session in wants {
                if !self.give(recipient, session) {
                    self.nodes[usize::from(recipient)].wants.push(session);
                }
            }
        }
    }

    /// True if every program has memory of every donor of its.
    pub(super) fn has_given_all(&self) -> bool {
        let sessions: usize = (0..self.plan.scenario.nodes)
            .map(|node| self.plan.scenario.donors_of(node).len())
            .sum();
        let waits = |node: &super::Node| !node.wants.is_empty();
        self.grants.all.len() == sessions && !self.nodes.iter().any(waits)
    }

    /// Gives one grant; returns false if it is not possible yet.
    fn give(&mut self, recipient: u16, session: usize) -> bool {
        let donor = self.plan.scenario.donors_of(recipient)[session];
        if !self.nodes[usize::from(donor)].lends() {
            return false;
        }
        let Some(&Grant { id: grant, key, region, salt, is_lent, .. }) =
            self.grants.all.get(&(recipient, session))
        else {
            let grant = self.grants.draw(donor);
            let Grant { id, key, region, salt, .. } = grant;
            self.grants.all.insert((recipient, session), grant);
            self.notebook.note(What::Lent { region, salt });
            let order = Order::Lend { grant: id, key, region };
            self.nodes[usize::from(donor)].order_donor(order);
            return false;
        };
        if is_lent {
            let order = Order::Connect { session, grant, key, region, salt };
            self.nodes[usize::from(recipient)].order_program(order);
        }
        is_lent
    }

    /// Ends all grants of a donor, which ends them itself or is about to die.
    pub(super) fn end_grants_of(&mut self, donor: u16) {
        let ended = self.grants.take(|_, grant| grant.donor == donor);
        self.end_grants(&ended);
    }

    /// Ends all grants of a killed program.
    pub(super) fn end_grants_to(&mut self, program: u16) {
        let ended = self.grants.take(|recipient, _| recipient == program);
        self.end_grants(&ended);
    }

    fn end_grants(&mut self, ended: &[Grant]) {
        for &Grant { donor, id, region, .. } in ended {
            self.notebook.note(What::Ended { region });
            self.nodes[usize::from(donor)].order_donor(Order::End { grant: id });
        }
    }
}
