//! Repetition of pending calls after a conflict with another Monitor Node.

use super::Driver;
use crate::inputs::{PendingCall, PendingRequest};

impl Driver {
    /// Repeats all calls that have no answer yet and still have a caller.
    pub(super) fn repeat_calls(&mut self) {
        self.drop_abandoned();
        let now_ns = self.clock.now_ns();
        for (token, PendingCall { asked, .. }) in &self.registrations {
            self.core.handle_register(now_ns, *token, asked.clone());
        }
        for (token, PendingCall { asked, .. }) in &self.releases {
            self.core.handle_release(*token, asked);
        }
        for (token, PendingCall { asked: (by, request), .. }) in &self.transfers {
            self.core.handle_transfer(now_ns, *token, by.clone(), request.clone());
        }
        for (token, PendingCall { asked: (owner, request), .. }) in &self.claims {
            self.core.handle_claim(*token, owner, request);
        }
        let orders = self.orders.iter().map(|(token, waiting)| (*token, waiting.asked.clone()));
        for (token, order) in orders.collect::<Vec<_>>() {
            self.start_order(token, order);
        }
        let mut rejected = Vec::new();
        for (client_id, PendingRequest { owner, request, .. }) in &self.requests {
            let asked = self.core.handle_request(now_ns, owner.clone(), request.clone());
            rejected.extend(asked.err().map(|error| (*client_id, error)));
        }
        for (client_id, error) in rejected {
            self.reply(client_id, Err(error));
        }
    }

    /// Drops pending calls whose callers have hung up: they may have called another Monitor Node,
    /// and a later execution here would be wrong. Slabs already lent for such a request stay until
    /// their lease expires, for a retry under the same number. Releases and revocations are kept:
    /// they are right for the whole rack, with or without a caller.
    fn drop_abandoned(&mut self) {
        self.registrations.retain(|_, waiting| !waiting.reply.is_closed());
        self.transfers.retain(|_, waiting| !waiting.reply.is_closed());
        self.claims.retain(|_, waiting| !waiting.reply.is_closed());
        self.orders.retain(|_, waiting| waiting.asked.is_rack_wide() || !waiting.reply.is_closed());
        self.requests.retain(|_, asking| {
            asking.replies.retain(|reply| !reply.is_closed());
            !asking.replies.is_empty()
        });
    }
}
