//! Outstanding calls. A call uses a connection to one process: it arrives there or nowhere, its
//! answer comes back over the same connection or never, and its caller waits for a limited time. A
//! Monitor Node is notified when a caller stops waiting, if that message arrives.

use std::collections::BTreeMap;

use super::desk::Tag;
use super::messages::{Broken, CallId, Request, Response};
use super::network::{Passage, RESEND_NS};
use super::party::Party;
use super::world::{Brought, Event, World};

#[derive(Debug, Default)]
pub(super) struct Calls {
    next: CallId,
    /// Calls whose callers wait.
    open: BTreeMap<CallId, Call>,
}

#[derive(Debug)]
struct Call {
    from: Party,
    to: Party,
    /// The called process.
    life: u32,
    /// Arrival time of the call, if it arrives.
    arrives_ns: Option<u64>,
    tag: Tag,
}

impl Calls {
    pub(super) fn caller(&self, call: CallId) -> Option<Party> {
        self.open.get(&call).map(|call| call.from)
    }
}

impl World<'_> {
    pub(super) fn call(
        &mut self,
        (from, to): (Party, Party),
        request: Request,
        within_ns: u64,
        tag: Tag,
    ) {
        self.calls.next += 1;
        let call = self.calls.next;
        self.note_message(from, to, request.name());
        let (now_ns, life) = (self.now_ns, self.standings[&to].life);
        self.events.push(now_ns + within_ns, Event::Breaks { call, how: Broken::TimedOut });
        let Passage { arrives_ns, breaks_ns, is_kept } = self.network.send(now_ns, from, to);
        self.calls.open.insert(call, Call { from, to, life, arrives_ns, tag });
        if let Some(at_ns) = arrives_ns {
            self.events.push(at_ns, Event::Arrives { call, from, to, life, is_kept, request });
        }
        if let Some(at_ns) = breaks_ns {
            self.events.push(at_ns, Event::Breaks { call, how: Broken::Reset });
        }
    }

    pub(super) fn arrives(&mut self, event: Event) {
        let Event::Arrives { call, from, to, life, is_kept, request } = event else { return };
        if self.network.is_cut(from, to) {
            self.network.counts.cut += u64::from(!is_kept);
            if is_kept {
                let event = Event::Arrives { call, from, to, life, is_kept, request };
                self.events.push(self.now_ns + RESEND_NS, event);
            }
            return;
        }
        let standing = &self.standings[&to];
        let how = match (standing.listens, standing.life == life) {
            (true, true) => None,
            (false, _) => Some(Broken::Refused),
            (true, false) => Some(Broken::Reset),
        };
        match how {
            Some(how) => self.tell_broken(call, how),
            None => {
                self.note_message(to, from, request.name());
                self.bring(to, Brought::Request(call, request));
            }
        }
    }

    pub(super) fn reply(&mut self, call: CallId, response: Response) {
        let Some(Call { from, to, .. }) = self.calls.open.get(&call) else { return };
        let (from, to) = (*to, *from);
        let Passage { arrives_ns, breaks_ns, is_kept } = self.network.send(self.now_ns, from, to);
        if let Some(at_ns) = arrives_ns {
            self.events.push(at_ns, Event::Answers { call, from, to, is_kept, response });
        }
        if let Some(at_ns) = breaks_ns {
            self.events.push(at_ns, Event::Breaks { call, how: Broken::Reset });
        }
    }

    pub(super) fn answers(&mut self, event: Event) {
        let Event::Answers { call, from, to, is_kept, response } = event else { return };
        if self.network.is_cut(from, to) {
            self.network.counts.cut += u64::from(!is_kept);
            if is_kept {
                let event = Event::Answers { call, from, to, is_kept, response };
                self.events.push(self.now_ns + RESEND_NS, event);
            }
            return;
        }
        if let Some(Call { from, to, tag, .. }) = self.calls.open.remove(&call) {
            self.note_message(to, from, "answer");
            self.bring(from, Brought::Outcome(tag, Ok(response)));
        }
    }

    /// Notifies the caller that no answer will come.
    pub(super) fn breaks(&mut self, call: CallId, how: Broken) {
        let Some(Call { from, to, .. }) = self.calls.open.get(&call) else { return };
        let is_cut = self.network.is_cut(*to, *from);
        if is_cut && how != Broken::TimedOut {
            return;
        }
        if let Some(gone) = self.calls.open.remove(&call) {
            self.hang_up(call, &gone);
            self.bring(gone.from, Brought::Outcome(gone.tag, Err(how)));
        }
    }

    /// Tells the callee that the caller stopped waiting. Only Monitor Nodes need that; others
    /// answer at once.
    fn hang_up(&mut self, call: CallId, gone: &Call) {
        let Call { from, to: Party::Monitor(monitor), life, arrives_ns: Some(arrives_ns), .. } =
            *gone
        else {
            return;
        };
        if let Some(takes_ns) = self.network.hangs_up_within_ns() {
            // It travels the call's way, behind the call.
            let at_ns = arrives_ns.max(self.now_ns + takes_ns);
            self.events.push(at_ns, Event::HangsUp { call, from, monitor, life });
        }
    }

    pub(super) fn hangs_up(&mut self, event: Event) {
        let Event::HangsUp { call, from, monitor, life } = event else { return };
        let to = Party::Monitor(monitor);
        if self.network.is_cut(from, to) {
            self.events.push(self.now_ns + RESEND_NS, Event::HangsUp { call, from, monitor, life });
        } else if self.standings[&to].life == life {
            self.note_message(from, to, "hangs up");
            self.bring(to, Brought::HangsUp(call));
        }
    }

    fn tell_broken(&mut self, call: CallId, how: Broken) {
        let Some(Call { from, to, .. }) = self.calls.open.get(&call) else { return };
        let takes_ns = self.network.takes_ns(*to, *from);
        self.events.push(self.now_ns + takes_ns, Event::Breaks { call, how });
    }

    /// Breaks the connections of a process that ended: its callers are notified, and its own calls
    /// end.
    pub(super) fn break_connections(&mut self, party: Party) {
        let (gone, open) = std::mem::take(&mut self.calls.open)
            .into_iter()
            .partition(|(_, call)| call.from == party);
        self.calls.open = open;
        let gone: BTreeMap<CallId, Call> = gone;
        gone.iter().for_each(|(id, call)| self.hang_up(*id, call));
        let of_party = self.calls.open.iter().filter(|(_, call)| call.to == party);
        let of_party: Vec<CallId> = of_party.map(|(id, _)| *id).collect();
        for call in of_party {
            self.tell_broken(call, Broken::Reset);
        }
    }

    fn note_message(&mut self, from: Party, to: Party, what: &str) {
        let numbers = [from.numbers(), to.numbers()].concat();
        self.trace.note(&[self.now_ns]);
        self.trace.note(&numbers);
        self.trace.note_bytes(what.as_bytes());
    }
}
