//! The secret of a grant's service.

use serde::{Deserialize, Serialize};

/// Secret that a recipient shows to the host of its grant. `Debug` does not print it.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServiceSecret([u8; Self::BYTES]);

impl ServiceSecret {
    /// Length in bytes.
    pub const BYTES: usize = 32;

    /// Returns the secret of these bytes.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Draws a secret.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&venice_ports::random_u64()?.to_ne_bytes());
        }
        Ok(Self(bytes))
    }

    /// Returns the bytes, to be sent to the recipient over a protected channel.
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// True if `shown` is this secret. Takes the same time wherever they differ.
    pub fn matches(&self, shown: &[u8]) -> bool {
        let differences = self.0.iter().zip(shown).fold(0, |all, (a, b)| all | (a ^ b));
        shown.len() == Self::BYTES && std::hint::black_box(differences) == 0
    }
}

impl std::fmt::Debug for ServiceSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_only_itself() {
        let secret = ServiceSecret::from_bytes([7; 32]);
        assert!(secret.matches(&[7; 32]));
        assert!(!secret.matches(&[7; 31]) && !secret.matches(&[]) && !secret.matches(&[7; 33]));
        let mut other = [7; 32];
        other[31] = 6;
        assert!(!secret.matches(&other));
        assert_eq!(format!("{secret:?}"), "ServiceSecret");
    }
}
