//! Keys: their sources and the keys derived from them.

use ring::aead::{self, LessSafeKey, UnboundKey};
use ring::hmac;
use venice_wire::{KeyName, NodeSecret, SealAlgorithm, SealDirection, SealKey};

/// Keys under which datagrams to a node may be sealed.
pub trait SealKeys {
    /// Returns the key of this name while it is valid.
    fn key(&self, name: KeyName) -> Option<SealKey>;

    /// True if known senders under this name are still accepted. A node may accept them a little
    /// longer than the key is valid for new ones, in order to notify them of its end.
    fn is_accepted(&self, name: KeyName) -> bool {
        self.key(name).is_some()
    }

    /// Returns a number that changes whenever a name may no longer be accepted; an
    /// [`super::Opener`] then checks each name again.
    fn generation(&self) -> u64 {
        0
    }
}

/// Key source of a node whose keys never expire.
impl SealKeys for NodeSecret {
    fn key(&self, name: KeyName) -> Option<SealKey> {
        Some(node_key(self, name))
    }
}

/// A key and its name, as a sender to a node receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedAs {
    /// Name in the header of every datagram.
    pub name: KeyName,
    /// The key.
    pub key: SealKey,
}

/// Key source with a single key, for answers.
impl SealKeys for SealedAs {
    fn key(&self, name: KeyName) -> Option<SealKey> {
        (self.name == name).then_some(self.key)
    }
}

/// Returns the key of this name at the node with this secret: HMAC-SHA-256 (RFC 2104, FIPS 198-1)
/// of the name under the secret.
pub fn node_key(secret: &NodeSecret, name: KeyName) -> SealKey {
    let mut message = *b"venice udp key 1 ........";
    message[16] = name.kind();
    message[17..].copy_from_slice(&name.id().to_le_bytes());
    SealKey(mac(&secret.0, &message))
}

/// Derives the key of one sender from the shared key and the sender's salt. The key of an answer
/// also depends on the requester's salt, which makes it valid for that requester only.
pub(super) fn sender_key(
    key: &SealKey,
    algorithm: SealAlgorithm,
    direction: SealDirection,
    salt: u64,
    asker: u64,
) -> LessSafeKey {
    let mut message = *b"venice udp seal 1 .................";
    (message[17], message[18]) = (algorithm as u8, direction as u8);
    message[19..27].copy_from_slice(&salt.to_le_bytes());
    message[27..35].copy_from_slice(&asker.to_le_bytes());
    let algorithm = match algorithm {
        SealAlgorithm::Aes256Gcm => &aead::AES_256_GCM,
        SealAlgorithm::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
    };
    let key = UnboundKey::new(algorithm, &mac(&key.0, &message));
    LessSafeKey::new(key.expect("32 bytes are a key of both algorithms"))
}

fn mac(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().expect("SHA-256 gives 32 bytes")
}

/// Returns the fastest algorithm of this machine: AES if the processor has instructions for it.
pub fn preferred_algorithm() -> SealAlgorithm {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    if has_aes { SealAlgorithm::Aes256Gcm } else { SealAlgorithm::ChaCha20Poly1305 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_wire::{GrantId, NodeId};

    #[test]
    fn names_have_distinct_keys() {
        let secret = NodeSecret([3; 32]);
        let grant = node_key(&secret, KeyName::Grant(GrantId(1)));
        assert!(grant == node_key(&secret, KeyName::Grant(GrantId(1))));
        assert!(grant != node_key(&secret, KeyName::Grant(GrantId(2))));
        assert!(grant != node_key(&secret, KeyName::Peer(NodeId(1))));
        assert!(grant != node_key(&NodeSecret([4; 32]), KeyName::Grant(GrantId(1))));
    }

    /// Both sides of a rack may be of different builds: the derivation must never change by
    /// accident.
    #[test]
    fn derivation_matches_documentation() {
        let key = node_key(&NodeSecret([0; 32]), KeyName::Grant(GrantId(0x0102_0304)));
        let message = b"venice udp key 1\x01\x04\x03\x02\x01\0\0\0\0";
        assert_eq!(key.0, mac(&[0; 32], message));
    }
}
