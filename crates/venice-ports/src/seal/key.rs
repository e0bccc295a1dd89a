//! Keys: where they come from and what is made of them.

use ring::aead::{self, LessSafeKey, UnboundKey};
use ring::hmac;
use venice_wire::{KeyName, NodeSecret, SealAlgorithm, SealDirection, SealKey};

/// The keys that datagrams to a node may be sealed under.
pub trait SealKeys {
    /// The key of this name, as long as it is good.
    fn key(&self, name: KeyName) -> Option<SealKey>;

    /// Whether the senders that are known under this name are still heard. A node may hear them a
    /// little longer than the key is good for new ones, so that they can be told of its end.
    fn is_heard(&self, name: KeyName) -> bool {
        self.key(name).is_some()
    }

    /// Changes whenever a name that was heard may be so no more; an [`super::Opener`] then asks
    /// for each again.
    fn generation(&self) -> u64 {
        0
    }
}

/// A node whose every key is good for ever.
impl SealKeys for NodeSecret {
    fn key(&self, name: KeyName) -> Option<SealKey> {
        Some(node_key(self, name))
    }
}

/// A key and its name, as who sends to a node is given them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedAs {
    /// The name every datagram bears.
    pub name: KeyName,
    /// The key.
    pub key: SealKey,
}

/// One key alone, for the answers.
impl SealKeys for SealedAs {
    fn key(&self, name: KeyName) -> Option<SealKey> {
        (self.name == name).then_some(self.key)
    }
}

/// The key of this name at the node with this secret: HMAC-SHA-256 (RFC 2104, FIPS 198-1) of the
/// name under the secret.
pub fn node_key(secret: &NodeSecret, name: KeyName) -> SealKey {
    let mut message = *b"venice udp key 1 ........";
    message[16] = name.kind();
    message[17..].copy_from_slice(&name.id().to_le_bytes());
    SealKey(mac(&secret.0, &message))
}

/// The key one sender seals with, made of the shared key and the sender's salt. An answer's also
/// depends on the salt of who asked, so that it is good for that one only.
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

/// What this machine seals fastest with: AES where the processor has instructions for it.
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
    fn every_name_has_a_key_of_its_own() {
        let secret = NodeSecret([3; 32]);
        let grant = node_key(&secret, KeyName::Grant(GrantId(1)));
        assert!(grant == node_key(&secret, KeyName::Grant(GrantId(1))));
        assert!(grant != node_key(&secret, KeyName::Grant(GrantId(2))));
        assert!(grant != node_key(&secret, KeyName::Peer(NodeId(1))));
        assert!(grant != node_key(&NodeSecret([4; 32]), KeyName::Grant(GrantId(1))));
    }

    /// Both sides of a rack may be of different builds: this must never change by accident.
    #[test]
    fn the_derivation_is_the_documented_one() {
        let key = node_key(&NodeSecret([0; 32]), KeyName::Grant(GrantId(0x0102_0304)));
        let message = b"venice udp key 1\x01\x04\x03\x02\x01\0\0\0\0";
        assert_eq!(key.0, mac(&[0; 32], message));
    }
}
