//! Calls that wait for their replies. They are kept: a conflict with a peer repeats them.

use super::{Call, MonitorNode, Now, Order, Output, Reply};
use crate::caller::Owner;
use crate::monitor::{Event, RequestFacts, Token};
use crate::types::{AllocationRequest, Grant, RackError};

/// A call that waits for its reply.
pub(super) struct PendingCall {
    call: Call,
    /// True if its caller was told that the store has no room.
    is_answered: bool,
}

/// A request that waits for its reply. Its client may repeat it during the handshake.
#[derive(Debug, Clone)]
pub struct PendingRequest {
    /// Its owner.
    pub owner: Owner,
    /// The request.
    pub request: AllocationRequest,
    /// The calls that wait for its reply.
    pub calls: Vec<Token>,
    /// True once its caller has withdrawn it: the reply is no refusal then.
    is_withdrawn: bool,
}

impl MonitorNode {
    /// Handles a call. Its reply has the same `token`, which no other call may have.
    pub fn handle_call(&mut self, now: Now, token: Token, call: Call) {
        if let Some(obstacle) = &self.obstacle
            && call.needs_caller()
        {
            let reply = call.refused(RackError::StoreFull(obstacle.why.clone()));
            return self.outputs.extend(reply.map(|reply| Output::Reply(token, reply)));
        }
        match call {
            Call::Request(owner, request) => self.request(now, token, owner, request),
            Call::Leave(owner, client_id) => self.leave(now, token, &owner, client_id),
            call => {
                self.pending.insert(token, PendingCall { call: call.clone(), is_answered: false });
                self.start(now, token, call);
            }
        }
    }

    /// Handles the end of callers: calls that are of no use without them are not repeated. Slabs
    /// already lent for such a request stay until their lease expires, for a retry under the same
    /// number.
    pub fn handle_hang_up(&mut self, is_gone: impl Fn(Token) -> bool) {
        self.pending.retain(|token, it| !it.call.needs_caller() || !is_gone(*token));
        self.requests.values_mut().for_each(|it| it.calls.retain(|token| !is_gone(*token)));
    }

    fn request(&mut self, now: Now, token: Token, owner: Owner, request: AllocationRequest) {
        let (client_id, now_ns) = (request.client_id, self.clock.now_ns(now.clock_ns));
        if let Err(error) = self.core.handle_request(now_ns, owner.clone(), request.clone()) {
            self.note_refused(RequestFacts::of(&owner, &request), &error);
            return self.outputs.push_back(Output::Reply(token, Reply::Asked(Err(error))));
        }
        let pending = PendingRequest { owner, request, calls: Vec::new(), is_withdrawn: false };
        self.requests.entry(client_id).or_insert(pending).calls.push(token);
    }

    fn leave(&mut self, now: Now, token: Token, owner: &Owner, client_id: u128) {
        let now_ns = self.clock.now_ns(now.clock_ns);
        let left = self.core.handle_leave(now_ns, owner, client_id);
        if let Some(pending) = self.requests.get_mut(&client_id).filter(|_| left.is_ok()) {
            pending.is_withdrawn = true;
        }
        self.outputs.push_back(Output::Reply(token, Reply::Done(left)));
    }

    fn start(&mut self, now: Now, token: Token, call: Call) {
        let now_ns = self.clock.now_ns(now.clock_ns);
        match call {
            Call::Register(node) => self.core.handle_register(now_ns, token, node),
            Call::Release(leases) => self.core.handle_release(token, &leases),
            Call::Transfer(by, request) => self.core.handle_transfer(now_ns, token, by, request),
            Call::Claim(owner, request) => self.core.handle_claim(token, &owner, &request),
            Call::Order(order) => self.start_order(now, token, order),
            Call::Request(..) | Call::Leave(..) => unreachable!("handled by their own functions"),
        }
    }

    fn start_order(&mut self, now: Now, token: Token, order: Order) {
        let now_ns = self.clock.now_ns(now.clock_ns);
        let core = &mut self.core;
        match order {
            Order::Deregister { name, identity, .. } if core.name_of(identity.node) != name => {
                self.reply(token, Reply::Done(Err(RackError::NotRegistered)));
            }
            Order::Deregister { identity, instance, .. } => {
                core.handle_deregister(now_ns, token, identity, instance);
            }
            Order::NewToken(record) => core.handle_new_token(now.wall_ms, token, record),
            Order::Join { token: join, name, key } => {
                core.handle_join(now.wall_ms, token, join, (&name, key));
            }
            Order::DeleteToken(id) => core.handle_delete_token(now.wall_ms, token, id),
            Order::Revoke { name, is_sure } => {
                core.handle_revoke(now_ns, now.signed_until_ms, token, (&name, is_sure));
                // It applies before it is durable: the node might renew during the write.
                self.outputs.push_back(Output::Revoked);
            }
            Order::SetQuota { quota, by } => core.handle_set_quota(token, quota, &by),
            Order::RemoveQuota { of, by } => core.handle_remove_quota(token, of, &by),
            Order::Drain { name, undo } => core.handle_drain(now_ns, token, &name, !undo),
        }
    }

    pub(super) fn reply(&mut self, token: Token, reply: Reply) {
        if self.pending.remove(&token).is_some_and(|it| !it.is_answered) {
            self.outputs.push_back(Output::Reply(token, reply));
        }
    }

    pub(super) fn reply_request(&mut self, client_id: u128, result: Result<Vec<Grant>, RackError>) {
        let Some(pending) = self.requests.remove(&client_id) else { return };
        match result {
            Ok(grants) => self.outputs.push_back(Output::Granted(pending, grants)),
            Err(error) => {
                if !pending.is_withdrawn {
                    self.note_refused(RequestFacts::of(&pending.owner, &pending.request), &error);
                }
                let replies = pending.calls.into_iter();
                let refused = |token| Output::Reply(token, Reply::Asked(Err(error.clone())));
                self.outputs.extend(replies.map(refused));
            }
        }
    }

    /// Repeats all calls without a reply, after a conflict with a peer.
    pub(super) fn repeat_calls(&mut self, now: Now) {
        self.requests.retain(|_, it| !it.calls.is_empty());
        let calls = self.pending.iter().map(|(token, it)| (*token, it.call.clone()));
        for (token, call) in calls.collect::<Vec<_>>() {
            self.start(now, token, call);
        }
        let now_ns = self.clock.now_ns(now.clock_ns);
        let mut rejected = Vec::new();
        for (client_id, PendingRequest { owner, request, .. }) in &self.requests {
            let asked = self.core.handle_request(now_ns, owner.clone(), request.clone());
            rejected.extend(asked.err().map(|error| (*client_id, error)));
        }
        for (client_id, error) in rejected {
            self.reply_request(client_id, Err(error));
        }
    }

    /// Answers the calls whose changes wait for room.
    pub(super) fn answer_without_room(&mut self, why: &str) {
        let begun = || {
            let said = format!("{why}; what was begun is completed once there is room");
            RackError::StoreFull(said)
        };
        for (token, it) in self.pending.iter_mut().filter(|(_, it)| !it.is_answered) {
            if let Some(reply) = it.call.refused(begun()) {
                it.is_answered = true;
                self.outputs.push_back(Output::Reply(*token, reply));
            }
        }
        for token in self.requests.values_mut().flat_map(|it| it.calls.drain(..)) {
            self.outputs.push_back(Output::Reply(token, Reply::Asked(Err(begun()))));
        }
    }

    fn note_refused(&mut self, request: RequestFacts, error: &RackError) {
        let error = error.clone();
        self.outputs.push_back(Output::Note(Event::RequestRefused { request, error }));
    }
}
