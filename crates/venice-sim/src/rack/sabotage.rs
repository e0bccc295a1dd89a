//! Bugs injected to prove that the checkers detect them.

use std::str::FromStr;

use venice_wire::{Frame, HeaderRepr, MAX_FRAME_BYTES, Opcode, REPLAY_FLAG};

use crate::checkers::RegionId;
use venice_simkernel::random::Stream;

/// A bug. It strikes a few times in a run, at moments drawn from the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A donor answers a write without executing it.
    DropWrite,
    /// A donor stores a flipped bit.
    FlipBit,
    /// A donor executes a write a second time later, as if its frame had passed the datalink twice.
    RepeatWrite,
    /// A donor answers a read with zeros.
    StaleRead,
    /// A recipient gets the bytes of another read.
    SwapReads,
    /// A recipient never gets a completion.
    LoseCompletion,
    /// A sender alters a frame that it replays.
    AlterReplay,
    /// A sender exceeds its credit by one.
    OverdrawCredit,
    /// A donor keeps a grant that has ended.
    KeepGrant,
    /// A donor executes an atomic twice.
    RepeatAtomic,
    /// A donor answers an atomic with the new value.
    StaleAtomic,
    /// A recipient takes a fence to be complete when it is requested.
    EarlyFence,
    /// A recipient leaves a second window to a grant behind.
    LeakWindow,
    /// Two bytes of a stream are swapped.
    SwapBytes,
    /// The reader of a stream takes a pause for its end.
    EarlyEnd,
    /// A reader gives credit for one byte more than it has read.
    ForgeCredit,
    /// Two messages of a QPair are swapped.
    SwapMessages,
}

impl Sabotage {
    /// All bugs.
    pub const ALL: [Self; 17] = [
        Self::DropWrite,
        Self::FlipBit,
        Self::RepeatWrite,
        Self::StaleRead,
        Self::SwapReads,
        Self::LoseCompletion,
        Self::AlterReplay,
        Self::OverdrawCredit,
        Self::KeepGrant,
        Self::RepeatAtomic,
        Self::StaleAtomic,
        Self::EarlyFence,
        Self::LeakWindow,
        Self::SwapBytes,
        Self::EarlyEnd,
        Self::ForgeCredit,
        Self::SwapMessages,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::DropWrite => "drop-write",
            Self::FlipBit => "flip-bit",
            Self::RepeatWrite => "repeat-write",
            Self::StaleRead => "stale-read",
            Self::SwapReads => "swap-reads",
            Self::LoseCompletion => "lose-completion",
            Self::AlterReplay => "alter-replay",
            Self::OverdrawCredit => "overdraw-credit",
            Self::KeepGrant => "keep-grant",
            Self::RepeatAtomic => "repeat-atomic",
            Self::StaleAtomic => "stale-atomic",
            Self::EarlyFence => "early-fence",
            Self::LeakWindow => "leak-window",
            Self::SwapBytes => "swap-bytes",
            Self::EarlyEnd => "early-end",
            Self::ForgeCredit => "forge-credit",
            Self::SwapMessages => "swap-messages",
        }
    }
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let known = Self::ALL.into_iter().find(|sabotage| sabotage.name() == text);
        known.ok_or_else(|| format!("'{text}' is none of {}", names()))
    }
}

/// Decides when a bug strikes.
#[derive(Debug)]
pub(super) struct Saboteur {
    what: Option<Sabotage>,
    rng: Stream,
    /// A write to be executed again.
    kept: Option<(RegionId, u64, Vec<u8>)>,
}

impl Saboteur {
    pub fn new(what: Option<Sabotage>, seed: u64) -> Self {
        Self { what, rng: Stream::new(seed).split("saboteur", &[]), kept: None }
    }

    /// True if this bug strikes now: once in a while if it is the selected one.
    pub fn strikes(&mut self, what: Sabotage) -> bool {
        self.what == Some(what) && self.rng.chance(30_000)
    }

    /// True if this bug is selected.
    pub fn is(&self, what: Sabotage) -> bool {
        self.what == Some(what)
    }

    /// Alters a frame visibly for all checkers.
    pub fn alter(&mut self, bytes: &mut Vec<u8>) {
        if self.is(Sabotage::AlterReplay)
            && let Ok(frame) = Frame::parse(bytes)
            && frame.flags() & REPLAY_FLAG != 0
        {
            let header = HeaderRepr { address: frame.address() ^ 1, ..frame.repr() };
            *bytes = emit(header, frame.payload());
        }
    }

    /// Alters a frame after the wire's checker has seen it.
    pub fn alter_unseen(&mut self, bytes: &mut Vec<u8>) {
        if self.is(Sabotage::OverdrawCredit)
            && let Ok(frame) = Frame::parse(bytes)
            && frame.opcode() == Opcode::Welcome
        {
            *bytes = emit(HeaderRepr { access_len: 1024, ..frame.repr() }, &[]);
        }
        if self.is(Sabotage::ForgeCredit)
            && let Ok(frame) = Frame::parse(bytes)
            && frame.opcode() == Opcode::Put
        {
            let mut credit = frame.payload().to_vec();
            credit[0] = credit[0].wrapping_add(1);
            *bytes = emit(frame.repr(), &credit);
        }
    }

    /// Returns an earlier write to execute again.
    pub fn repeat_write(
        &mut self,
        region: RegionId,
        addr: u64,
        bytes: &[u8],
    ) -> Option<(RegionId, u64, Vec<u8>)> {
        if self.what != Some(Sabotage::RepeatWrite) {
            return None;
        }
        if self.kept.is_none() {
            self.kept = Some((region, addr, bytes.to_vec()));
            return None;
        }
        if self.rng.chance(30_000) { self.kept.take() } else { None }
    }
}

fn emit(header: HeaderRepr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; MAX_FRAME_BYTES];
    let len = header.emit(payload, &mut bytes).expect("the altered frame has the same length");
    bytes.truncate(len);
    bytes
}
