//! The program on a node: borrows from some donors, and reads and writes what it has borrowed.

use std::collections::BTreeMap;

use venice_fabric::{
    AccessError, DownReason, FabricError, Initiator, PeerIndex, PeerState, QPairError, QPairId,
    Refusal,
};
use venice_wire::{GrantId, GrantKey};

use super::sabotage::{Sabotage, Saboteur};
use super::talk::{self, Talks};
use super::tally::Tally;
use crate::checkers::{Checker, Direction, Oracle, ReadId, RegionId, Writing};
use crate::random::Stream;
use crate::scenario::{Access, Kind, Workload};

/// Distance of a node's windows.
const WINDOW_SPAN: u64 = 1 << 24;

/// The program on a node. It survives its own death: a new life has the same regions.
#[derive(Debug)]
pub(super) struct Client {
    pub sessions: Vec<Session>,
    pub accesses_left: u32,
    workload: Workload,
    rng: Stream,
    /// Drawn and not yet taken by the fabric.
    held: Option<Access>,
    /// The fabric had no room for it; it is not asked again before something has changed.
    is_blocked: bool,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
}

/// Memory borrowed from one donor.
#[derive(Debug)]
pub(super) struct Session {
    pub donor: u16,
    pub region: Option<RegionId>,
    pub grant: Option<(GrantId, GrantKey)>,
    pub peer: Option<PeerIndex>,
    /// The window is mapped and its grant not known to be over.
    pub is_mapped: bool,
    /// Counts the links to the donor.
    pub lane: u32,
    /// A reconnection is on its way.
    pub is_reconnecting: bool,
    /// The QPair to the donor.
    pub talk: Option<QPairId>,
}

#[derive(Debug)]
struct Pending {
    access: Access,
    region: RegionId,
    asked_ns: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Read { read: ReadId, lane: u32 },
    Write(Writing),
}

/// What a client works with.
pub(super) struct Desk<'a> {
    pub now_ns: u64,
    /// The node's own clock.
    pub local_ns: u64,
    /// When the last fault is over.
    pub calm_ns: u64,
    /// The longest an access may take from then on.
    pub patience_ns: u64,
    /// Nothing is wrong with the links or the nodes: no link may go down.
    pub is_harmless: bool,
    pub node: u16,
    pub initiator: &'a mut Initiator,
    pub talks: &'a mut Talks,
    pub oracle: &'a mut Oracle,
    pub tally: &'a mut Tally,
    pub saboteur: &'a mut Saboteur,
}

impl Client {
    pub fn new(workload: Workload, donors: &[u16], rng: Stream) -> Self {
        let session = |&donor| Session {
            donor,
            region: None,
            grant: None,
            peer: None,
            is_mapped: false,
            lane: 0,
            is_reconnecting: false,
            talk: None,
        };
        Self {
            sessions: donors.iter().map(session).collect(),
            accesses_left: workload.accesses,
            workload,
            rng,
            held: None,
            is_blocked: false,
            pending: BTreeMap::new(),
            next_token: 0,
        }
    }

    /// Whether nothing is left to do or under way.
    pub fn is_done(&self) -> bool {
        self.accesses_left == 0 && self.is_idle()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.held.is_none()
    }

