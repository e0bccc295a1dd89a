//! Keys and secrets, from the system's random numbers.

use crate::error::MonitorError;
use rustix::rand::{GetRandomFlags, getrandom};
use venice_ports::seal::node_key;
use venice_rack::monitor::KeySource;
use venice_wire::{GrantKey, KeyName, NodeSecret, SEAL_KEY_BYTES, SealKey};

const RANDOM_WORKS: &str = "the system provided random numbers at the start";

/// A source of unpredictable keys.
pub(crate) struct SystemKeys(());

impl SystemKeys {
    /// Creates the source, and checks that the system provides random numbers: after one success it
    /// never fails.
    ///
    /// # Errors
    /// [`MonitorError::Random`].
    pub(crate) fn new() -> Result<Self, MonitorError> {
        random_u64().map_err(MonitorError::Random)?;
        Ok(Self(()))
    }
}

impl KeySource for SystemKeys {
    fn next_key(&mut self) -> GrantKey {
        let key = random_u64();
        GrantKey(key.expect(RANDOM_WORKS))
    }

    fn next_secret(&mut self) -> NodeSecret {
        let mut secret = [0; SEAL_KEY_BYTES];
        for word in secret.chunks_exact_mut(8) {
            word.copy_from_slice(&random_u64().expect(RANDOM_WORKS).to_ne_bytes());
        }
        NodeSecret(secret)
    }

    fn seal_key(&self, secret: &NodeSecret, name: KeyName) -> SealKey {
        node_key(secret, name)
    }
}

fn random_u64() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    loop {
        // Reads of up to 256 bytes are complete or fail.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(read) if read == bytes.len() => return Ok(u64::from_ne_bytes(bytes)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
