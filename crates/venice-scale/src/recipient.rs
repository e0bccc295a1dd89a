//! A program that borrows: it asks, holds and renews, gives back, and rests.

use venice_rack::caller::Owner;
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::queueing::Asked;
use venice_rack::request::AllocationRequest;
use venice_rack::types::{Grant, LeaseState, RackError};
use venice_rack::want::Want;
use venice_simkernel::random::Stream;
use venice_wire::{GrantId, SLAB_BYTES};

use crate::agent::{name_of, node_of};
use crate::config::Recipients;
use crate::messages::{LoanNumber, Message, Purpose};

/// The state of a recipient.
#[derive(Debug)]
enum State {
    Resting,
    Asking,
    Holding(Vec<Held>),
    GivingBack,
}

/// A grant that it holds.
#[derive(Debug)]
struct Held {
    grant: Grant,
    donor: u32,
    renewed_at: u64,
}

/// Something that is to happen at a recipient, in its program of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecipientEvent {
    /// The next program begins.
    Ask,
    /// Its grants are to be renewed.
    Renew(LoanNumber),
    /// It is done.
    Done(LoanNumber),
}

/// An effect of a recipient.
#[derive(Debug)]
pub enum Effect {
    /// A message to the Monitor Node.
    ToMonitor(Message),
    /// A message to an agent.
    ToAgent(u32, Message),
    /// An event of its own, at a time.
    At(u64, RecipientEvent),
    /// It was granted what it asked for at that time: donors with slabs.
    Granted(u64, Vec<(u32, u32)>),
    /// It was refused, for a reason in a word.
    Refused(&'static str),
    /// It has given back what it began to give back at that time.
    GaveBack(u64),
    /// Grants were lost.
    Lost(u64),
}

/// A recipient.
#[derive(Debug)]
pub struct Recipient {
    node: u32,
    settings: Recipients,
    lease: u64,
    /// True if the Monitor Node knows distances from its node.
    is_placed: bool,
    stream: Stream,
    number: LoanNumber,
    /// When it asked, or began to give back.
    since: u64,
    state: State,
    effects: Vec<Effect>,
}

/// Draws from an exponential distribution.
pub fn exponential(stream: &mut Stream, mean: u64) -> u64 {
    let share = ((stream.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (-libm::log(share) * mean as f64) as u64
}

/// Returns the request of a node's program of that number.
pub fn request(
    node: u32,
    number: LoanNumber,
    slabs: u32,
    is_placed: bool,
) -> (Owner, AllocationRequest) {
    let name = name_of(node);
    let request = AllocationRequest {
        client_id: u128::from(node) << 64 | u128::from(number),
        recipient: name.clone(),
        wants: vec![Want::memory(u64::from(slabs) * SLAB_BYTES, 1)],
        donors: Vec::new(),
        home: if is_placed { name.clone() } else { String::new() },
        placement: None,
        purpose: "run".to_owned(),
        queueing: Default::default(),
    };
    (Owner { node: name.clone(), user: name, is_bound: false }, request)
}

impl Recipient {
    /// Makes one that begins at a random time.
    pub fn new(
        node: u32,
        settings: Recipients,
        lease: u64,
        is_placed: bool,
        mut stream: Stream,
    ) -> Self {
        let within = if settings.first.0 > 0 { settings.first } else { settings.every };
        let first = stream.below(within.0);
        Self {
            node,
            settings,
            lease,
            is_placed,
            stream,
            number: 0,
            since: 0,
            state: State::Resting,
            effects: vec![Effect::At(first, RecipientEvent::Ask)],
        }
    }

    /// Returns what it has to do since the last time.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// True if a request of it has no answer.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, State::Asking)
    }

    /// Returns the donors of the grants that it holds.
    pub fn donors(&self) -> Vec<u32> {
        match &self.state {
            State::Holding(held) => held.iter().map(|held| held.donor).collect(),
            State::Resting | State::Asking | State::GivingBack => Vec::new(),
        }
    }

    /// Handles an event of its own.
    pub fn handle(&mut self, now: u64, event: RecipientEvent) {
        match event {
            RecipientEvent::Ask => self.ask(now),
            RecipientEvent::Renew(number) if number == self.number => self.renew(now),
            RecipientEvent::Done(number) if number == self.number => self.give_back(now),
            RecipientEvent::Renew(_) | RecipientEvent::Done(_) => {}
        }
    }

    fn ask(&mut self, now: u64) {
        self.number += 1;
        (self.state, self.since) = (State::Asking, now);
        let (owner, request) = request(self.node, self.number, self.settings.slabs, self.is_placed);
        self.call(Purpose::Ask(self.number), Call::Request(owner, request));
    }

    fn call(&mut self, purpose: Purpose, call: Call) {
        self.effects.push(Effect::ToMonitor(Message::Call(purpose, Box::new(call))));
    }

    /// Handles a reply of the Monitor Node.
    pub fn handle_reply(&mut self, now: u64, purpose: Purpose, reply: Reply) {
        match (purpose, reply) {
            (Purpose::Ask(number), Reply::Asked(asked)) if number == self.number => {
                self.handle_asked(now, asked);
            }
            (Purpose::GiveBack(number), Reply::Released(_)) if number == self.number => {
                self.effects.push(Effect::GaveBack(self.since));
                self.rest(now);
            }
            _ => {}
        }
    }

    fn handle_asked(&mut self, now: u64, asked: Result<Asked, RackError>) {
        match asked {
            Ok(Asked::Granted(grants)) => {
                let held = grants.into_iter().filter_map(|grant| {
                    Some(Held { donor: node_of(&grant.donor)?, grant, renewed_at: now })
                });
                let held: Vec<Held> = held.collect();
                let shares = held.iter().map(|held| (held.donor, held.grant.share.slabs()));
                self.effects.push(Effect::Granted(self.since, shares.collect()));
                let done = now + exponential(&mut self.stream, self.settings.hold.0);
                self.effects.push(Effect::At(done, RecipientEvent::Done(self.number)));
                self.renew_later(now);
                self.state = State::Holding(held);
            }
            // None of them may wait.
            Ok(Asked::Waits(_)) => {}
            Err(error) => {
                self.effects.push(Effect::Refused(error.reason()));
                self.rest(now);
            }
        }
    }

    fn renew_later(&mut self, now: u64) {
        let at = now + self.settings.renew.0;
        self.effects.push(Effect::At(at, RecipientEvent::Renew(self.number)));
    }

    /// Renews all grants; those not renewed for a lease are lost.
    fn renew(&mut self, now: u64) {
        let State::Holding(held) = &mut self.state else { return };
        let before = held.len();
        held.retain(|held| held.renewed_at + self.lease > now);
        let lost = before - held.len();
        for Held { grant, donor, .. } in held {
            let message = Message::Renew(self.number, grant.id, grant.key);
            self.effects.push(Effect::ToAgent(*donor, message));
        }
        if lost > 0 {
            self.effects.push(Effect::Lost(lost as u64));
        }
        self.renew_later(now);
    }

    /// Handles a donor's answer to a renewal.
    pub fn handle_renewed(
        &mut self,
        now: u64,
        number: LoanNumber,
        grant: GrantId,
        state: &LeaseState,
    ) {
        let State::Holding(held) = &mut self.state else { return };
        if number != self.number {
            return;
        }
        match state {
            LeaseState::Live { .. } => {
                let held = held.iter_mut().filter(|held| held.grant.id == grant);
                held.for_each(|held| held.renewed_at = now);
            }
            LeaseState::Transferred { .. } | LeaseState::Unknown => {
                held.retain(|held| held.grant.id != grant);
                self.effects.push(Effect::Lost(1));
            }
        }
    }

    fn give_back(&mut self, now: u64) {
        let State::Holding(held) = std::mem::replace(&mut self.state, State::GivingBack) else {
            return;
        };
        self.since = now;
        let grants = held.iter().map(|held| (held.grant.id, held.grant.key)).collect();
        self.call(Purpose::GiveBack(self.number), Call::Release(grants));
    }

    fn rest(&mut self, now: u64) {
        self.state = State::Resting;
        let mean = self.settings.every.0 - self.settings.hold.0;
        let next = now + exponential(&mut self.stream, mean);
        self.effects.push(Effect::At(next, RecipientEvent::Ask));
    }
}