    /// When the oldest access under way was asked for.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.pending.values().map(|pending| pending.asked_ns).min()
    }

    /// Nanoseconds until the next access is wanted.
    pub fn think_ns(&mut self) -> u64 {
        self.workload.draw_pause_ns(&mut self.rng)
    }

    /// Wants one access more, and asks for what can be asked for. `true`: something was taken.
    pub fn want(&mut self, desk: &mut Desk<'_>) -> bool {
        if self.held.is_none() && self.accesses_left > 0 && self.pending.len() < self.depth() {
            self.held = self.draw();
            self.accesses_left -= u32::from(self.held.is_some());
        }
        self.is_blocked = false;
        self.issue_held(desk)
    }

    /// Whether what is held waits for room.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether another access could be wanted now.
    pub fn has_time(&self) -> bool {
        self.held.is_none() && self.accesses_left > 0 && self.pending.len() < self.depth()
    }

    fn depth(&self) -> usize {
        usize::from(self.workload.depth)
    }

    fn draw(&mut self) -> Option<Access> {
        let usable: Vec<usize> =
            (0..self.sessions.len()).filter(|&n| self.sessions[n].is_mapped).collect();
        if usable.is_empty() {
            return None;
        }
        Some(self.workload.draw_access(&mut self.rng, &usable))
    }

    /// Reads the whole of each region, to see at the end that all of it is there.
    pub fn probe(&mut self, desk: &mut Desk<'_>) {
        for session in 0..self.sessions.len() {
            assert!(self.held.is_none(), "a probe comes when all is done");
            self.is_blocked = false;
            let len = self.workload.region_bytes;
            self.held = Some(Access { session, kind: Kind::BulkRead, at: 0, len });
            self.issue_held(desk);
        }
    }

    /// Asks for what is held, if there is room for it.
    pub fn issue_held(&mut self, desk: &mut Desk<'_>) -> bool {
        if self.is_blocked {
            return false;
        }
        let Some(access) = self.held else { return false };
        let session = &self.sessions[access.session];
        if !session.is_mapped {
            // Its donor is gone meanwhile; nothing was asked for yet.
            self.held = None;
            self.accesses_left += 1;
            return false;
        }
        if access.kind == Kind::Message {
            return self.issue_message(desk, access.session);
        }
        let (region, lane) = (session.region.expect("mapped"), session.lane);
        let token = self.next_token;
        let addr = window_addr(access.session) + u64::from(access.at);
        let (what, taken) = ask(desk, access, region, lane, token, addr);
        match taken {
            Ok(()) => {
                self.held = None;
                self.next_token += 1;
                let pending = Pending { access, region, asked_ns: desk.now_ns, what };
                self.pending.insert(token, pending);
                true
            }
            Err(error) => {
                self.is_blocked = true;
                if let What::Write(writing) = what {
                    desk.oracle.withdraw(region, writing);
                }
                let is_expected =
                    matches!(error, FabricError::WouldBlock | FabricError::PeerDown(_));
                let result = if is_expected { Ok(()) } else { Err(format!("{access:?}: {error}")) };
                desk.oracle.findings.check(Checker::Blame, desk.now_ns, result);
                false
            }
        }
    }

    /// Sends the next message to a donor, over a QPair that is asked for first. `true`: it was
    /// taken.
    fn issue_message(&mut self, desk: &mut Desk<'_>, n: usize) -> bool {
        let session = &mut self.sessions[n];
        let Some(peer) = session.peer else { return false };
        let qpair = match session.talk {
            Some(qpair) => Ok(qpair),
            None => talk::connect(desk, peer),
        };
        let sent = qpair.and_then(|qpair| {
            session.talk = Some(qpair);
            talk::send(desk, qpair, Direction::There)
        });
        match sent {
            Ok(()) => {
                self.held = None;
                true
            }
            Err(QPairError::WouldBlock) => {
                self.is_blocked = true;
                false
            }
            Err(_) => {
                // It is closed, or its link is: the next message asks for another.
                session.talk = None;
                false
            }
        }
    }

    /// Takes what has completed. `true`: something has.
    pub fn collect(&mut self, desk: &mut Desk<'_>) -> bool {
        let mut any = false;
        while let Some(done) = desk.initiator.poll_completion() {
            let (token, outcome) = (done.token, done.result.map(|()| done.data.to_vec()));
            any = true;
            self.complete(desk, token, outcome);
        }
        while let Some(done) = desk.initiator.poll_rdma_completion() {
            any = true;
            self.complete(desk, done.token, done.result.map(|()| done.buffer));
        }
        any
    }

    fn complete(&mut self, desk: &mut Desk<'_>, token: u64, outcome: Result<Vec<u8>, AccessError>) {
        if desk.saboteur.strikes(Sabotage::LoseCompletion) {
            return;
        }
        let Some(pending) = self.pending.remove(&token) else {
            let what = format!("node {}: access {token} completed twice", desk.node);
            return desk.oracle.findings.check(Checker::Executions, desk.now_ns, Err(what));
        };
        let took_ns = desk.now_ns - pending.asked_ns;
        let waited_ns = desk.now_ns.saturating_sub(pending.asked_ns.max(desk.calm_ns));
        let result = match waited_ns <= desk.patience_ns {
            true => Ok(()),
            false => Err(format!("node {}: {:?} took {took_ns} ns", desk.node, pending.access)),
        };
        desk.oracle.findings.check(Checker::Progress, desk.now_ns, result);
        self.is_blocked = false;
        match outcome {
            Ok(data) => self.succeed(desk, &pending, data, took_ns),
            Err(error) => self.fail(desk, &pending, error),
        }
    }

    fn succeed(&mut self, desk: &mut Desk<'_>, pending: &Pending, mut data: Vec<u8>, took_ns: u64) {
        desk.tally.succeeded(pending.access.kind, pending.access.len, took_ns);
        match &pending.what {
            What::Read { read, lane } => {
                if desk.saboteur.strikes(Sabotage::SwapReads) {
                    data.reverse();
                }
                desk.oracle.lane_works(pending.region, *lane);
                desk.oracle.read_done(desk.now_ns, pending.region, read, &data);
            }
            What::Write(writing) => {
                desk.oracle.write_done(desk.now_ns, pending.region, *writing);
            }
        }
    }

    fn fail(&mut self, desk: &mut Desk<'_>, pending: &Pending, error: AccessError) {
        desk.tally.failed(error);
        let is_revoked = desk.oracle.region(pending.region).is_revoked;
        let is_expected = match error {
            AccessError::Refused(Refusal::UnknownGrant) => is_revoked,
            AccessError::Refused(_) | AccessError::PeerDown(DownReason::Protocol) => false,
            _ => !desk.is_harmless,
        };
        let result = match is_expected {
            true => Ok(()),
            false => Err(format!("node {}: {:?} failed: {error}", desk.node, pending.access)),
        };
        desk.oracle.findings.check(Checker::Blame, desk.now_ns, result);
        if let What::Write(writing) = pending.what {
            match error {
                AccessError::Refused(_) => {
                    desk.oracle.write_refused(desk.now_ns, pending.region, writing);
                }
                _ => desk.oracle.write_failed(pending.region, writing),
            }
        }
        let session = &mut self.sessions[pending.access.session];
        let is_of_now = session.region == Some(pending.region);
        if matches!(error, AccessError::Refused(_)) && is_of_now && session.is_mapped {
            session.unmap(pending.access.session, desk.initiator);
        }
    }

    /// Sees which donors are down; returns the sessions that need a new link or grant.
    pub fn take_stock(&mut self, desk: &mut Desk<'_>) -> Vec<usize> {
        let mut wanting = Vec::new();
        for (n, session) in self.sessions.iter_mut().enumerate() {
            let state = session.peer.map(|peer| desk.initiator.peer_state(peer));
            if let Some(PeerState::Down { reason }) = state {
                desk.tally.link_down(reason);
                session.peer = None;
                session.talk = None;
                if session.is_mapped {
                    session.unmap(n, desk.initiator);
                }
            }
            if !session.is_mapped && !std::mem::replace(&mut session.is_reconnecting, true) {
                wanting.push(n);
            }
        }
        wanting
    }

    /// The program is killed: what was under way will never be heard of.
    pub fn die(&mut self, oracle: &mut Oracle) {
        for pending in std::mem::take(&mut self.pending).into_values() {
            if let What::Write(writing) = pending.what {
                oracle.write_failed(pending.region, writing);
            }
        }
        self.accesses_left += u32::from(self.held.take().is_some());
        for session in &mut self.sessions {
            session.peer = None;
            session.talk = None;
            session.is_mapped = false;
        }
    }
}

