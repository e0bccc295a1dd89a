//! The response of a donor to memory pressure on its own machine.
//!
//! [`PressureWatch`] takes readings of the machine's memory and returns orders. Free slabs go back
//! to the kernel at once; they are offered again in small steps when the machine has room. If that
//! is not enough, lent memory is reclaimed from its recipients for as long as it is missing.

use serde::Serialize;
use venice_wire::SLAB_BYTES;

/// A machine with little memory is short of it once tasks stall for this share of the time.
const STALL_ENTER: f64 = 0.10;
/// It is no longer short below this share.
const STALL_LEAVE: f64 = 0.05;
/// Time a machine must be well before withheld slabs are offered again, in nanoseconds.
const CALM_FOR_NS: u64 = 5_000_000_000;
/// One step uses this part of the free room: the donors of one machine see the same room at the
/// same time.
const REMAKE_SHARE: u64 = 8;

/// A machine with enough available memory whose tasks stall for this long, in nanoseconds, with no
/// free slab left, is short too. It then lacks what would bring it to the level where stalls are
/// ignored.
const STALL_FOR_NS: u64 = 10_000_000_000;

/// Time under [`PressureLevel::High`] before lent memory is reclaimed, in nanoseconds. By then the
/// effect of withheld slabs is visible.
const ASK_AFTER_NS: u64 = 2_000_000_000;

/// Settings of a [`PressureWatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureSettings {
    /// Bytes to keep available for the machine's own programs.
    pub keep_free_bytes: u64,
}

/// A machine's memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryReading {
    /// Bytes available without swapping (`MemAvailable`).
    pub available_bytes: u64,
    /// Share of the last ten seconds in which some task waited for memory, 0 to 1; `None` where the
    /// kernel has no PSI.
    pub stall_ratio: Option<f64>,
}

/// The memory pressure on a donor's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PressureLevel {
    /// No pressure.
    #[default]
    None,
    /// The machine needs the free slabs: nothing is offered.
    Low,
    /// The free slabs were not enough: lent memory is reclaimed.
    High,
}

impl PressureLevel {
    /// Returns the name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::High => "high",
        }
    }
}

/// A node's report on its machine's memory, sent with every heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PressureReport {
    /// The pressure level.
    pub level: PressureLevel,
    /// Bytes available; `None` before the first reading.
    pub available_bytes: Option<u64>,
    /// See [`MemoryReading::stall_ratio`].
    pub stall_ratio: Option<f64>,
}

/// A donor's slabs that are not lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabCounts {
    /// Slabs offered and not lent.
    pub free: u32,
    /// Slabs given back to the kernel.
    pub withheld: u32,
}

/// The orders to the donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureOrders {
    /// Free slabs to give back to the kernel.
    pub withhold_slabs: u32,
    /// Withheld slabs to offer again.
    pub remake_slabs: u32,
    /// Lent slabs to reclaim, until the next orders.
    pub want_back_slabs: u32,
}

/// Watches one machine's memory for one donor.
#[derive(Debug)]
pub struct PressureWatch {
    settings: PressureSettings,
    report: PressureReport,
    /// Time since which the machine is well, while the level is not `None`.
    well_since_ns: Option<u64>,
    /// Time since which the level is high.
    high_since_ns: u64,
    /// Time since which tasks stall.
    stalled_since_ns: Option<u64>,
}

impl PressureWatch {
    /// Creates a watch without any reading.
    pub fn new(settings: PressureSettings) -> Self {
        let report = PressureReport::default();
        Self { settings, report, well_since_ns: None, high_since_ns: 0, stalled_since_ns: None }
    }

    /// Returns the report for the Monitor Node.
    pub fn report(&self) -> PressureReport {
        self.report
    }

    /// Takes a reading and returns the orders for now.
    pub fn handle_reading(
        &mut self,
        now_ns: u64,
        reading: MemoryReading,
        slabs: SlabCounts,
    ) -> PressureOrders {
        self.report.available_bytes = Some(reading.available_bytes);
        self.report.stall_ratio = reading.stall_ratio;
        let level = self.level(now_ns, reading, slabs);
        if level == PressureLevel::High && self.report.level != level {
            self.high_since_ns = now_ns;
        }
        self.report.level = level;
        match level {
            PressureLevel::None => PressureOrders {
                remake_slabs: self.room_slabs(reading).min(slabs.withheld),
                ..PressureOrders::default()
            },
            PressureLevel::Low => {
                PressureOrders { withhold_slabs: slabs.free, ..PressureOrders::default() }
            }
            PressureLevel::High => PressureOrders {
                withhold_slabs: slabs.free,
                want_back_slabs: self.missing_slabs(now_ns, reading),
                ..PressureOrders::default()
            },
        }
    }

