//! How QPairs come to be and end.

use venice_wire::GrantKey;

use super::{
    CloseReason, EndConfig, Listener, QPairConfig, QPairError, QPairId, QPairs, RejectReason,
    pair::{AbortCode, Due, Flow, Phase, QPair},
};
use crate::{DownReason, datalink::Link};

impl QPairs {
    /// Listens for QPairs with `service`; at most `backlog` may wait to be accepted.
    ///
    /// # Errors
    /// [`QPairError::ServiceTaken`].
    pub fn listen(&mut self, service: u32, backlog: u16) -> Result<(), QPairError> {
        if self.listeners.contains_key(&service) {
            return Err(QPairError::ServiceTaken(service));
        }
        self.listeners.insert(service, Listener { backlog: backlog.max(1), waiting: 0 });
        Ok(())
    }

    /// Stops listening, and refuses what waits. QPairs that were accepted go on.
    pub fn unlisten(&mut self, service: u32) {
        self.listeners.remove(&service);
        for slot in 0..self.table.places() {
            let Some(id) = self.table.id_in(slot) else { continue };
            let is_waiting = self
                .table
                .get(id)
                .is_some_and(|pair| pair.phase == Phase::Incoming && pair.service == service);
            if is_waiting {
                self.turn_away(id, RejectReason::NoListener);
            }
        }
    }

    /// Asks the other side of a link, which the owner counts as `at`, for a QPair.
    pub(crate) fn connect(
        &mut self,
        at: u32,
        link: &Link,
        service: u32,
        config: QPairConfig,
    ) -> Result<QPairId, QPairError> {
        let id = self.admit(at, link, service, Phase::Connecting).ok_or(QPairError::TooMany)?;
        let pair = self.table.get_mut(id).expect("it was just made");
        (pair.kind, pair.mode) = (config.kind, config.credit);
        pair.flow = Some(Box::new(Flow::new(config.kind, &config.end.in_bounds())));
        pair.due.connect = true;
        self.schedule(id);
        Ok(id)
    }

    /// Makes a QPair, if there is room for one.
    pub(super) fn admit(
        &mut self,
        at: u32,
        link: &Link,
        service: u32,
        phase: Phase,
    ) -> Option<QPairId> {
        let node = link.remote();
        let id = self.table.insert(|id| QPair::new(id, at, node, service, phase))?;
        let (high, low) = (self.keys.draw().0, self.keys.draw().0);
        self.region.assign(id.slot(), GrantKey(u64::from(high) << 32 | u64::from(low)));
        self.queues_mut(at).admit(link);
        Some(id)
    }

    /// Accepts a QPair that came with [`crate::QPairEvent::Incoming`]; it can be used at once.
    ///
    /// # Errors
    /// [`QPairError::NotIncoming`], [`QPairError::Closed`] if the other end has given up,
    /// [`QPairError::Unknown`].
    pub fn accept(&mut self, id: QPairId, end: EndConfig) -> Result<(), QPairError> {
        let pair = self.incoming(id)?;
        let greeting = pair.asked_by.take().expect("whoever asks says how");
        let mut flow = Box::new(Flow::new(greeting.kind, &end.in_bounds()));
        flow.open(greeting.capacity, greeting.credit_address, greeting.credit_key);
        pair.flow = Some(flow);
        pair.phase = Phase::Open;
        pair.due.accept = true;
        let service = pair.service;
        self.stop_waiting(service);
        self.schedule(id);
        Ok(())
    }

    /// Refuses a QPair that came with [`crate::QPairEvent::Incoming`], and gives the handle back.
    ///
    /// # Errors
    /// As [`QPairs::accept`]; after [`QPairError::Closed`] too the handle was given back.
    pub fn refuse(&mut self, id: QPairId) -> Result<(), QPairError> {
        let checked = self.incoming(id).map(|_| ());
        match checked {
            Ok(()) => self.turn_away(id, RejectReason::Declined),
            Err(QPairError::Closed(_)) => self.close(id),
            Err(_) => {}
        }
        checked
    }

    fn incoming(&mut self, id: QPairId) -> Result<&mut QPair, QPairError> {
        let pair = self.table.get_mut(id).filter(|pair| !pair.is_released);
        let pair = pair.ok_or(QPairError::Unknown)?;
        match (pair.phase, pair.outcome) {
            (Phase::Incoming, _) => Ok(pair),
            (_, Some(reason)) => Err(QPairError::Closed(reason)),
            _ => Err(QPairError::NotIncoming),
        }
    }

