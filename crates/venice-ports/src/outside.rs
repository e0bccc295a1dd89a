//! What the sans-IO cores below are given from outside: the time, and random numbers.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC: one time line for every process of this machine.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// 64 bits nobody can guess.
///
/// # Errors
/// The kernel's, when it has no random numbers for us.
pub fn random_u64() -> Result<u64, Errno> {
    let mut bytes = [0u8; 8];
    // Requests of up to 256 bytes are never cut short.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_go_back() {
        let mut last_ns = monotonic_ns();
        assert!(last_ns > 0);
        for _ in 0..1000 {
            let now_ns = monotonic_ns();
            assert!(now_ns >= last_ns);
            last_ns = now_ns;
        }
    }
}
