//! A node's borrowing programs, one after the other: the logic of `venice-recipient` for grants in
//! use, and the behaviour of its other parts and of its users.
//!
//! A program sends its request to the first Monitor Node that takes its call, and to the next one
//! where that breaks, under the same number. It ends by releasing its grants, or without a word.

mod holding;
mod transferring;
mod wishes;

use venice_rack::caller::Owner;
use venice_rack::lease_holder::{LeaseHolder, RenewalCall};
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::queueing::Asked;
use venice_rack::types::{Grant, RackError};

use self::transferring::{Claiming, Handing, owner_of};
pub(super) use self::wishes::Wish;
use super::clock::Clock;
use super::desk::{Desk, Fact, Tag, Timer};
use super::messages::{Broken, Leases, Request, Response};
use super::party::Party;
use super::scenario::{Scenario, Workload};

/// Time after which a hanging Monitor Node is noticed.
const HANGS_NS: u64 = 3_000_000_000;
/// Pause after all Monitor Nodes failed to answer.
const PAUSE_NS: u64 = 250_000_000;
/// Time limit for reaching any Monitor Node.
const PATIENCE_NS: u64 = 15_000_000_000;
/// Share of "queued" answers, in a million, after which a program stops waiting.
const LEAVES_PPM: u32 = 30_000;
/// Share of programs, in a million, that take over what was transferred to their user, if anybody
/// transfers.
const CLAIMS_PPM: u32 = 500_000;
/// Time limit of a release at the Monitor Node, and at a donor.
const GIVES_BACK_NS: u64 = 2_500_000_000;

pub(super) struct Recipient {
    number: u16,
    monitors: u16,
    donors: u16,
    recipients: u16,
    lease_ns: u64,
    slabs: u32,
    has_devices: bool,
    workload: Workload,
    clock: Clock,
    /// The request of a probe, repeated until it is served.
    probe: Option<Wish>,
    /// Number of programs so far.
    programs: u64,
    /// True if no program begins any more.
    is_ending: bool,
    doing: Doing,
    /// Time of the next timer of its grants, if one is set.
    keeps_ns: Option<u64>,
    /// The transfer of its grants, while it has no answer.
    handing: Option<Handing>,
    /// Number of transfers so far.
    handings: u32,
    /// True if this program got no answer to a transfer.
    is_in_doubt: bool,
}

enum Doing {
    /// No program runs.
    Idle,
    Asking(Asking),
    Claiming(Claiming),
    Holding(LeaseHolder),
    /// Release at the Monitor Node (`None`) or at the donors, one after the other.
    GivingBack {
        left: Vec<Grant>,
        at: Option<usize>,
    },
}

struct Asking {
    wish: Wish,
    client_id: u128,
    began_ns: u64,
    /// Time of the first request under that number.
    first_ns: u64,
    /// Earliest time at which it may have been granted, by the count of Venice's programs: the time
    /// of a request without a later denial.
    asked_ns: u64,
    /// True if a call is outstanding.
    is_asking: bool,
    at: u16,
    /// Reason of the last refusal.
    refused: Option<RackError>,
    /// Number of Monitor Nodes in a row that did not take the call.
    refusals: u16,
    /// Time since which it can reach none.
    silent_since_ns: Option<u64>,
}

/// Purpose of a recipient's call.
#[derive(Clone, Debug)]
pub(super) enum RecipientTag {
    Ask {
        program: u64,
    },
    Leave,
    Renew {
        program: u64,
        call: RenewalCall,
    },
    GiveBack {
        program: u64,
    },
    Transfer {
        program: u64,
    },
    Claim {
        program: u64,
    },
    /// First renewal of a claimed grant.
    Accept {
        program: u64,
        index: usize,
    },
}

/// A recipient's timer.
#[derive(Clone, Debug)]
pub(super) enum RecipientTimer {
    /// The next program begins.
    Begin,
    /// It repeats its request.
    Ask { program: u64 },
    /// Renewals are due, or a grant is abandoned.
    Keep,
    /// The program is done.
    Done { program: u64 },
    /// It repeats its transfer.
    Transfer { program: u64 },
    /// It repeats its claim.
    Claim { program: u64 },
}

