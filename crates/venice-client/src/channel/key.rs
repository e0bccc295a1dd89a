//! The secret that two programs share.

use std::fmt;
use std::str::FromStr;

use venice_memory::region::region_key;
use venice_ports::random_u64;
use venice_ports::seal::{SealedAs, node_key};
use venice_wire::{GrantId, GrantKey, KeyName, NodeSecret};

use super::Error;

/// 32 random bytes known to both ends, and to nobody else. Each connection is sealed under a key
/// derived from it (HMAC-SHA-256), by AES-256-GCM or ChaCha20-Poly1305.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Draws a key.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel has no random numbers.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = [0; 32];
        for word in bytes.chunks_exact_mut(8) {
            let drawn = random_u64().map_err(|error| {
                Error::System(format!("drawing a key failed: {}", std::io::Error::from(error)))
            })?;
            word.copy_from_slice(&drawn.to_le_bytes());
        }
        Ok(Self(bytes))
    }

    /// Returns the key of these bytes, which must be random: not a password.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the key as 64 hexadecimal digits, as [`Key::from_str`] reads it.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn secret(&self) -> NodeSecret {
        NodeSecret(self.0)
    }

    /// Returns the key of datagrams under a number.
    pub(super) fn sealed_as(&self, number: u64) -> SealedAs {
        let name = KeyName::Grant(GrantId(number));
        SealedAs { name, key: node_key(&self.secret(), name) }
    }

    /// Returns the key of accesses to registered memory.
    pub(super) fn grant_key(&self) -> GrantKey {
        region_key(&self.secret())
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim().as_bytes();
        let digits: Option<Vec<u8>> = text
            .iter()
            .map(|&digit| char::from(digit).to_digit(16).map(|value| value as u8))
            .collect();
        let digits = digits.filter(|digits| digits.len() == 64).ok_or(Error::Key)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(bytes))
    }
}

/// Hides the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips() {
        let key = Key::generate().unwrap();
        assert!(key.to_hex().parse::<Key>().unwrap() == key);
        assert!(Key::generate().unwrap() != key);
        assert!(format!(" {}\n", key.to_hex()).parse::<Key>().is_ok());
        assert_eq!(format!("{key:?}"), "Key");
        for wrong in ["", "00", &key.to_hex()[1..], &"g".repeat(64), &"é".repeat(32)] {
            assert!(matches!(wrong.parse::<Key>(), Err(Error::Key)), "{wrong}");
        }
    }
}
