//! The end that opens a link: handshake, keep-alive, and detection of a dead peer.

use venice_wire::{Channel, Frame, HeaderRepr, LinkId, NO_LINK_FREE, NodeId, Opcode};

use super::{Accepted, LARGE_ENOUGH, Link, LinkNumbers};
use crate::{DownReason, LinkConfig, PeerState};

/// The interval between two Hellos at first, in nanoseconds; it doubles up to [`HELLO_MAX_NS`].
const HELLO_MIN_NS: u64 = 5_000_000;
const HELLO_MAX_NS: u64 = 200_000_000;
/// Unanswered probes needed, besides the time, to declare a peer down: a thread that was itself
/// stopped for a while must not blame the other side.
const MIN_PROBES: u32 = 3;

/// Time for which a refused handshake is repeated, in silence bounds: a donor gives up a link after
/// one.
const REFUSED_PATIENCE: u64 = 5;

/// The opening end of a link.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) link: Link,
    config: LinkConfig,
    /// This side's incarnation, and the other's once it is known.
    incarnation: u64,
    donor_incarnation: Option<u64>,
    numbers: LinkNumbers,
    /// Links given up earlier that the donor may still have open: each Hello names them.
    replaced: Vec<LinkId>,
    /// This link's number, once it is given up.
    left_open: Option<LinkId>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Calling {
        proposal: LinkId,
        since_ns: u64,
        hellos: u32,
        next_hello_ns: u64,
        /// True once the other side has said that all its links are in use.
        is_refused: bool,
    },
    Up {
        probe_at_ns: u64,
        unanswered: u32,
        ping_number: u32,
        ping_sent_ns: Option<u64>,
    },
    Down {
        reason: DownReason,
        reset_due: Option<LinkId>,
    },
}

/// The effect of a frame on the accesses of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Deliver this frame, then those that waited behind it.
    Deliver,
    /// Deliver nothing.
    Nothing,
    /// The other side has forgotten the link; it is opened anew.
    Reopens,
    /// The link went down.
    Down(DownReason),
}

impl Caller {
    pub(crate) fn new(
        config: &LinkConfig,
        local: NodeId,
        remote: NodeId,
        incarnation: u64,
        mut numbers: LinkNumbers,
        replaced: Vec<LinkId>,
        now_ns: u64,
    ) -> Self {
        Self {
            link: Link::new(config, local, remote, now_ns),
            config: config.clone(),
            incarnation,
            donor_incarnation: None,
            replaced,
            left_open: None,
            phase: Phase::calling(numbers.draw(), now_ns),
            numbers,
        }
    }

    pub(crate) fn state(&self) -> PeerState {
        match self.phase {
            Phase::Calling { .. } => PeerState::Connecting,
            Phase::Up { .. } => PeerState::Up,
            Phase::Down { reason, .. } => PeerState::Down { reason },
        }
    }