impl Recipient {
    pub(super) fn new(scenario: &Scenario, number: u16, clock: Clock, probe: Option<Wish>) -> Self {
        Self {
            number,
            monitors: scenario.monitors,
            donors: scenario.donors,
            recipients: scenario.recipients,
            lease_ns: scenario.lease.0,
            slabs: scenario.slabs,
            has_devices: scenario.devices,
            workload: scenario.workload,
            clock,
            probe,
            programs: 0,
            is_ending: false,
            doing: Doing::Idle,
            keeps_ns: None,
            handing: None,
            handings: 0,
            is_in_doubt: false,
        }
    }

    /// Starts a process, or resumes after the node's return.
    pub(super) fn start(&mut self, desk: &mut Desk<'_>) {
        if self.probe.is_none() {
            self.idle(desk);
        }
    }

    /// Ends the process.
    pub(super) fn crash(&mut self, desk: &mut Desk<'_>) {
        self.forget(desk);
        (self.handing, self.keeps_ns) = (None, None);
        self.doing = Doing::Idle;
    }

    /// Handles the end of all faults: programs with grants end soon, those with requests wait for
    /// the answer.
    pub(super) fn end(&mut self, desk: &mut Desk<'_>) {
        self.is_ending = true;
        if let Some(wish) = self.probe.clone() {
            return self.begin(desk, wish);
        }
        if matches!(&self.doing, Doing::Asking(asking) if asking.wish.waits()) {
            return self.leave(desk);
        }
        if matches!(self.doing, Doing::Holding(_)) {
            let after_ns = desk.rng.below(1_000_000_000);
            let program = self.programs;
            desk.timer(after_ns, Timer::Recipient(RecipientTimer::Done { program }));
        }
    }

    /// Releases a probe's grants.
    pub(super) fn let_go(&mut self, desk: &mut Desk<'_>) {
        if let Doing::Holding(_) = self.doing {
            self.give_back(desk);
        }
    }

    pub(super) fn timer(&mut self, desk: &mut Desk<'_>, timer: RecipientTimer) {
        self.keep(desk);
        match timer {
            RecipientTimer::Begin if matches!(self.doing, Doing::Idle) && !self.is_ending => {
                if self.workload.transfer.0 > 0 && desk.rng.chance(CLAIMS_PPM) {
                    return self.begin_claim(desk);
                }
                let wish = self.draw_wish(desk.rng);
                self.begin(desk, wish);
            }
            RecipientTimer::Ask { program } if program == self.programs => self.ask(desk),
            RecipientTimer::Done { program } if program == self.programs => self.done(desk),
            RecipientTimer::Transfer { program } if program == self.programs => {
                self.ask_transfer(desk);
            }
            RecipientTimer::Claim { program } if program == self.programs => self.ask_claim(desk),
            _ => {}
        }
    }

    pub(super) fn outcome(
        &mut self,
        desk: &mut Desk<'_>,
        tag: RecipientTag,
        outcome: Result<Response, Broken>,
    ) {
        if !matches!(tag, RecipientTag::Renew { .. }) {
            self.keep(desk);
        }
        match tag {
            RecipientTag::Ask { program } if program == self.programs => {
                self.answered(desk, outcome);
            }
            RecipientTag::Renew { program, call } if program == self.programs => {
                self.renewed(desk, call, outcome);
            }
            RecipientTag::GiveBack { program } if program == self.programs => {
                self.gave_back(desk, outcome);
            }
            RecipientTag::Transfer { program } if program == self.programs => {
                self.transferred(desk, outcome);
            }
            RecipientTag::Claim { program } if program == self.programs => {
                self.claimed(desk, outcome);
            }
            RecipientTag::Accept { program, index } if program == self.programs => {
                self.accepted(desk, index, outcome);
            }
            _ => {}
        }
    }

    fn idle(&mut self, desk: &mut Desk<'_>) {
        self.doing = Doing::Idle;
        (self.handing, self.is_in_doubt) = (None, false);
        if !self.is_ending {
            let after_ns = desk.rng.below(2 * self.workload.think.0);
            desk.timer(after_ns, Timer::Recipient(RecipientTimer::Begin));
        }
    }

    fn begin(&mut self, desk: &mut Desk<'_>, wish: Wish) {
        self.programs += 1;
        self.doing = Doing::Asking(Asking {
            wish,
            client_id: self.client_id(),
            began_ns: desk.now_ns,
            first_ns: desk.now_ns,
            asked_ns: desk.now_ns,
            is_asking: false,
            refused: None,
            at: desk.rng.below(self.monitors.into()) as u16,
            refusals: 0,
            silent_since_ns: None,
        });
        self.ask(desk);
    }