/// Tells the checkers and asks the fabric.
fn ask(
    desk: &mut Desk<'_>,
    access: Access,
    region: RegionId,
    lane: u32,
    token: u64,
    addr: u64,
) -> (What, Result<(), FabricError>) {
    let Access { kind, at, len, .. } = access;
    let local_ns = desk.local_ns;
    match kind {
        Kind::Message => unreachable!("messages are sent, and need no answer"),
        Kind::Read => {
            let read = desk.oracle.ask_read(region, at, len, Some(lane));
            (What::Read { read, lane }, desk.initiator.read(local_ns, token, addr, len))
        }
        Kind::Write => {
            let (writing, bytes) = desk.oracle.ask_write(region, at, len, lane, false);
            (What::Write(writing), desk.initiator.write(local_ns, token, addr, &bytes))
        }
        Kind::BulkRead => {
            let read = desk.oracle.ask_read(region, at, len, None);
            let taken = desk.initiator.rdma_read(local_ns, token, addr, vec![0; len as usize]);
            (What::Read { read, lane }, taken.map_err(|rejected| rejected.error))
        }
        Kind::BulkWrite => {
            let (writing, bytes) = desk.oracle.ask_write(region, at, len, lane, true);
            let taken = desk.initiator.rdma_write(local_ns, token, addr, bytes);
            (What::Write(writing), taken.map_err(|rejected| rejected.error))
        }
    }
}

/// Where a session's window is.
pub(super) fn window_addr(session: usize) -> u64 {
    (session as u64 + 1) * WINDOW_SPAN
}

impl Session {
    fn unmap(&mut self, n: usize, initiator: &mut Initiator) {
        self.is_mapped = false;
        initiator.unmap_window(window_addr(n)).expect("it was mapped");
    }
}