    /// True if the link is down, and the other side has been notified.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Down { reset_due: None, .. })
    }

    /// Returns the number of the link given up here that the donor may still have open.
    pub(crate) fn left_open(&self) -> Option<LinkId> {
        self.left_open
    }

    /// Returns the links that the donor has ended because this one replaces them.
    pub(crate) fn ended(&self) -> &[LinkId] {
        // The donor processes a Hello before it answers it.
        if self.donor_incarnation.is_some() { &self.replaced } else { &[] }
    }

    /// Takes a frame from the other side. `is_idle`: no access is outstanding, so the link can be
    /// reopened without effect on the user.
    pub(crate) fn handle_frame(
        &mut self,
        now_ns: u64,
        frame: &Frame<'_>,
        is_idle: bool,
    ) -> Verdict {
        match (frame.opcode(), &self.phase) {
            (_, Phase::Down { .. }) | (Opcode::Hello, _) => Verdict::Nothing,
            (Opcode::Welcome, Phase::Calling { proposal, .. }) if *proposal == frame.link() => {
                self.handle_welcome(now_ns, frame)
            }
            (Opcode::Welcome, _) => Verdict::Nothing,
            (Opcode::Reset, Phase::Calling { proposal, .. })
                if *proposal == frame.link() && frame.detail() == NO_LINK_FREE =>
            {
                self.note_refused()
            }
            _ if self.link.id() != Some(frame.link()) => Verdict::Nothing,
            (Opcode::Reset, _) => self.handle_reset(now_ns, frame.address(), is_idle),
            _ => self.handle_link_frame(now_ns, frame),
        }
    }

    fn handle_welcome(&mut self, now_ns: u64, frame: &Frame<'_>) -> Verdict {
        if frame.detail() != self.config.modes() {
            return self.go_down(DownReason::Incompatible);
        }
        let incarnation = frame.address();
        if self.donor_incarnation.is_some_and(|known| known != incarnation) {
            return self.go_down(DownReason::Restarted);
        }
        self.donor_incarnation = Some(incarnation);
        self.link.open(LinkId(frame.transaction()), frame.access_len(), now_ns);
        self.phase = Phase::Up {
            probe_at_ns: now_ns + self.config.keepalive_ns,
            unanswered: 0,
            ping_number: 1,
            ping_sent_ns: Some(now_ns),
        };
        // Confirms the link to the other side at once, and measures it.
        self.link.ask_ping(1, false);
        Verdict::Nothing
    }

    fn note_refused(&mut self) -> Verdict {
        if let Phase::Calling { is_refused, .. } = &mut self.phase {
            *is_refused = true;
        }
        Verdict::Nothing
    }

    fn handle_reset(&mut self, now_ns: u64, incarnation: u64, is_idle: bool) -> Verdict {
        if self.donor_incarnation != Some(incarnation) {
            return self.go_down(DownReason::Restarted);
        }
        if !is_idle {
            return self.go_down(DownReason::LinkLost);
        }
        self.link.close();
        self.phase = Phase::calling(self.numbers.draw(), now_ns);
        Verdict::Reopens
    }

    fn handle_link_frame(&mut self, now_ns: u64, frame: &Frame<'_>) -> Verdict {
        let Phase::Up { unanswered, ping_number, ping_sent_ns, .. } = &mut self.phase else {
            return Verdict::Nothing;
        };
        *unanswered = 0;
        if frame.opcode() == Opcode::Pong
            && frame.transaction() == *ping_number
            && let Some(sent_at_ns) = ping_sent_ns.take()
        {
            self.link.note_keepalive(now_ns.saturating_sub(sent_at_ns));
        }
        self.link.note(now_ns, frame);
        if !frame.opcode().is_sequenced() {
            return Verdict::Nothing;
        }
        match self.link.accept(now_ns, frame) {
            Accepted::Deliver => Verdict::Deliver,
            Accepted::Nothing => Verdict::Nothing,
            Accepted::Broken => self.go_down(DownReason::Protocol),
        }
    }

    pub(crate) fn go_down(&mut self, reason: DownReason) -> Verdict {
        self.left_open = match reason {
            DownReason::Restarted | DownReason::LinkLost => None,
            _ => self.link.id(),
        };
        self.link.close();
        self.phase = Phase::Down { reason, reset_due: self.left_open };
        Verdict::Down(reason)
    }

    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        match self.phase {
            Phase::Calling { next_hello_ns, .. } => Some(next_hello_ns),
            Phase::Up { probe_at_ns, .. } => {
                Some(self.link.poll_timeout().map_or(probe_at_ns, |at_ns| at_ns.min(probe_at_ns)))
            }
            Phase::Down { .. } => None,
        }
    }

    /// Performs the actions due at `now_ns`.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) -> Verdict {
        self.link.handle_timeout(now_ns);
        match &mut self.phase {
            Phase::Calling { since_ns, hellos, next_hello_ns, is_refused, .. } => {
                let waited_ns = now_ns.saturating_sub(*since_ns);
                let (patience, reason) = match is_refused {
                    true => (REFUSED_PATIENCE, DownReason::NoLinkFree),
                    false => (1, DownReason::NoAnswer),
                };
                if now_ns >= *next_hello_ns
                    && *hellos > MIN_PROBES
                    && waited_ns >= self.config.silence_ns.saturating_mul(patience)
                {
                    return self.go_down(reason);
                }
            }
            Phase::Up { probe_at_ns, unanswered, ping_number, ping_sent_ns } => {
                if now_ns < *probe_at_ns {
                    return Verdict::Nothing;
                }
                let heard_ns = self.link.last_heard_ns();
                let silent_ns = now_ns.saturating_sub(heard_ns);
                if silent_ns >= self.config.silence_ns && *unanswered >= MIN_PROBES {
                    return self.go_down(DownReason::Silent);
                }
                if silent_ns < self.config.keepalive_ns {
                    *probe_at_ns = heard_ns + self.config.keepalive_ns;
                    return Verdict::Nothing;
                }
                *probe_at_ns = now_ns + self.config.keepalive_ns;
                *unanswered += 1;
                *ping_number = ping_number.wrapping_add(1);
                let earlier_lost = ping_sent_ns.replace(now_ns).is_some();
                self.link.ask_ping(*ping_number, earlier_lost);
            }
            Phase::Down { .. } => {}
        }
        Verdict::Nothing
    }

    /// Writes the next frame to send into `buf`; returns its length. See [`Link::poll_transmit`].
    pub(crate) fn poll_transmit(
        &mut self,
        now_ns: u64,
        lender: impl FnOnce(u32, &mut [u8]),
        buf: &mut [u8],
    ) -> Option<usize> {
        match &mut self.phase {
            Phase::Up { .. } => self.link.poll_transmit(now_ns, lender, buf),
            Phase::Calling { proposal, hellos, next_hello_ns, .. } => {
                if now_ns < *next_hello_ns {
                    return None;
                }
                *next_hello_ns = now_ns + (HELLO_MIN_NS << (*hellos).min(16)).min(HELLO_MAX_NS);
                *hellos += 1;
                let proposal = *proposal;
                Some(self.emit(Opcode::Hello, proposal, &link_numbers(&self.replaced), buf))
            }
            Phase::Down { reset_due, .. } => {
                let link = reset_due.take()?;
                Some(self.emit(Opcode::Reset, link, &[], buf))
            }
        }
    }

    fn emit(&self, opcode: Opcode, link: LinkId, payload: &[u8], buf: &mut [u8]) -> usize {
        let header = HeaderRepr {
            link,
            address: self.incarnation,
            access_len: self.link.window(),
            detail: self.config.modes(),
            ..self.link.header(Channel::Link, opcode)
        };
        header.emit(payload, buf).expect(LARGE_ENOUGH)
    }
}

/// Returns the payload of a Hello.
fn link_numbers(links: &[LinkId]) -> Vec<u8> {
    links.iter().flat_map(|link| link.0.to_le_bytes()).collect()
}

impl Phase {
    fn calling(proposal: LinkId, now_ns: u64) -> Self {
        Self::Calling {
            proposal,
            since_ns: now_ns,
            hellos: 0,
            next_hello_ns: now_ns,
            is_refused: false,
        }
    }
}
