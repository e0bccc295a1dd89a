//! Parts in processes of their own, which exchange messages in rounds.

use rmp_serde::{decode, encode};
use serde::de::DeserializeOwned;

use super::*;
use crate::ranks::Ranks;

/// Bytes of a time in front of the messages of a round.
const TIME: usize = size_of::<u64>();

impl<P: Part> Engine<P> {
    /// Makes the part of a world that one rank runs: its number is that of the rank. `part_of` and
    /// `first` are of the whole world, as in [`Engine::new`].
    pub fn of_rank(
        number: u16,
        part: P,
        part_of: Vec<u16>,
        look_ahead: u64,
        first: impl IntoIterator<Item = (Node, u64, P::Event)>,
    ) -> Self {
        Self::from_part(number, vec![part], part_of, look_ahead, first)
    }

    /// Runs until `end`, exclusive, or until no event of any rank is left. All ranks call it with the
    /// same end.
    ///
    /// In each round a rank sends its messages, with the time of its next event and of the messages to
    /// others, and runs as far as nothing can reach it: for a look-ahead beyond the others' next event,
    /// and for two beyond its own, as an answer takes.
    ///
    /// # Panics
    /// If this is no part of a world on ranks, or a rank runs another program.
    pub fn run_on(&mut self, end: u64, ranks: &dyn Ranks)
    where
        P::Message: Serialize + DeserializeOwned,
    {
        let Self { running, part_of, look_ahead, now } = self;
        let [one] = &mut running[..] else { panic!("a rank has one part") };
        assert_eq!(usize::from(one.number), ranks.number(), "the part of another rank");
        assert!(ranks.count() == 1 || *look_ahead > 0, "parts need a look-ahead");
        one.others.resize_with(ranks.count(), Vec::new);
        loop {
            let (own, others) = one.meet(ranks);
            if own.min(others) >= end {
                break;
            }
            let answered = own.saturating_add(*look_ahead);
            let safe = others.min(answered).saturating_add(*look_ahead).min(end);
            while one.run_until(safe, part_of, *look_ahead, usize::MAX) {}
        }
        *now = end;
    }
}

impl<P: Part> Engine<P>
where
    P: Serialize,
    P::Event: Clone + Serialize,
{
    /// Returns the state of each part, between two runs.
    pub fn save_parts(&self) -> Vec<Vec<u8>> {
        let save = |one| rmp_serde::to_vec_named(one).expect("a part is data");
        self.running.iter().map(save).collect()
    }
}

impl<P: Part> Engine<P>
where
    P: DeserializeOwned,
    P::Event: DeserializeOwned,
{
    /// Makes a world of the states that [`Engine::save_parts`] returned, or of one of them on its rank;
    /// the rest is as it was.
    ///
    /// # Errors
    /// If a state is none.
    pub fn restore_parts(
        states: &[&[u8]],
        part_of: Vec<u16>,
        look_ahead: u64,
        now: u64,
    ) -> Result<Self, decode::Error> {
        let running: Result<_, _> =
            states.iter().map(|state| rmp_serde::from_slice(state)).collect();
        Ok(Self { running: running?, part_of, look_ahead, now })
    }
}

impl<P: Part> Running<P>
where
    P::Message: Serialize + DeserializeOwned,
{
    /// Exchanges messages with the other ranks. Returns the time of the next event here, and of the
    /// next one elsewhere.
    fn meet(&mut self, ranks: &dyn Ranks) -> (u64, u64) {
        let own = ranks.number();
        let next = self.next_at();
        let sent = self.others.iter().map(|messages| messages.iter().map(|one| one.at).min());
        let sent = Sent::new(sent.map(|at| at.unwrap_or(u64::MAX)));
        let pack = |(to, messages): (usize, &mut Vec<_>)| packed(next.min(sent.but(to)), messages);
        let came = ranks.exchange(self.others.iter_mut().enumerate().map(pack).collect());
        let mut others = sent.but(own);
        for (_, bytes) in came.into_iter().enumerate().filter(|(from, _)| *from != own) {
            let (at, messages) = unpacked::<P::Message>(&bytes).expect("a rank of this program");
            others = others.min(at);
            for Placed { at, rank, node, event } in messages {
                let event = self.part.unpack(event);
                self.queue.push(at, rank, (node, event));
            }
        }
        (self.next_at(), others)
    }

    fn next_at(&mut self) -> u64 {
        self.queue.next_at().unwrap_or(u64::MAX)
    }
}

/// The earliest messages to all ranks, the receiver of them, and the earliest to any other.
struct Sent {
    first: u64,
    to: usize,
    second: u64,
}

impl Sent {
    fn new(earliest: impl Iterator<Item = u64>) -> Self {
        let mut sent = Self { first: u64::MAX, to: 0, second: u64::MAX };
        for (to, at) in earliest.enumerate() {
            if at < sent.first {
                sent = Self { first: at, to, second: sent.first };
            } else {
                sent.second = sent.second.min(at);
            }
        }
        sent
    }

    /// Returns the time of the earliest message to another rank than `to`.
    fn but(&self, to: usize) -> u64 {
        if to == self.to { self.second } else { self.first }
    }
}

/// Moves messages into bytes, behind a time.
fn packed<M: Serialize>(at: u64, messages: &mut Vec<Placed<M>>) -> Vec<u8> {
    let mut bytes = at.to_le_bytes().to_vec();
    if !messages.is_empty() {
        encode::write(&mut bytes, messages).expect("messages are data");
        messages.clear();
    }
    bytes
}

fn unpacked<M: DeserializeOwned>(bytes: &[u8]) -> Option<(u64, Vec<Placed<M>>)> {
    let (at, messages) = bytes.split_first_chunk::<TIME>()?;
    let messages = match messages {
        [] => Vec::new(),
        messages => rmp_serde::from_slice(messages).ok()?,
    };
    Some((u64::from_le_bytes(*at), messages))
}
