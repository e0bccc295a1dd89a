//! Checker of frames: credits are kept, positions and acknowledgements are valid, and a replay
//! repeats its original.
//!
//! This checker sees frames where they are sent, before the link alters them. It implements the
//! wire format and the rules of `docs/reference/wire.md`, independent of the fabric's code.

use std::collections::BTreeMap;

use venice_wire::{Frame, LinkId, Opcode, REPLAY_FLAG, Sequence};

use crate::network::{Datagram, End};
use venice_simkernel::trace::Trace;

/// State of all links of a rack.
#[derive(Debug, Default)]
pub struct WireWatch {
    /// Windows announced by callers, by caller, donor and proposal.
    proposals: BTreeMap<(u16, u16, LinkId), u16>,
    /// Links by caller, donor and link number.
    links: BTreeMap<(u16, u16, LinkId), Watched>,
}

/// A link: the caller's direction first, then the donor's.
#[derive(Debug)]
struct Watched {
    sides: [Side; 2],
}

/// State of one sending side.
#[derive(Debug)]
struct Side {
    /// Frames that the other side can buffer, and this one.
    window: u32,
    /// The next position never sent.
    next: Sequence,
    /// The highest acknowledgement sent.
    ack: Sequence,
    /// Frames that may be replayed.
    sent: BTreeMap<u32, u64>,
}

impl WireWatch {
    /// Checks a frame that is being sent.
    ///
    /// # Errors
    /// With the broken rule.
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
                    format!("node {} sends on a link that was not opened", datagram.from)
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
        let announced = self.proposals.get(&(caller, donor, welcome.link())).ok_or_else(|| {
            format!("node {donor} welcomes a proposal that node {caller} never made")
        })?;
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

/// Digests the parts that a replay must repeat: all but acknowledgement, flags and checksum.
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
