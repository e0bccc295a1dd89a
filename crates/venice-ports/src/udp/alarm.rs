//! A timer for sleeps that costs nothing while it is not due.
//!
//! A time-out given to `poll` programs the processor's timer before each sleep and again after it,
//! if it is due before the next tick. In a virtual machine each of these exits the guest: a
//! datagram's round trip with half a millisecond of time-out takes twice as long as without. The
//! deadlines of a link move on with every frame and are hardly ever reached. The alarm is therefore
//! set once, stays set when the deadline moves back, and is set anew when it rings too early.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::PortError;

/// A timerfd that rings no later than the earliest deadline that was set.
#[derive(Debug)]
pub(crate) struct Alarm {
    fd: OwnedFd,
    rings_ns: Option<u64>,
}

impl Alarm {
    pub(crate) fn new() -> Result<Self, PortError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(PortError::at("making a timerfd"))?;
        Ok(Self { fd, rings_ns: None })
    }

    /// Sets the alarm to ring at `due_ns` or before. Call it before each sleep.
    pub(crate) fn set(&mut self, now_ns: u64, due_ns: Option<u64>) {
        self.clear(now_ns);
        let Some(due_ns) = due_ns else { return };
        if self.rings_ns.is_some_and(|rings_ns| rings_ns <= due_ns) {
            return;
        }
        // All zeroes would disarm the timer.
        let at_ns = due_ns.max(1);
        let it_value = Timespec {
            tv_sec: (at_ns / 1_000_000_000) as i64,
            tv_nsec: (at_ns % 1_000_000_000) as i64,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // The call cannot fail with a valid descriptor and time.
        if timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &once).is_ok() {
            self.rings_ns = Some(due_ns);
        }
    }

    /// Moves the descriptor to a number of at least `lowest`.
    pub(crate) fn keep_fd_above(&mut self, lowest: i32) -> Result<(), PortError> {
        self.fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, lowest)
            .map_err(PortError::at("moving a descriptor"))?;
        Ok(())
    }

    /// Clears the alarm after its time has come.
    fn clear(&mut self, now_ns: u64) {
        if self.rings_ns.is_some_and(|rings_ns| rings_ns <= now_ns) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
            self.rings_ns = None;
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monotonic_ns;
    use rustix::event::{PollFd, PollFlags, poll};

    const MS: u64 = 1_000_000;

    fn rings_within(alarm: &Alarm, limit_ms: i64) -> bool {
        let limit = Timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * MS as i64 };
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&limit)).unwrap() > 0
    }

    #[test]
    fn rings_by_earliest_deadline() {
        let mut alarm = Alarm::new().unwrap();
        assert!(!rings_within(&alarm, 0));
        let now_ns = monotonic_ns();
        alarm.set(now_ns, Some(now_ns + 3600 * 1000 * MS));
        assert!(!rings_within(&alarm, 0));
        alarm.set(now_ns, Some(now_ns + MS));
        assert!(rings_within(&alarm, 10_000), "an earlier deadline counts");
        alarm.set(monotonic_ns(), None);
        assert!(!rings_within(&alarm, 0));
    }

    #[test]
    fn later_deadline_keeps_alarm() {
        let mut alarm = Alarm::new().unwrap();
        let now_ns = monotonic_ns();
        alarm.set(now_ns, Some(now_ns + MS));
        alarm.set(now_ns, Some(now_ns + 3600 * 1000 * MS));
        assert!(rings_within(&alarm, 10_000), "the old setting rings once");
        let now_ns = monotonic_ns();
        alarm.set(now_ns, Some(now_ns + 3600 * 1000 * MS));
        assert!(!rings_within(&alarm, 5), "the later deadline is set then");
    }

    #[test]
    fn past_deadline_rings_at_once() {
        let mut alarm = Alarm::new().unwrap();
        alarm.set(monotonic_ns(), Some(0));
        assert!(rings_within(&alarm, 10_000));
    }
}
