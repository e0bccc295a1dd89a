//! Inputs of the sans-IO cores: the time, waiting for a time, and random numbers.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns CLOCK_MONOTONIC in nanoseconds: one time line for every process of this machine.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the possible error of the time of day in microseconds, as the kernel received it from
/// the daemon that disciplines its clock; `None` without such a daemon.
pub fn time_of_day_error_us() -> Option<u64> {
    // SAFETY: all zeros are a valid `timex`, which consists of plain numbers.
    let mut kept: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: with no modes set the kernel only fills in the structure, which has the right size.
    let state = unsafe { libc::adjtimex(&raw mut kept) };
    let is_kept = (0..libc::TIME_ERROR).contains(&state) && kept.status & libc::STA_UNSYNC == 0;
    is_kept.then_some(kept.maxerror).and_then(|error_us| u64::try_from(error_us).ok())
}

/// Upper bound of the lateness of timers and wake-ups, unless the machine is busy.
const LATE_NS: u64 = 150_000;

/// Waits until `deadline_ns` of [`monotonic_ns`]; returns within some tens of nanoseconds of it if
/// this core has nothing else to do, and at once if it is past. The last 150 µs are spent reading
/// the clock.
#[inline]
pub fn wait_until(deadline_ns: u64) {
    if deadline_ns > 0 {
        look_until(deadline_ns);
    }
}

fn look_until(deadline_ns: u64) {
    let now_ns = monotonic_ns();
    if deadline_ns > now_ns.saturating_add(LATE_NS) {
        let at_ns = deadline_ns - LATE_NS;
        let until = Timespec {
            tv_sec: (at_ns / 1_000_000_000) as i64,
            tv_nsec: (at_ns % 1_000_000_000) as i64,
        };
        while clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &until)
            == Err(Errno::INTR)
        {}
    }
    while monotonic_ns() < deadline_ns {
        std::hint::spin_loop();
    }
}

/// Returns 64 unpredictable bits.
///
/// # Errors
/// Fails if the kernel has no random numbers.
pub fn random_u64() -> Result<u64, Errno> {
    let mut bytes = [0u8; 8];
    // The kernel never truncates requests of up to 256 bytes.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_until_deadline() {
        wait_until(0);
        for wait_ns in [1_000, 1_000_000] {
            let deadline_ns = monotonic_ns() + wait_ns;
            wait_until(deadline_ns);
            assert!(monotonic_ns() >= deadline_ns);
        }
    }

    #[test]
    fn clock_is_monotonic() {
        let mut last_ns = monotonic_ns();
        assert!(last_ns > 0);
        for _ in 0..1000 {
            let now_ns = monotonic_ns();
            assert!(now_ns >= last_ns);
            last_ns = now_ns;
        }
    }
}
