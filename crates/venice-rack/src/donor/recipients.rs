//! Recipient numbers: the grants of one program share one.

use crate::types::PrepareRequest;

/// Returns a number for the program that a grant is for: the same for all its grants, at every
/// donor. It is FNV-1a of the owner and of the recipient's name, which contains host and process.
pub(super) fn recipient_number(request: &PrepareRequest) -> u64 {
    let owner = request.owner.iter().flat_map(|owner| [&owner.node, &owner.user]);
    // Names contain no zero byte.
    let words = owner.chain([&request.recipient]);
    let bytes = words.flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use venice_wire::{GrantId, GrantKey};

    use super::*;
    use crate::caller::Owner;
    use crate::types::Share;

    fn request(user: Option<&str>, recipient: &str, purpose: &str) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(1),
            key: GrantKey(1),
            share: Share::of_slabs(1),
            donor_epoch: 1,
            lease_ms: 1000,
            owner: user.map(|user| Owner { node: "n1".into(), user: user.into(), is_bound: false }),
            recipient: recipient.into(),
            purpose: purpose.into(),
            priority: crate::queueing::DEFAULT_PRIORITY,
            at_once: false,
        }
    }

    #[test]
    fn recipient_number_identifies_program() {
        let number = |request| recipient_number(&request);
        let one = number(request(Some("ada"), "host/17", "redis"));
        assert_eq!(one, number(request(Some("ada"), "host/17", "rebuild")));
        assert_ne!(one, number(request(Some("ada"), "host/18", "redis")));
        assert_ne!(one, number(request(Some("bob"), "host/17", "redis")));
        assert_ne!(one, number(request(None, "host/17", "redis")));
    }
}
