//! Creation and end of QPairs.

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

    /// Stops listening, and refuses waiting requests. Accepted QPairs continue.
    pub fn unlisten(&mut self, service: u32) {
        self.listeners.remove(&service);
        for slot in 0..self.table.places() {
            let Some(id) = self.table.id_in(slot) else { continue };
            let is_waiting = self
                .table
                .get(id)
                .is_some_and(|pair| pair.phase == Phase::Incoming && pair.service == service);
            if is_waiting {
                self.reject_incoming(id, RejectReason::NoListener);
            }
        }
    }

    /// Requests a QPair from the other side of a link, which the owner numbers `at`.
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

    /// Accepts a QPair announced by [`crate::QPairEvent::Incoming`]; it can be used at once.
    ///
    /// # Errors
    /// [`QPairError::NotIncoming`], [`QPairError::Closed`] if the other end has given up,
    /// [`QPairError::Unknown`].
    pub fn accept(&mut self, id: QPairId, end: EndConfig) -> Result<(), QPairError> {
        let pair = self.incoming(id)?;
        let greeting = pair.asked_by.take().expect("an incoming QPair has a greeting");
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

    /// Refuses a QPair announced by [`crate::QPairEvent::Incoming`], and releases the handle.
    ///
    /// # Errors
    /// Like [`QPairs::accept`]; the handle is released after [`QPairError::Closed`] too.
    pub fn refuse(&mut self, id: QPairId) -> Result<(), QPairError> {
        let checked = self.incoming(id).map(|_| ());
        match checked {
            Ok(()) => self.reject_incoming(id, RejectReason::Declined),
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

    /// Stops counting a request as waiting, whether its answer was sent or not: the next listener
    /// of the service counts only requests from then on.
    fn reject_incoming(&mut self, id: QPairId, reason: RejectReason) {
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

    /// Ends the sending: queued data is still sent, and then the other end learns that it was the
    /// last. Receiving continues.
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

    /// Releases the handle. Data already sent still arrives; data received from now on is dropped,
    /// and the other end learns that it is not read. A handle already released is not an error.
    pub fn close(&mut self, id: QPairId) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| !pair.is_released) else { return };
        match (pair.phase, &mut pair.flow) {
            (Phase::Incoming, _) => self.reject_incoming(id, RejectReason::Declined),
            (Phase::Open, Some(flow)) => {
                pair.is_released = true;
                flow.send.ended = true;
                flow.receive.go_deaf();
                self.schedule(id);
            }
            _ => self.abort(id),
        }
    }

    /// Releases the handle and drops the QPair at once, with all data queued on either side.
    pub fn abort(&mut self, id: QPairId) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| !pair.is_released) else { return };
        if pair.phase == Phase::Incoming {
            return self.reject_incoming(id, RejectReason::Declined);
        }
        pair.is_released = true;
        match pair.phase {
            Phase::Over => self.free(id),
            // The other side has never received the request.
            _ if pair.due.connect => self.end(id, CloseReason::Finished),
            _ => {
                pair.due.abort = pair.due.abort.or(Some(AbortCode::Dropped));
                self.schedule(id);
            }
        }
    }

    /// Ends a QPair whose other end has broken the protocol, and notifies both ends.
    pub(super) fn violate(&mut self, id: QPairId) {
        let is_under_way = |pair: &&mut QPair| {
            matches!(pair.phase, Phase::Connecting | Phase::Open) && pair.due.abort.is_none()
        };
        let Some(pair) = self.table.get_mut(id).filter(is_under_way) else { return };
        pair.due.abort = Some(AbortCode::Protocol);
        self.settle(id, CloseReason::Protocol);
        self.schedule(id);
    }

    /// Marks the QPair as ended and reports the reason to the owner, once.
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

    /// Removes a QPair that has sent and received its last frame.
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
        // An owner that was never notified of the QPair need not release it.
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

    /// Restarts the counts of a link without QPairs: its frames are numbered anew.
    pub(crate) fn link_reopens(&mut self, link: u32) {
        if let Some(queues) = self.links.get_mut(link as usize) {
            queues.clear();
        }
    }

    /// Ends all QPairs of a link that is down.
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