    fn ask(&mut self, desk: &mut Desk<'_>) {
        let (owner, name) = (self.owner(), self.name());
        let Doing::Asking(asking) = &mut self.doing else { return };
        asking.is_asking = true;
        let waited_ms = (desk.now_ns - asking.began_ns) / 1_000_000;
        let request = asking.wish.request(owner, name, asking.client_id, waited_ms);
        let tag = RecipientTag::Ask { program: self.programs };
        desk.call(Party::Monitor(asking.at), request, HANGS_NS, Tag::Recipient(tag));
    }

    fn ask_after(&mut self, desk: &mut Desk<'_>, after_ns: u64) {
        let program = self.programs;
        desk.timer(after_ns, Timer::Recipient(RecipientTimer::Ask { program }));
    }

    fn answered(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let Doing::Asking(asking) = &mut self.doing else { return };
        if !std::mem::take(&mut asking.is_asking) {
            return;
        }
        match outcome {
            Ok(Response::Replied(Reply::Asked(asked))) => {
                (asking.refusals, asking.silent_since_ns) = (0, None);
                let waits = asking.wish.waits();
                if !waits {
                    let after_ns = desk.now_ns - asking.first_ns;
                    desk.fact(Fact::Answered { after_ns });
                }
                match asked {
                    Ok(Asked::Granted(grants)) => {
                        let wants = asking.wish.wants.clone();
                        let asked_ns = (asking.first_ns, asking.asked_ns);
                        self.take(desk, grants, wants, asked_ns);
                    }
                    Ok(Asked::Waits(_)) => self.wait_on(desk),
                    Err(error) => self.refused(desk, &error),
                }
            }
            Ok(other) => unreachable!("a request is answered by {other:?}"),
            Err(broken) => self.unheard(desk, broken),
        }
    }

    /// Continues to wait in the queue; some programs stop waiting.
    fn wait_on(&mut self, desk: &mut Desk<'_>) {
        let Doing::Asking(asking) = &mut self.doing else { return };
        asking.asked_ns = desk.now_ns;
        if desk.rng.chance(LEAVES_PPM) {
            return self.leave(desk);
        }
        self.ask(desk);
    }

    /// Stops waiting: a grant that comes later ends.
    fn leave(&mut self, desk: &mut Desk<'_>) {
        let owner = self.owner();
        let Doing::Asking(asking) = &self.doing else { return };
        let (to, request) =
            (Party::Monitor(asking.at), Call::Leave(owner, asking.client_id).into());
        desk.call(to, request, HANGS_NS, Tag::Recipient(RecipientTag::Leave));
        self.idle(desk);
    }

    /// Tries another Monitor Node; after a while it gives up.
    fn unheard(&mut self, desk: &mut Desk<'_>, broken: Broken) {
        let is_probe = self.probe.is_some();
        let (monitors, is_ending) = (self.monitors, self.is_ending);
        let Doing::Asking(asking) = &mut self.doing else { return };
        let since_ns = *asking.silent_since_ns.get_or_insert(desk.now_ns);
        let gives_up = desk.now_ns > since_ns + PATIENCE_NS && !is_ending;
        if gives_up && !is_probe {
            // A program that reaches no Monitor Node ends; it holds no grants that it has learned
            // of.
            return self.idle(desk);
        }
        asking.at = (asking.at + 1) % monitors;
        asking.refusals += 1;
        if broken == Broken::Refused && asking.refusals < monitors {
            return self.ask(desk);
        }
        asking.refusals = 0;
        self.ask_after(desk, PAUSE_NS);
    }

    fn refused(&mut self, desk: &mut Desk<'_>, error: &RackError) {
        let goes_on = self.probe.is_some()
            || !self.is_ending && matches!(error, RackError::HandshakeFailed | RackError::Stopping)
            || !self.is_ending && desk.rng.chance(300_000);
        if !goes_on {
            return self.idle(desk);
        }
        if let Doing::Asking(asking) = &mut self.doing {
            asking.refused = Some(error.clone());
        }
        // A refused request is repeated under another number; a failed handshake may be repeated
        // under the same.
        let is_same = *error == RackError::HandshakeFailed && desk.rng.chance(500_000);
        if !is_same || self.probe.is_some() {
            self.programs += 1;
            let (client_id, now_ns) = (self.client_id(), desk.now_ns);
            if let Doing::Asking(asking) = &mut self.doing {
                (asking.client_id, asking.asked_ns) = (client_id, now_ns + PAUSE_NS);
                asking.first_ns = asking.asked_ns;
            }
        }
        self.ask_after(desk, PAUSE_NS);
    }

