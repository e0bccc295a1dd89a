//! Waiting callers: their requests are repeated where others were first at the store, as long as a
//! caller waits.

use venice_rack::caller::Owner;
use venice_rack::types::AllocationRequest;

use super::driver::Driver;
use crate::control::desk::Desk;
use crate::control::messages::{CallId, Request, Response};

/// A caller that waits for the answer to a request.
pub(super) struct Asking {
    owner: Owner,
    request: AllocationRequest,
    pub(super) calls: Vec<CallId>,
}

impl Driver {
    pub(super) fn request(
        &mut self,
        desk: &mut Desk<'_>,
        now_ns: u64,
        (owner, request): (Owner, AllocationRequest),
        call: CallId,
    ) {
        let client_id = request.client_id;
        if let Err(error) = self.core.handle_request(now_ns, owner.clone(), request.clone()) {
            return desk.reply(call, Response::Asked(Err(error)));
        }
        let asking = Asking { owner, request, calls: Vec::new() };
        self.requests.entry(client_id).or_insert(asking).calls.push(call);
    }

    /// Repeats the requests without an answer.
    pub(super) fn ask_anew(&mut self, desk: &mut Desk<'_>, now_ns: u64) {
        for (token, (node, _)) in &self.registrations {
            self.core.handle_register(now_ns, *token, node.clone());
        }
        for (token, (leases, _)) in &self.releases {
            self.core.handle_release(*token, leases);
        }
        for (token, ((name, undo), _)) in &self.orders {
            self.core.handle_drain(now_ns, *token, name, !undo);
        }
        for (token, ((by, request), _)) in &self.transfers {
            self.core.handle_transfer(now_ns, *token, by.clone(), request.clone());
        }
        for (token, ((owner, request), _)) in &self.claims {
            self.core.handle_claim(*token, owner, request);
        }
        self.requests.retain(|_, asking| !asking.calls.is_empty());
        let asking = self.requests.iter();
        let asking = asking.map(|(id, it)| (*id, it.owner.clone(), it.request.clone()));
        for (client_id, owner, request) in asking.collect::<Vec<_>>() {
            if let Err(error) = self.core.handle_request(now_ns, owner, request) {
                self.answer(desk, client_id, Response::Asked(Err(error)));
            }
        }
    }

    /// Handles a caller that stopped waiting, and may ask another Monitor Node by now: its request
    /// is not begun, nor repeated. A release is repeated in any case.
    pub(super) fn hangs_up(&mut self, call: CallId) {
        self.inputs.retain(|(of, request)| *of != call || is_for_anybody(request));
        self.registrations.retain(|_, (_, of)| *of != call);
        self.orders.retain(|_, (_, of)| *of != call);
        self.transfers.retain(|_, (_, of)| *of != call);
        self.claims.retain(|_, (_, of)| *of != call);
        for asking in self.requests.values_mut() {
            asking.calls.retain(|of| *of != call);
        }
    }

    /// Answers all who wait for a request.
    pub(super) fn answer(&mut self, desk: &mut Desk<'_>, client_id: u128, response: Response) {
        let asking = self.requests.remove(&client_id);
        for call in asking.into_iter().flat_map(|asking| asking.calls) {
            desk.reply(call, response.clone());
        }
    }
}

/// True if the request holds without a waiting caller: reports, cancellations and releases.
fn is_for_anybody(request: &Request) -> bool {
    matches!(request, Request::Heartbeat(_) | Request::Leave(..) | Request::GiveBack(_))
}