    /// It waits no longer, whether its answer is on its way or not: who listens next for the same
    /// service counts those that ask from then on.
    fn turn_away(&mut self, id: QPairId, reason: RejectReason) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| !pair.is_released) else { return };
        pair.is_released = true;
        pair.due.reject = Some(reason);
        let service = pair.service;
        self.stop_waiting(service);
        self.schedule(id);
    }

    fn stop_waiting(&mut self, service: u32) {
        if let Some(listener) = self.listeners.get_mut(&service) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    /// Ends the sending: what is queued is still sent, and then the other end learns that this was
    /// all. Receiving goes on.
    ///
    /// # Errors
    /// [`QPairError::WouldBlock`] before the QPair is connected, [`QPairError::Closed`],
    /// [`QPairError::Unknown`].
    pub fn shutdown(&mut self, id: QPairId) -> Result<(), QPairError> {
        let pair = self.table.get_mut(id).filter(|pair| !pair.is_released);
        let pair = pair.ok_or(QPairError::Unknown)?;
        if let Some(reason) = pair.outcome {
            return Err(QPairError::Closed(reason));
        }
        match &mut pair.flow {
            Some(flow) if pair.phase == Phase::Open => flow.send.ended = true,
            _ => return Err(QPairError::WouldBlock),
        }
        self.schedule(id);
        Ok(())
    }

    /// Gives the handle back. What was sent still arrives; what comes from now on is dropped, and
    /// the other end learns that nobody reads it. Not an error for a handle already given back.
    pub fn close(&mut self, id: QPairId) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| !pair.is_released) else { return };
        match (pair.phase, &mut pair.flow) {
            (Phase::Incoming, _) => self.turn_away(id, RejectReason::Declined),
            (Phase::Open, Some(flow)) => {
                pair.is_released = true;
                flow.send.ended = true;
                flow.receive.go_deaf();
                self.schedule(id);
            }
            _ => self.abort(id),
        }
    }

    /// Gives the handle back and drops the QPair at once, with all that is queued on either side.
    pub fn abort(&mut self, id: QPairId) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| !pair.is_released) else { return };
        if pair.phase == Phase::Incoming {
            return self.turn_away(id, RejectReason::Declined);
        }
        pair.is_released = true;
        match pair.phase {
            Phase::Over => self.free(id),
            // The other side has never heard of it.
            _ if pair.due.connect => self.end(id, CloseReason::Finished),
            _ => {
                pair.due.abort = pair.due.abort.or(Some(AbortCode::Dropped));
                self.schedule(id);
            }
        }
    }

    /// The other end has broken the rules: both ends hear of it.
    pub(super) fn violate(&mut self, id: QPairId) {
        let is_under_way = |pair: &&mut QPair| {
            matches!(pair.phase, Phase::Connecting | Phase::Open) && pair.due.abort.is_none()
        };
        let Some(pair) = self.table.get_mut(id).filter(is_under_way) else { return };
        pair.due.abort = Some(AbortCode::Protocol);
        self.settle(id, CloseReason::Protocol);
        self.schedule(id);
    }

    /// Nothing more will be sent or received: the owner hears why, once.
    fn settle(&mut self, id: QPairId, reason: CloseReason) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| pair.outcome.is_none()) else {
            return;
        };
        pair.outcome = Some(reason);
        let has_writer = pair.flow.as_deref_mut().is_some_and(|flow| flow.send.take_wanted());
        self.raise(id, |events| {
            events.writable |= has_writer;
            events.closed = true;
        });
    }

    /// The QPair has sent and received its last frame.
    pub(super) fn end(&mut self, id: QPairId, reason: CloseReason) {
        self.settle(id, reason);
        let Some(pair) = self.table.get_mut(id).filter(|pair| pair.phase != Phase::Over) else {
            return;
        };
        let was_waiting = pair.phase == Phase::Incoming && !pair.is_released;
        let (link, service) = (pair.link, pair.service);
        pair.phase = Phase::Over;
        pair.due = Due::default();
        if let Some(flow) = &mut pair.flow {
            flow.send.drop_queue();
            flow.in_band.clear();
            flow.probe_at_ns = None;
        }
        // Who was never told of it need not give it back.
        let is_unwanted = pair.is_released || pair.events.incoming;
        self.queues_mut(link).live -= 1;
        if was_waiting {
            self.stop_waiting(service);
        }
        if is_unwanted {
            self.free(id);
        }
    }

    fn free(&mut self, id: QPairId) {
        if let Some(pair) = self.table.remove(id) {
            self.retired.add(&pair.stats);
            self.region.assign(id.slot(), GrantKey(0));
        }
    }

    /// A link without QPairs begins anew: its frames are counted from another place.
    pub(crate) fn link_reopens(&mut self, link: u32) {
        if let Some(queues) = self.links.get_mut(link as usize) {
            queues.clear();
        }
    }

    /// A link is down, and with it all its QPairs.
    pub(crate) fn link_down(&mut self, link: u32, reason: DownReason) {
        if self.links.get(link as usize).is_none() {
            return;
        }
        for slot in 0..self.table.places() {
            let Some(id) = self.table.id_in(slot) else { continue };
            if self.table.get(id).is_some_and(|pair| pair.link == link) {
                self.end(id, CloseReason::LinkDown(reason));
            }
        }
        self.queues_mut(link).clear();
    }
}
