//! The program on a node: borrows from some donors, and reads and writes its borrowed memory.

use std::collections::BTreeMap;

use venice_fabric::{
    AccessError, DownReason, FabricError, Initiator, PeerIndex, PeerState, QPairError, QPairId,
    Refusal, Revocation,
};
use venice_wire::{GrantId, GrantKey};

use super::ask::{Asking, ask};
use super::desk::{Desk, Posted, What};
use super::sabotage::Sabotage;
use super::talk;
use crate::checkers::{Checker, Direction, Oracle, RegionId};
use crate::scenario::{Access, Kind, Workload};
use venice_simkernel::random::Stream;

/// The fence for the posted writes of all regions.
const FENCE: Access = Access { session: 0, kind: Kind::Fence, at: 0, len: 0 };
/// Address of a window added by sabotage.
const LEAKED_ADDR: u64 = 1 << 40;
/// Distance of a node's windows.
const WINDOW_SPAN: u64 = 1 << 24;

/// The program on a node. Its regions outlive its processes.
#[derive(Debug)]
pub(super) struct Client {
    pub sessions: Vec<Session>,
    pub accesses_left: u32,
    workload: Workload,
    rng: Stream,
    /// Drawn and not yet accepted by the fabric.
    held: Option<Access>,
    /// True if the fabric had no room for it; it is retried after the next change.
    is_blocked: bool,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    /// Posted writes without a fence.
    posted: Vec<Posted>,
}

/// Memory borrowed from one donor.
#[derive(Debug)]
pub(super) struct Session {
    pub donor: u16,
    pub region: Option<RegionId>,
    pub grant: Option<(GrantId, GrantKey)>,
    pub peer: Option<PeerIndex>,
    /// True if the window is mapped and its grant is not known to be over.
    pub is_mapped: bool,
    /// Number of lost windows so far.
    pub unmaps: u32,
    /// Number of links to the donor so far.
    pub lane: u32,
    /// True if a reconnection is scheduled.
    pub is_reconnecting: bool,
    /// The QPair to the donor.
    pub talk: Option<QPairId>,
}

#[derive(Debug)]
struct Pending {
    access: Access,
    region: RegionId,
    asked_ns: u64,
    /// The session's count at the request.
    unmaps: u32,
    what: What,
}

impl Client {
    pub fn new(workload: Workload, donors: &[u16], rng: Stream) -> Self {
        let session = |&donor| Session {
            donor,
            region: None,
            grant: None,
            peer: None,
            is_mapped: false,
            unmaps: 0,
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
            posted: Vec::new(),
        }
    }

    /// True if nothing is left to do or outstanding.
    pub fn is_done(&self) -> bool {
        self.accesses_left == 0 && self.is_idle()
    }

