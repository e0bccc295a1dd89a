//! Programs that ask: performs what the logic of a request asks for.

use venice_rack::borrower::{Asking, AskingOutput};
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::types::RackError;

use super::line::HANGS_NS;
use super::{Cause, Doing, Origin, PAUSE_NS, Recipient, RecipientTag, RecipientTimer, Wish};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Response};

/// Share of "queued" answers, in a million, after which a program stops waiting.
const LEAVES_PPM: u32 = 30_000;
/// Share of refused requests, in a million, that are repeated under another number.
const AGAIN_PPM: u32 = 300_000;

/// A program that asks.
pub(super) struct Request {
    pub(super) wish: Wish,
    pub(super) asking: Asking<Cause>,
    client_id: u128,
    /// Time of the beginning.
    began_ns: u64,
}

impl Recipient {
    /// Begins a program that asks.
    pub(super) fn begin(&mut self, desk: &mut Desk<'_>, wish: Wish) {
        self.programs += 1;
        self.line.connect(desk);
        let client_id = self.client_id();
        let request = wish.request(self.name(), client_id);
        let asking = Asking::new(self.clock.at(desk.now_ns), request);
        self.doing = Doing::Asking(Request { wish, asking, client_id, began_ns: desk.now_ns });
        self.ask(desk);
    }

    /// Performs all outputs.
    pub(super) fn ask(&mut self, desk: &mut Desk<'_>) {
        let (owner, program) = (self.owner(), self.programs);
        while let Doing::Asking(Request { asking, wish, began_ns, .. }) = &mut self.doing
            && let Some(output) = asking.poll_output()
        {
            match output {
                AskingOutput::Ask(request) => {
                    let waits = request.queueing.left_ms() > 0;
                    let call = Call::Request(owner.clone(), request);
                    self.line.call(desk, call, RecipientTag::Ask { program }, waits);
                }
                AskingOutput::Waits(_) => {
                    if desk.rng.chance(LEAVES_PPM) {
                        asking.handle_leave();
                    }
                }
                AskingOutput::Granted(grants) => {
                    let origin = Origin { wants: Some(wish.wants.clone()), asked_ns: *began_ns };
                    self.take(desk, grants, origin);
                }
                AskingOutput::Failed(cause) => self.failed(desk, cause),
                AskingOutput::Leave(client_id) => {
                    // What is granted later ends.
                    let call = Call::Leave(owner.clone(), client_id).into();
                    let tag = Tag::Recipient(RecipientTag::Leave);
                    desk.call(self.line.party(), call, HANGS_NS, tag);
                    self.idle(desk);
                }
            }
        }
    }

    pub(super) fn answered(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let now_ns = self.clock.at(desk.now_ns);
        let Doing::Asking(Request { asking, wish, began_ns, .. }) = &mut self.doing else { return };
        let answer = self.line.result(desk, outcome, |reply| match reply {
            Reply::Asked(asked) => asked,
            other => unreachable!("a request is answered by {other:?}"),
        });
        let Some(answer) = answer else { return };
        if !wish.waits() && !matches!(answer, Err(None)) {
            desk.fact(Fact::Answered { after_ns: desk.now_ns - *began_ns });
        }
        asking.handle_answer(now_ns, answer);
        self.ask(desk);
    }

    /// Ends, or asks again under another number.
    fn failed(&mut self, desk: &mut Desk<'_>, cause: Cause) {
        let is_again = match &cause {
            _ if self.probe.is_some() => true,
            _ if self.is_ending => false,
            Some(RackError::HandshakeFailed) => true,
            Some(_) | None => desk.rng.chance(AGAIN_PPM),
        };
        let doing = std::mem::replace(&mut self.doing, Doing::Idle);
        match doing {
            Doing::Asking(Request { wish, .. }) if is_again => {
                self.doing = Doing::Refused { wish, cause };
                let again = RecipientTimer::Again { program: self.programs };
                desk.timer(PAUSE_NS, Timer::Recipient(again));
            }
            _ => self.idle(desk),
        }
    }

    /// True if it has an outstanding request under that number.
    pub(in crate::control) fn asks(&self, client_id: u128) -> bool {
        matches!(&self.doing, Doing::Asking(request) if request.client_id == client_id)
    }
}
