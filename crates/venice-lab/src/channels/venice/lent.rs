//! The donor's memory as frames reach it: one grant.

use anyhow::{Context, Result};
use venice_fabric::{GrantedMemory, InitiatorConfig, TargetConfig};
use venice_memory::donor::{SharedGrants, Slab};
use venice_ports::random_u64;
use venice_wire::{GrantId, GrantKey, NodeId, SLAB_BYTES};

use super::MEMORY_BYTES;

pub(super) const DONOR: NodeId = NodeId(1);
pub(super) const GRANT: GrantId = GrantId(1);
pub(super) const KEY: GrantKey = GrantKey(0x5eed);
/// Address of the donor's memory at the recipient.
pub(super) const WINDOW: u64 = 0x1000_0000;

const RECIPIENT: NodeId = NodeId(2);

/// Time without frames after which a link counts as dead: an end bound to one processor may wait
/// for it on a busy machine.
const SILENCE_NS: u64 = 20_000_000_000;

/// Configures the donor's end like an agent's.
pub(super) fn donor() -> Result<TargetConfig> {
    let seed = random_u64().context("no random numbers")?;
    let mut config = TargetConfig::new(DONOR, seed);
    config.link.silence_ns = SILENCE_NS;
    Ok(config)
}

/// Configures the recipient's end.
pub(super) fn recipient() -> Result<InitiatorConfig> {
    let seed = random_u64().context("no random numbers")?;
    let mut config = InitiatorConfig::new(RECIPIENT, seed);
    config.link.silence_ns = SILENCE_NS;
    Ok(config)
}

/// Offset at which a thread at the donor polls for words; it answers 64 bytes further on.
pub(super) const MAILBOX: usize = 0;

const LINE_BYTES: usize = 64;

/// Makes one grant of [`MEMORY_BYTES`], like an agent's.
pub(super) fn lent() -> Result<SharedGrants> {
    let slabs = (0..MEMORY_BYTES / SLAB_BYTES as usize).map(|_| Slab::unlocked());
    let slabs = slabs.collect::<Result<Vec<_>, _>>()?;
    let filling = vec![0x5a; SLAB_BYTES as usize];
    slabs.iter().for_each(|slab| slab.write(0, &filling));
    let grants = SharedGrants::default();
    grants.lock().insert(GRANT, KEY, slabs);
    Ok(grants)
}

/// Lets the donor's thread answer each new word in its mailbox.
pub(super) fn answer_mailbox(lent: &mut SharedGrants) {
    let mut lines = [0; 2 * LINE_BYTES];
    if lent.read(GRANT, KEY, MAILBOX as u64, &mut lines).is_err() {
        return;
    }
    let (word, answer) = lines.split_at(LINE_BYTES);
    if word[..8] != answer[..8] {
        let at = (MAILBOX + LINE_BYTES) as u64;
        lent.write(GRANT, KEY, at, word).expect("the mailbox lies in the grant");
    }
}
