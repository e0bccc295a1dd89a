//! The donor's memory as frames reach it: one grant.

use anyhow::{Context, Result};
use venice_fabric::{GrantedMemory, InitiatorConfig, Refusal, TargetConfig};
use venice_ports::random_u64;
use venice_wire::{GrantId, GrantKey, NodeId};

use super::MEMORY_BYTES;

pub(super) const DONOR: NodeId = NodeId(1);
pub(super) const GRANT: GrantId = GrantId(1);
pub(super) const KEY: GrantKey = GrantKey(0x5eed);
/// Where the recipient sees the donor's memory.
pub(super) const WINDOW: u64 = 0x1000_0000;

const RECIPIENT: NodeId = NodeId(2);

/// On a busy machine an end that is bound to one processor may wait for it; it is not dead then.
const SILENCE_NS: u64 = 20_000_000_000;

/// The donor's end, as an agent sets it up.
pub(super) fn donor() -> Result<TargetConfig> {
    let seed = random_u64().context("no random numbers")?;
    let mut config = TargetConfig::new(DONOR, seed);
    config.link.silence_ns = SILENCE_NS;
    Ok(config)
}

/// The recipient's end.
pub(super) fn recipient() -> Result<InitiatorConfig> {
    let seed = random_u64().context("no random numbers")?;
    let mut config = InitiatorConfig::new(RECIPIENT, seed);
    config.link.silence_ns = SILENCE_NS;
    Ok(config)
}

/// Where a thread at the donor looks for words, and answers 64 bytes further on.
pub(super) const MAILBOX: usize = 0;

const LINE_BYTES: usize = 64;

/// One grant of [`MEMORY_BYTES`].
pub(super) struct Lent(Box<[u8]>);

impl Lent {
    pub(super) fn new() -> Self {
        Self(vec![0x5a; MEMORY_BYTES].into())
    }

    /// No memory at all.
    pub(super) fn empty() -> Self {
        Self(Box::default())
    }

    /// What the donor's thread does with its mailbox: an answer to each new word.
    pub(super) fn answer_mailbox(&mut self) {
        let Some(mailbox) = self.0.get_mut(MAILBOX..MAILBOX + 2 * LINE_BYTES) else { return };
        let (word, answer) = mailbox.split_at_mut(LINE_BYTES);
        if word[..8] != answer[..8] {
            answer.copy_from_slice(word);
        }
    }

    fn range(&mut self, key: GrantKey, addr: u64, len: usize) -> Result<&mut [u8], Refusal> {
        if key != KEY {
            return Err(Refusal::WrongKey);
        }
        let start = usize::try_from(addr).map_err(|_| Refusal::OutOfRange)?;
        let end = start.checked_add(len).ok_or(Refusal::OutOfRange)?;
        self.0.get_mut(start..end).ok_or(Refusal::OutOfRange)
    }
}

impl GrantedMemory for Lent {
    fn read(
        &mut self,
        _: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        into.copy_from_slice(self.range(key, addr, into.len())?);
        Ok(())
    }

    fn write(&mut self, _: GrantId, key: GrantKey, addr: u64, from: &[u8]) -> Result<(), Refusal> {
        self.range(key, addr, from.len())?.copy_from_slice(from);
        Ok(())
    }
}
