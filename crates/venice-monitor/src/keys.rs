//! Grant keys, from the system's random numbers.

use crate::error::MonitorError;
use rustix::rand::{GetRandomFlags, getrandom};
use venice_rack::monitor::KeySource;
use venice_wire::GrantKey;

/// Keys nobody can guess.
pub(crate) struct SystemKeys(());

impl SystemKeys {
    /// Makes sure that the system gives random numbers: once it does, it always will.
    pub(crate) fn new() -> Result<Self, MonitorError> {
        random_u64().map_err(MonitorError::Random)?;
        Ok(Self(()))
    }
}

impl KeySource for SystemKeys {
    fn next_key(&mut self) -> GrantKey {
        let key = random_u64();
        GrantKey(key.expect("the system gave random numbers at the start"))
    }
}

fn random_u64() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    loop {
        // So few bytes come whole or not at all.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(read) if read == bytes.len() => return Ok(u64::from_ne_bytes(bytes)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