    fn done(&mut self, desk: &mut Desk<'_>) {
        if !matches!(self.doing, Doing::Holding(_)) || self.probe.is_some() {
            return;
        }
        let transfer = self.workload.transfer.0;
        if transfer > 0
            && !self.is_ending
            && (self.handing.is_some() || desk.rng.chance(transfer) && self.hand_over(desk))
        {
            return;
        }
        if desk.rng.chance(self.workload.die.0) {
            self.forget(desk);
            return self.idle(desk);
        }
        self.give_back(desk);
    }

    /// Stops using its grants.
    fn forget(&mut self, desk: &mut Desk<'_>) {
        for grant in self.held() {
            desk.fact(Fact::Leaves { grant: grant.id });
        }
    }

    fn give_back(&mut self, desk: &mut Desk<'_>) {
        self.forget(desk);
        let left: Vec<Grant> = self.held().cloned().collect();
        if left.is_empty() {
            return self.idle(desk);
        }
        let request = Call::Release(leases(&left)).into();
        self.handing = None;
        self.doing = Doing::GivingBack { left, at: None };
        let tag = RecipientTag::GiveBack { program: self.programs };
        let at = desk.rng.below(self.monitors.into()) as u16;
        desk.call(Party::Monitor(at), request, GIVES_BACK_NS, Tag::Recipient(tag));
    }

    /// Releases the rest at its donor, once, if the Monitor Node did not take it.
    fn gave_back(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let Doing::GivingBack { left, at } = &mut self.doing else { return };
        let next = match (*at, outcome) {
            (None, Ok(Response::Replied(Reply::Released(kept)))) => {
                left.retain(|grant| {
                    kept.forged.contains(&grant.id) || kept.keyless.contains(&grant.id)
                });
                0
            }
            (None, _) => 0,
            (Some(index), _) => index + 1,
        };
        *at = Some(next);
        let Some(grant) = left.get(next) else { return self.idle(desk) };
        let donor = super::agent::number_of(&grant.donor).unwrap_or_default();
        let request = Request::Return(leases(std::slice::from_ref(grant)));
        let tag = RecipientTag::GiveBack { program: self.programs };
        desk.call(Party::Donor(donor), request, GIVES_BACK_NS, Tag::Recipient(tag));
    }

    fn client_id(&self) -> u128 {
        u128::from(self.number) << 32 | u128::from(self.programs)
    }

    /// Returns its name in tables.
    fn name(&self) -> String {
        format!("recipient{}.{}", self.number, self.programs)
    }

    /// Returns its user.
    fn owner(&self) -> Owner {
        owner_of(self.number, self.donors)
    }

    /// Returns the grants in use.
    pub(super) fn held(&self) -> impl Iterator<Item = &Grant> {
        let holder = match &self.doing {
            Doing::Holding(holder) => Some(holder),
            Doing::Idle | Doing::Asking(_) | Doing::Claiming(_) | Doing::GivingBack { .. } => None,
        };
        holder.into_iter().flat_map(LeaseHolder::held).map(|(_, grant)| grant)
    }

    /// True if it has an outstanding request under that number.
    pub(super) fn asks(&self, client_id: u128) -> bool {
        matches!(&self.doing, Doing::Asking(asking) if asking.client_id == client_id)
    }

    /// Describes what it waits for; `None`: nothing.
    pub(super) fn waits_for(&self) -> Option<String> {
        match &self.doing {
            Doing::Asking(Asking { wish, refused, .. }) => {
                Some(format!("{} requests {wish:?}, last refusal: {refused:?}", self.name()))
            }
            Doing::GivingBack { .. } => Some(format!("{} gives back", self.name())),
            Doing::Claiming(_) => Some(format!("{} claims", self.name())),
            Doing::Idle | Doing::Holding(_) => None,
        }
    }
}

fn leases(grants: &[Grant]) -> Leases {
    grants.iter().map(|grant| (grant.id, grant.key)).collect()
}
