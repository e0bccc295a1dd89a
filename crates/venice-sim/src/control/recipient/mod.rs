//! A node's borrowing programs, one after the other: the logic of `venice-recipient`, and the
//! behaviour of its users.
//!
//! A program ends by releasing its grants, or without a word.

mod asking;
mod claiming;
mod holding;
mod line;
mod releasing;
mod transferring;
mod wishes;

use venice_rack::borrower::{Claiming, Releasing};
use venice_rack::caller::Owner;
use venice_rack::lease_holder::RenewalCall;
use venice_rack::types::{Grant, RackError, TransferRequest};

use self::asking::Request;
use self::holding::{Holding, Origin};
use self::line::Line;
pub(super) use self::wishes::Wish;
use super::clock::Clock;
use super::desk::{Desk, Fact, Timer};
use super::messages::{Broken, Leases, Response};
use super::scenario::{Scenario, Workload};

/// Pause of a program before it asks again.
const PAUSE_NS: u64 = 250_000_000;
/// Share of programs, in a million, that take over what was transferred to their user, if anybody
/// transfers.
const CLAIMS_PPM: u32 = 500_000;

/// The cause of a failed call; `None`: no answer.
type Cause = Option<RackError>;

pub(super) struct Recipient {
    number: u16,
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
    line: Line,
    /// Time of the next timer of its grants, if one is set.
    keeps_ns: Option<u64>,
    /// The transfer of its grants, while it has no answer.
    handing: Option<TransferRequest>,
    /// Number of transfers so far.
    handings: u32,
    /// True if this program got no answer to a transfer.
    is_in_doubt: bool,
}

enum Doing {
    /// No program runs.
    Idle,
    Asking(Request),
    /// It pauses before it asks again.
    Refused {
        wish: Wish,
        cause: Cause,
    },
    Claiming {
        claiming: Claiming<Cause>,
        /// Time of the first renewals.
        renews_ns: u64,
    },
    Holding(Holding),
    GivingBack(Releasing),
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
    /// Release at a donor.
    Return {
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
    /// A refused program asks again.
    Again { program: u64 },
    /// A call to the Monitor Nodes is to be repeated.
    Repeat,
    /// A claim pauses no longer, or its renewals have taken too long.
    Claim { program: u64 },
    /// Renewals are due, or a grant is abandoned.
    Keep,
    /// The program is done.
    Done { program: u64 },
    /// Its release has taken too long.
    GiveUp { program: u64 },
}

impl Recipient {
    pub(super) fn new(scenario: &Scenario, number: u16, clock: Clock, probe: Option<Wish>) -> Self {
        Self {
            number,
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
            line: Line::new(scenario.monitors, clock),
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
        self.line.hang_up();
        self.doing = Doing::Idle;
    }

    /// Handles the end of all faults: programs with grants end soon, those with requests wait for
    /// the answer.
    pub(super) fn end(&mut self, desk: &mut Desk<'_>) {
        self.is_ending = true;
        if let Some(wish) = self.probe.clone() {
            return self.begin(desk, wish);
        }
        if let Doing::Asking(Request { asking, wish, .. }) = &mut self.doing
            && wish.waits()
        {
            asking.handle_leave();
            return self.ask(desk);
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
            RecipientTimer::Again { program } if program == self.programs => {
                if let Doing::Refused { wish, .. } = &self.doing {
                    let wish = wish.clone();
                    self.begin(desk, wish);
                }
            }
            RecipientTimer::Repeat => self.line.handle_timeout(desk),
            RecipientTimer::Claim { program } if program == self.programs => self.claim_due(desk),
            RecipientTimer::Done { program } if program == self.programs => self.done(desk),
            RecipientTimer::GiveUp { program } if program == self.programs => {
                if let Doing::GivingBack(_) = self.doing {
                    self.idle(desk);
                }
            }
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
            RecipientTag::Return { program } if program == self.programs => self.release(desk),
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
        self.line.hang_up();
        if !self.is_ending {
            let after_ns = desk.rng.below(2 * self.workload.think.0);
            desk.timer(after_ns, Timer::Recipient(RecipientTimer::Begin));
        }
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

    /// Describes what it waits for; `None`: nothing.
    pub(super) fn waits_for(&self) -> Option<String> {
        match &self.doing {
            Doing::Asking(Request { wish, .. }) => {
                Some(format!("{} requests {wish:?}", self.name()))
            }
            Doing::Refused { wish, cause } => {
                Some(format!("{} is refused {wish:?}: {cause:?}", self.name()))
            }
            Doing::GivingBack(_) => Some(format!("{} gives back", self.name())),
            Doing::Claiming { .. } => Some(format!("{} claims", self.name())),
            Doing::Idle | Doing::Holding(_) => None,
        }
    }
}

/// Returns the user of a recipient's node: two users share the nodes.
fn owner_of(number: u16, donors: u16) -> Owner {
    let user = ["alice", "bob"][usize::from(number % 2)];
    let node = super::agent::name_of(number % donors);
    Owner { node, user: user.to_owned(), is_bound: false }
}

fn leases(grants: &[Grant]) -> Leases {
    grants.iter().map(|grant| (grant.id, grant.key)).collect()
}