    /// True if nothing is outstanding.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.held.is_none() && self.posted.is_empty()
    }

    /// Returns the request time of the oldest outstanding access.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.pending.values().map(|pending| pending.asked_ns).min()
    }

    /// Draws the nanoseconds until the next access.
    pub fn think_ns(&mut self) -> u64 {
        self.workload.draw_pause_ns(&mut self.rng)
    }

    /// Adds one wanted access, and requests as many as possible. Returns true if one was accepted.
    pub fn want(&mut self, desk: &mut Desk<'_>) -> bool {
        if self.held.is_none() && self.accesses_left > 0 && self.pending.len() < self.depth() {
            self.held = self.draw();
            self.accesses_left -= u32::from(self.held.is_some());
        }
        if self.wants_fence() {
            self.held = Some(FENCE);
        }
        self.is_blocked = false;
        self.issue_held(desk)
    }

    /// True if the held access waits for room.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// True if another access could be wanted now.
    pub fn has_time(&self) -> bool {
        let has_room = self.accesses_left > 0 && self.pending.len() < self.depth();
        (self.held.is_none() && has_room) || self.wants_fence()
    }

    /// True if the last posted writes need a fence at the end.
    fn wants_fence(&self) -> bool {
        self.held.is_none() && self.accesses_left == 0 && !self.posted.is_empty()
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

    /// Reads the whole of each region at the end, to check that all of it is there.
    pub fn probe(&mut self, desk: &mut Desk<'_>) {
        for session in 0..self.sessions.len() {
            assert!(self.held.is_none(), "a probe comes when all is done");
            self.is_blocked = false;
            let len = self.workload.region_bytes;
            self.held = Some(Access { session, kind: Kind::BulkRead, at: 0, len });
            self.issue_held(desk);
        }
    }

    /// Requests the held access, if there is room for it.
    pub fn issue_held(&mut self, desk: &mut Desk<'_>) -> bool {
        if self.is_blocked {
            return false;
        }
        let Some(access) = self.held else { return false };
        let session = &mut self.sessions[access.session];
        if !session.is_mapped && access.kind != Kind::Fence {
            // Its donor is gone meanwhile; nothing was requested yet.
            self.held = None;
            self.accesses_left += 1;
            return false;
        }
        match access.kind {
            Kind::Message => return self.issue_message(desk, access.session),
            Kind::Stream => return self.issue_stream(desk, access.session),
            Kind::Unmap => {
                session.give_back(access.session, desk);
                self.held = None;
                return true;
            }
            _ => {}
        }
        let (unmaps, lane) = (session.unmaps, session.lane);
        // A fence covers all regions.
        let region = session.region.unwrap_or(RegionId(0));
        let addr = window_addr(access.session) + u64::from(access.at);
        let asking = Asking { region, lane, token: self.next_token, addr, access };
        match ask(desk, &asking, &mut self.posted, &self.workload) {
            Ok(what) => {
                self.held = None;
                self.next_token += 1;
                let Some(what) = what else { return true };
                let pending = Pending { access, region, asked_ns: desk.now_ns, unmaps, what };
                self.pending.insert(asking.token, pending);
                if access.kind == Kind::Fence && desk.saboteur.strikes(Sabotage::EarlyFence) {
                    self.complete(desk, asking.token, Ok(Vec::new()));
                }
                true
            }
            Err(error) => {
                self.is_blocked = true;
                let is_expected = match error {
                    FabricError::WouldBlock | FabricError::PeerDown(_) => true,
                    FabricError::Revoked { .. } => desk.oracle.region(region).is_revoked,
                    _ => false,
                };
                let result = if is_expected { Ok(()) } else { Err(format!("{access:?}: {error}")) };
                desk.oracle.findings.check(Checker::Blame, desk.now_ns, result);
                false
            }
        }
    }

    /// Sends the next message to a donor, over a QPair that is requested first. Returns true if it
    /// was accepted.
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
                // It is closed, or its link is: the next message requests another.
                session.talk = None;
                false
            }
        }
    }

    /// Requests a stream from a donor; it runs on its own. Returns true if it was accepted.
    fn issue_stream(&mut self, desk: &mut Desk<'_>, n: usize) -> bool {
        let Some(peer) = self.sessions[n].peer else { return false };
        let is_taken = talk::begin_stream(desk, peer).is_ok();
        self.is_blocked = !is_taken;
        if is_taken {
            self.held = None;
        }
        is_taken
    }

    /// Handles completions. Returns true if there were any.
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
        while let Some(revocation) = desk.initiator.poll_revoked() {
            any = true;
            self.lose(desk, revocation);
        }
        any
    }

    /// Handles a revocation: the window is gone.
    fn lose(&mut self, desk: &mut Desk<'_>, Revocation { peer, grant, .. }: Revocation) {
        let mut sessions = self.sessions.iter_mut();
        let lost = sessions.find(|session| {
            (session.peer, session.grant.map(|(id, _)| id)) == (Some(peer), Some(grant))
        });
        let mut is_revoked = false;
        if let Some(session) = lost {
            // A refusal may have shown it before.
            session.unmaps += u32::from(std::mem::take(&mut session.is_mapped));
            is_revoked = session.region.is_some_and(|it| desk.oracle.region(it).is_revoked);
        }
        let result = match is_revoked {
            true => Ok(()),
            false => Err(format!(
                "node {}: got a revocation of {grant}, which is not revoked",
                desk.node
            )),
        };
        desk.oracle.findings.check(Checker::Agreement, desk.now_ns, result);
    }

    fn complete(&mut self, desk: &mut Desk<'_>, token: u64, outcome: Result<Vec<u8>, AccessError>) {
        if desk.saboteur.is(Sabotage::EarlyFence) && !self.pending.contains_key(&token) {
            return;
        }
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
            Err(error) => self.fail(desk, pending, error),
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
            What::Atomic { id, lane } => {
                let old = data.first_chunk().map(|old| u64::from_le_bytes(*old));
                desk.oracle.atomic_done(desk.now_ns, pending.region, *lane, *id, old);
            }
            What::Fence(posted) => posted.iter().for_each(|it| {
                desk.oracle.write_done(desk.now_ns, it.region, it.writing);
            }),
        }
    }

    fn fail(&mut self, desk: &mut Desk<'_>, pending: Pending, error: AccessError) {
        desk.tally.failed(error);
        let regions = pending.regions();
        let is_revoked = regions.iter().any(|&region| desk.oracle.region(region).is_revoked);
        let session = &mut self.sessions[pending.access.session];
        let is_unmapped = session.unmaps != pending.unmaps;
        let is_expected = match error {
            AccessError::Refused(Refusal::UnknownGrant) => is_revoked,
            AccessError::Refused(_) | AccessError::PeerDown(DownReason::Protocol) => false,
            AccessError::NotMapped => is_unmapped,
            AccessError::Revoked => is_revoked,
            AccessError::PeerDown(_) => !desk.is_harmless,
        };
        let result = match is_expected {
            true => Ok(()),
            false => Err(format!("node {}: {:?} failed: {error}", desk.node, pending.access)),
        };
        desk.oracle.findings.check(Checker::Blame, desk.now_ns, result);
        let is_of_now = session.region == Some(pending.region);
        let is_single = pending.access.kind != Kind::Fence;
        if matches!(error, AccessError::Refused(_)) && is_single && is_of_now && session.is_mapped {
            session.unmap(pending.access.session, desk.initiator);
        }
        pending.give_up(desk, matches!(error, AccessError::Refused(_)));
    }

    /// Finds the donors that are down; returns the sessions that need a new link or grant.
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

    /// Kills the program: outstanding accesses never complete.
    pub fn die(&mut self, now_ns: u64, oracle: &mut Oracle) {
        for pending in std::mem::take(&mut self.pending).into_values() {
            pending.may_have_been(now_ns, oracle);
        }
        for Posted { region, writing } in std::mem::take(&mut self.posted) {
            oracle.write_failed(region, writing);
        }
        let held = self.held.take().filter(|access| *access != FENCE);
        self.accesses_left += u32::from(held.is_some());
        for session in &mut self.sessions {
            session.peer = None;
            session.talk = None;
            session.is_mapped = false;
        }
    }
}