    fn level(&mut self, now_ns: u64, reading: MemoryReading, slabs: SlabCounts) -> PressureLevel {
        let keep = self.settings.keep_free_bytes;
        let is_short = reading.available_bytes < keep;
        let stall = reading.stall_ratio.unwrap_or(0.0);
        let is_stalled = reading.available_bytes < self.plenty_bytes() && stall >= STALL_ENTER;
        self.stalled_since_ns = is_stalled.then(|| self.stalled_since_ns.unwrap_or(now_ns));
        let is_well = reading.available_bytes >= self.resume_bytes()
            && (reading.available_bytes >= self.plenty_bytes() || stall < STALL_LEAVE);
        if is_short || is_stalled {
            self.well_since_ns = None;
            // Free slabs are withheld now: only the next reading shows whether that was enough.
            let all_given = slabs.free == 0 && self.report.level != PressureLevel::None;
            let is_lacking = is_short || self.is_stalled_for_long(now_ns);
            return if is_lacking && all_given { PressureLevel::High } else { PressureLevel::Low };
        }
        if self.report.level == PressureLevel::None {
            return PressureLevel::None;
        }
        if !is_well {
            self.well_since_ns = None;
            return PressureLevel::Low;
        }
        let since_ns = *self.well_since_ns.get_or_insert(now_ns);
        match now_ns.saturating_sub(since_ns) >= CALM_FOR_NS {
            true => PressureLevel::None,
            false => PressureLevel::Low,
        }
    }

