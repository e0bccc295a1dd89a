//! Programs that end: performs what the logic of a release asks for.

use venice_rack::borrower::{Releasing, ReleasingOutput};
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::types::{Grant, RackError};

use super::holding::{ANSWER_WITHIN_NS, donor_of};
use super::{Doing, Recipient, RecipientTag, RecipientTimer, leases};
use crate::control::desk::{Desk, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};

/// Time limit of a release.
const RELEASE_WITHIN_NS: u64 = 5_000_000_000;

impl Recipient {
    pub(super) fn give_back(&mut self, desk: &mut Desk<'_>) {
        self.forget(desk);
        let grants: Vec<Grant> = self.held().cloned().collect();
        if grants.is_empty() {
            return self.idle(desk);
        }
        self.handing = None;
        self.line.connect(desk);
        self.doing = Doing::GivingBack(Releasing::new(grants));
        let give_up = RecipientTimer::GiveUp { program: self.programs };
        desk.timer(RELEASE_WITHIN_NS, Timer::Recipient(give_up));
        self.release(desk);
    }

    /// Performs the next output.
    pub(super) fn release(&mut self, desk: &mut Desk<'_>) {
        let program = self.programs;
        let Doing::GivingBack(releasing) = &mut self.doing else { return };
        match releasing.poll_output() {
            Some(ReleasingOutput::AtMonitor(grants)) => {
                let call = Call::Release(leases(&grants));
                self.line.call(desk, call, RecipientTag::GiveBack { program }, false);
            }
            Some(ReleasingOutput::AtDonor(grant)) => {
                let request = Request::Return(leases(std::slice::from_ref(&grant)));
                let tag = Tag::Recipient(RecipientTag::Return { program });
                desk.call(donor_of(&grant), request, ANSWER_WITHIN_NS, tag);
            }
            None => self.idle(desk),
        }
    }

    pub(super) fn gave_back(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let Doing::GivingBack(releasing) = &mut self.doing else { return };
        let result = self.line.result(desk, outcome, |reply| match reply {
            Reply::Released(kept) if kept.forged.is_empty() => Ok(kept.keyless),
            Reply::Released(_) => Err(RackError::Forbidden("a key is not its grant's".to_owned())),
            other => unreachable!("a release is answered by {other:?}"),
        });
        if let Some(result) = result {
            releasing.handle_released(result.ok().as_deref());
            self.release(desk);
        }
    }
}
