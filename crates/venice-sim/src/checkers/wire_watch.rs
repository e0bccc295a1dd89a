//! Credits are kept, positions and acknowledgements make sense, and a replay repeats what it replays.
//!
//! This checker listens where frames are sent, before the link does anything to them. It knows the
//! wire format and the rules of `docs/reference/wire.md`, and nothing of the fabric's code.

use std::collections::BTreeMap;

use venice_wire::{Frame, LinkId, Opcode, REPLAY_FLAG, Sequence};

use crate::network::{Datagram, End};
use crate::trace::Trace;

/// Listens to all links of a rack.
#[derive(Debug, Default)]
pub struct WireWatch {
    /// Windows that callers announced, by caller, donor and proposal.
    proposals: BTreeMap<(u16, u16, LinkId), u16>,
    /// By caller, donor and number of the link.
    links: BTreeMap<(u16, u16, LinkId), Watched>,
}

/// A link: the caller's direction first, then the donor's.
#[derive(Debug)]
struct Watched {
    sides: [Side; 2],
}

/// What one side has sent.
#[derive(Debug)]
struct Side {
    /// Frames the other side can buffer, and this one.
    window: u32,
    /// The next position never sent.
    next: Sequence,
    /// The highest acknowledgement sent.
    ack: Sequence,
    /// What was sent and may be replayed.
    sent: BTreeMap<u32, u64>,
}

impl WireWatch {
    /// Looks at a frame that is being sent.
    ///
    /// # Errors
    /// Says which rule it breaks.
    pub fn sent(&mut self, datagram: &Datagram) -> Result<(), String> {
        let frame = Frame::parse(&datagram.bytes)
            .map_err(|error| format!("node {} sends no frame: {error}", datagram.from))?;
        let is_caller = datagram.from_end == End::Recipient;
        let (caller, donor) = match is_caller {
            true => (datagram.from, datagram.to),
            false => (datagram.to, datagram.from),
        };
        match frame.opcode() {
            Opcode::Hello => {
                self.proposals.insert((caller, donor, frame.link()), frame.access_len());
                Ok(())
            }
            Opcode::Welcome => self.open(caller, donor, &frame),
            Opcode::Reset => Ok(()),
            _ => {
                let link = self.links.get_mut(&(caller, donor, frame.link())).ok_or_else(|| {
                    format!("node {} speaks on a link nobody opened", datagram.from)
                })?;
                link.sent(usize::from(!is_caller), &frame).map_err(|what| {
                    format!(
                        "link {:?} from {} to {}: {what}",
                        frame.link(),
                        datagram.from,
                        datagram.to
                    )
                })
            }
        }
    }

    fn open(&mut self, caller: u16, donor: u16, welcome: &Frame<'_>) -> Result<(), String> {
        let announced = self
            .proposals
            .get(&(caller, donor, welcome.link()))
            .ok_or_else(|| format!("node {donor} welcomes a proposal node {caller} never made"))?;
        let window = u32::from(*announced.min(&welcome.access_len()));
        let side = || Side { window, next: Sequence(0), ack: Sequence(0), sent: BTreeMap::new() };
        self.links
            .entry((caller, donor, LinkId(welcome.transaction())))
            .or_insert_with(|| Watched { sides: [side(), side()] });
        Ok(())
    }
}

impl Watched {
    fn sent(&mut self, by: usize, frame: &Frame<'_>) -> Result<(), String> {
        let [caller, donor] = &mut self.sides;
        let (own, other) = if by == 0 { (caller, donor) } else { (donor, caller) };
        own.acknowledge(frame.ack(), other)?;
        if !frame.opcode().is_sequenced() {
            return Ok(());
        }
        own.send(frame, other.ack)
    }
}

impl Side {
    fn acknowledge(&mut self, ack: Sequence, other: &mut Self) -> Result<(), String> {
        if ack.is_before(self.ack) {
            return Err(format!("acknowledges {} after {}", ack.0, self.ack.0));
        }
        if other.next.is_before(ack) {
            return Err(format!("acknowledges {} before {} was sent", ack.0, other.next.0));
        }
        while self.ack != ack {
            other.sent.remove(&self.ack.0);
            self.ack = self.ack.plus(1);
        }
        Ok(())
    }

    fn send(&mut self, frame: &Frame<'_>, acknowledged: Sequence) -> Result<(), String> {
        let (position, digest) = (frame.sequence(), digest(frame));
        let is_replay = frame.flags() & REPLAY_FLAG != 0;
        if position == self.next && !is_replay {
            self.next = position.plus(1);
            self.sent.insert(position.0, digest);
            return match position.since(acknowledged) < self.window {
                true => Ok(()),
                false => Err(format!(
                    "sends {} without credit: all before {} is acknowledged, the window is {}",
                    position.0, acknowledged.0, self.window
                )),
            };
        }
        if !position.is_before(self.next) || !is_replay {
            let (position, next) = (position.0, self.next.0);
            return Err(format!("sends {position} (replay: {is_replay}) when {next} is next"));
        }
        match self.sent.get(&position.0) {
            Some(&first) if first != digest => Err(format!("replays {} altered", position.0)),
            _ => Ok(()),
        }
    }
}

/// What must be the same when a frame is replayed: all but acknowledgement, flags and checksum.
fn digest(frame: &Frame<'_>) -> u64 {
    let mut trace = Trace::default();
    trace.note(&[
        frame.channel() as u64,
        frame.opcode() as u64,
        frame.transaction().into(),
        frame.access_len().into(),
        frame.detail().into(),
        frame.address(),
        frame.grant().0,
        frame.key().0,
    ]);
    trace.note_bytes(frame.payload());
    trace.hash()
}