    /// True if tasks have stalled for [`STALL_FOR_NS`].
    fn is_stalled_for_long(&self, now_ns: u64) -> bool {
        self.stalled_since_ns
            .is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= STALL_FOR_NS)
    }

    /// Returns the available bytes above which stalls are ignored: there some control group is at
    /// its own limit, and memory given back by a donor would not help.
    fn plenty_bytes(&self) -> u64 {
        self.settings.keep_free_bytes.saturating_mul(2)
    }

    /// Returns the available bytes at which the machine is well again. They lie above the mark that
    /// is kept free, so that one slab does not decide.
    fn resume_bytes(&self) -> u64 {
        let keep = self.settings.keep_free_bytes;
        keep.saturating_add((keep / 4).max(4 * SLAB_BYTES))
    }

    /// Returns the slabs that may be offered again in this step.
    fn room_slabs(&self, reading: MemoryReading) -> u32 {
        let room = reading.available_bytes.saturating_sub(self.resume_bytes()) / SLAB_BYTES;
        u32::try_from(room.div_ceil(REMAKE_SHARE)).unwrap_or(u32::MAX)
    }

    /// Returns the slabs to reclaim from recipients.
    fn missing_slabs(&self, now_ns: u64, reading: MemoryReading) -> u32 {
        if now_ns.saturating_sub(self.high_since_ns) < ASK_AFTER_NS {
            return 0;
        }
        let wanted = match self.is_stalled_for_long(now_ns) {
            true => self.plenty_bytes(),
            false => self.settings.keep_free_bytes,
        };
        let short = wanted.saturating_sub(reading.available_bytes);
        u32::try_from(short.div_ceil(SLAB_BYTES)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;
    const KEEP: u64 = 512 * MIB;

    fn watch() -> PressureWatch {
        PressureWatch::new(PressureSettings { keep_free_bytes: KEEP })
    }

    fn reading(available_mib: u64, stall: f64) -> MemoryReading {
        MemoryReading { available_bytes: available_mib * MIB, stall_ratio: Some(stall) }
    }

    const fn slabs(free: u32, withheld: u32) -> SlabCounts {
        SlabCounts { free, withheld }
    }

    #[test]
    fn free_slabs_return_in_steps() {
        let mut watch = watch();
        assert_eq!(watch.handle_reading(0, reading(600, 0.0), slabs(8, 0)), Default::default());
        let orders = watch.handle_reading(S, reading(500, 0.0), slabs(8, 0));
        assert_eq!((orders.withhold_slabs, watch.report().level), (8, PressureLevel::Low));
        // Too close to the mark at first, then not yet for long enough.
        let orders = watch.handle_reading(2 * S, reading(620, 0.0), slabs(0, 8));
        assert_eq!((orders, watch.report().level), (Default::default(), PressureLevel::Low));
        for s in 3..8 {
            let orders = watch.handle_reading(s * S, reading(660, 0.0), slabs(0, 8));
            assert_eq!((orders, watch.report().level), (Default::default(), PressureLevel::Low));
        }
        let orders = watch.handle_reading(8 * S, reading(660, 0.0), slabs(0, 8));
        assert_eq!((orders.remake_slabs, watch.report().level), (1, PressureLevel::None));
        let orders = watch.handle_reading(9 * S, reading(4000, 0.0), slabs(1, 7));
        assert_eq!(orders.remake_slabs, 7);
        // Slabs are not offered again down to the mark itself.
        let orders = watch.handle_reading(10 * S, reading(630, 0.0), slabs(1, 7));
        assert_eq!((orders.remake_slabs, watch.report().level), (0, PressureLevel::None));
    }

    #[test]
    fn calm_must_last() {
        let mut watch = watch();
        watch.handle_reading(0, reading(100, 0.0), slabs(1, 0));
        watch.handle_reading(S, reading(900, 0.0), slabs(0, 1));
        watch.handle_reading(4 * S, reading(530, 0.0), slabs(0, 1));
        watch.handle_reading(5 * S, reading(900, 0.0), slabs(0, 1));
        watch.handle_reading(9 * S, reading(900, 0.0), slabs(0, 1));
        assert_eq!(watch.report().level, PressureLevel::Low);
        watch.handle_reading(10 * S, reading(900, 0.0), slabs(0, 1));
        assert_eq!(watch.report().level, PressureLevel::None);
    }

    #[test]
    fn stalls_count_only_under_scarcity() {
        let mut watch = watch();
        watch.handle_reading(0, reading(20_000, 0.9), slabs(4, 0));
        assert_eq!(watch.report().level, PressureLevel::None);
        watch.handle_reading(S, reading(900, 0.2), slabs(4, 0));
        assert_eq!(watch.report().level, PressureLevel::Low);
        // Not high: enough is available, and tasks have not stalled for long.
        watch.handle_reading(2 * S, reading(900, 0.2), slabs(0, 4));
        assert_eq!(watch.report().level, PressureLevel::Low);
        for s in 3..20 {
            watch.handle_reading(s * S, reading(900, 0.07), slabs(0, 4));
        }
        assert_eq!(watch.report().level, PressureLevel::Low, "tasks still stall");
        for s in 20..26 {
            watch.handle_reading(s * S, reading(900, 0.01), slabs(0, 4));
        }
        assert_eq!(watch.report().level, PressureLevel::None);
        let without_psi = MemoryReading { available_bytes: 900 * MIB, stall_ratio: None };
        watch.handle_reading(27 * S, without_psi, slabs(0, 4));
        assert_eq!(watch.report().level, PressureLevel::None);
    }

    #[test]
    fn long_stall_reclaims_lent_memory() {
        let mut watch = watch();
        for s in 0..10 {
            watch.handle_reading(s * S, reading(900, 0.3), slabs(0, 4));
            assert_eq!(watch.report().level, PressureLevel::Low);
        }
        for s in 10..12 {
            let orders = watch.handle_reading(s * S, reading(900, 0.3), slabs(0, 4));
            assert_eq!((orders.want_back_slabs, watch.report().level), (0, PressureLevel::High));
        }
        let orders = watch.handle_reading(12 * S, reading(900, 0.3), slabs(0, 4));
        assert_eq!(orders.want_back_slabs, 8, "124 MiB up to where stalls do not count");
        // Free slabs go first, and returned memory counts.
        let orders = watch.handle_reading(13 * S, reading(960, 0.3), slabs(1, 4));
        assert_eq!((orders.withhold_slabs, orders.want_back_slabs), (1, 0));
        let orders = watch.handle_reading(14 * S, reading(1030, 0.3), slabs(0, 4));
        assert_eq!((orders.want_back_slabs, watch.report().level), (0, PressureLevel::Low));
        // The stall time starts anew.
        let orders = watch.handle_reading(15 * S, reading(900, 0.3), slabs(0, 4));
        assert_eq!((orders.want_back_slabs, watch.report().level), (0, PressureLevel::Low));
    }

    #[test]
    fn reclaim_lasts_while_memory_is_missing() {
        let mut watch = watch();
        let short = reading(500, 0.0);
        assert_eq!(watch.handle_reading(0, short, slabs(2, 0)).withhold_slabs, 2);
        assert_eq!(watch.report().level, PressureLevel::Low);
        for s in 1..3 {
            assert_eq!(watch.handle_reading(s * S, short, slabs(0, 2)), Default::default());
            assert_eq!(watch.report().level, PressureLevel::High);
        }
        let orders = watch.handle_reading(3 * S, short, slabs(0, 2));
        assert_eq!(orders.want_back_slabs, 1, "12 MiB are missing");
        let orders = watch.handle_reading(4 * S, reading(412, 0.0), slabs(0, 2));
        assert_eq!(orders.want_back_slabs, 7, "100 MiB are missing");
        let orders = watch.handle_reading(5 * S, reading(520, 0.0), slabs(0, 2));
        assert_eq!((orders.want_back_slabs, watch.report().level), (0, PressureLevel::Low));
        // The notice time starts anew.
        assert_eq!(watch.handle_reading(6 * S, short, slabs(0, 2)).want_back_slabs, 0);
        assert_eq!(watch.handle_reading(8 * S, short, slabs(0, 2)).want_back_slabs, 1);
    }
}