impl Pending {
    /// Returns its regions.
    fn regions(&self) -> Vec<RegionId> {
        match &self.what {
            What::Fence(posted) => posted.iter().map(|it| it.region).collect(),
            _ => vec![self.region],
        }
    }

    /// Handles its failure.
    fn give_up(self, desk: &mut Desk<'_>, was_refused: bool) {
        match self.what {
            What::Write(writing) if was_refused => {
                desk.oracle.write_refused(desk.now_ns, self.region, writing);
            }
            What::Atomic { id, lane } if was_refused => {
                desk.oracle.atomic_done(desk.now_ns, self.region, lane, id, None);
            }
            _ => self.may_have_been(desk.now_ns, desk.oracle),
        }
    }

    /// Handles an unknown outcome: it may have been executed; for a fence, any of its writes.
    fn may_have_been(self, now_ns: u64, oracle: &mut Oracle) {
        match self.what {
            What::Read { .. } => {}
            What::Write(writing) => oracle.write_failed(self.region, writing),
            What::Atomic { id, .. } => oracle.atomic_failed(now_ns, self.region, id),
            What::Fence(posted) => {
                posted.iter().for_each(|it| oracle.write_failed(it.region, it.writing));
            }
        }
    }
}

/// Returns the address of a session's window.
pub(super) fn window_addr(session: usize) -> u64 {
    (session as u64 + 1) * WINDOW_SPAN
}

impl Session {
    fn unmap(&mut self, n: usize, initiator: &mut Initiator) {
        (self.is_mapped, self.unmaps) = (false, self.unmaps + 1);
        // Its donor may have taken it back before the program learned of it.
        let _ = initiator.unmap_window(window_addr(n));
    }

    /// Gives a window back for a while.
    fn give_back(&mut self, n: usize, desk: &mut Desk<'_>) {
        if let (Some(peer), Some((grant, key))) = (self.peer, self.grant)
            && desk.saboteur.is(Sabotage::LeakWindow)
        {
            let _ = desk.initiator.map_window(LEAKED_ADDR, 64, peer, 0, grant, key);
        }
        self.unmap(n, desk.initiator);
        desk.tally.succeeded(Kind::Unmap, 0, 0);
    }
}
