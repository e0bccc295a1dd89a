//! The system's random numbers.

use super::error::IdentityError;
use ring::rand::{SecureRandom, SystemRandom};

/// Fills `bytes` with random bytes from the system.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), IdentityError> {
    SystemRandom::new().fill(bytes).map_err(|_| IdentityError::NoRandom)
}
