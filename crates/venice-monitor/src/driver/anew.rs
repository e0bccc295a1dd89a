//! Asks again for those who have no answer yet, where others were first at the store.

use super::{Driver, ask};
use crate::inputs::{Asking, Waiting};

impl Driver {
    /// On behalf of those who have no answer yet, and wait for one.
    pub(super) fn ask_anew(&mut self) {
        self.forget_forsaken();
        let now_ns = self.clock.now_ns();
        for (token, Waiting { asked, .. }) in &self.registrations {
            self.core.handle_register(now_ns, *token, asked.clone());
        }
        for (token, Waiting { asked, .. }) in &self.releases {
            self.core.handle_release(*token, asked);
        }
        let orders = self.orders.iter().map(|(token, waiting)| (*token, waiting.asked.clone()));
        for (token, order) in orders.collect::<Vec<_>>() {
            self.order(token, order);
        }
        let mut forbidden = Vec::new();
        for (client_id, Asking { owner, wanted, .. }) in &self.requests {
            let asked = ask(&mut self.core, now_ns, owner, wanted);
            forbidden.extend(asked.err().map(|error| (*client_id, error)));
        }
        for (client_id, error) in forbidden {
            self.reply(client_id, Err(error));
        }
    }

    /// Callers that have hung up may ask another Monitor Node by now, and what they asked here is not to be
    /// done at any later time. What donors have lent for a request already stays until its lease is over,
    /// for whoever asks under its number. Memory is given back, and nodes are turned out, for everybody's
    /// sake, whoever hears of it.
    fn forget_forsaken(&mut self) {
        self.registrations.retain(|_, waiting| !waiting.reply.is_closed());
        self.orders.retain(|_, waiting| waiting.asked.is_for_all() || !waiting.reply.is_closed());
        self.requests.retain(|_, asking| {
            asking.replies.retain(|reply| !reply.is_closed());
            !asking.replies.is_empty()
        });
    }
}
