//! Whether a donor's own machine is short of memory, and what the donor is to do about it.
//!
//! [`PressureWatch`] is given a reading of the machine's memory now and then and answers with
//! orders: what is not lent goes back to the kernel at once and is made anew when the machine has
//! room again, little by little; where that is not enough, what is lent is asked back of its
//! borrowers, for as long as it is missing.

use serde::Serialize;
use venice_wire::SLAB_BYTES;

/// Stalled for this share of the time, tasks of a machine with little memory are short of it.
const STALL_ENTER: f64 = 0.10;
/// Below this share they are not any more.
const STALL_LEAVE: f64 = 0.05;
/// How long a machine must be well before what was given to the kernel is made anew.
const CALM_FOR_NS: u64 = 5_000_000_000;
/// Of the room that there is, this part is used in one step: the donors of one machine see the same
/// room at the same time.
const REMAKE_SHARE: u64 = 8;

/// Stalled for so long, with nothing left that is not lent, a machine above its mark is short too: of
/// what would bring it to where stalls do not count.
const STALL_FOR_NS: u64 = 10_000_000_000;

/// Under [`PressureLevel::High`] for so long, the machine wants back what is lent: what was given to
/// the kernel has shown by then.
const ASK_AFTER_NS: u64 = 2_000_000_000;

/// How a watch is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureSettings {
    /// The machine's own programs are to have this many bytes available.
    pub keep_free_bytes: u64,
}

/// A machine's memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryReading {
    /// Bytes that can be had without swapping (`MemAvailable`).
    pub available_bytes: u64,
    /// Share of the last ten seconds in which some task waited for memory, 0 to 1; `None` where
    /// the kernel does not say (no PSI).
    pub stall_ratio: Option<f64>,
}

/// How short of memory a donor's machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PressureLevel {
    /// Not at all.
    #[default]
    None,
    /// It needs what is not lent: nothing is offered.
    Low,
    /// That was not enough.
    High,
}

impl PressureLevel {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::High => "high",
        }
    }
}

/// What a node says of its machine's memory with every heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PressureReport {
    /// How short it is.
    pub level: PressureLevel,
    /// Bytes available; `None` before the first reading.
    pub available_bytes: Option<u64>,
    /// See [`MemoryReading::stall_ratio`].
    pub stall_ratio: Option<f64>,
}

/// The donor's own slabs, as the watch needs to know them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabCounts {
    /// Not lent, and there.
    pub free: u32,
    /// Given back to the kernel.
    pub withheld: u32,
}

/// What the donor is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureOrders {
    /// Give so many free slabs back to the kernel.
    pub withhold_slabs: u32,
    /// Make so many of those anew.
    pub remake_slabs: u32,
    /// So many of the slabs that are lent are wanted back, until the next orders.
    pub want_back_slabs: u32,
}

/// Watches one machine's memory for one donor.
#[derive(Debug)]
pub struct PressureWatch {
    settings: PressureSettings,
    report: PressureReport,
    /// Since when the machine is well again, while the level says otherwise.
    well_since_ns: Option<u64>,
    /// Since when the level is high.
    high_since_ns: u64,
    /// Since when tasks stall.
    stalled_since_ns: Option<u64>,
}

impl PressureWatch {
    /// A watch that has seen nothing yet.
    pub fn new(settings: PressureSettings) -> Self {
        let report = PressureReport::default();
        Self { settings, report, well_since_ns: None, high_since_ns: 0, stalled_since_ns: None }
    }

    /// What the Monitor Node is told.
    pub fn report(&self) -> PressureReport {
        self.report
    }

    /// A new reading: what to do now.
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
            // What is free now is given back now: only the next reading tells whether that was it.
            let all_given = slabs.free == 0 && self.report.level != PressureLevel::None;
            let is_lacking = is_short || self.stalls_on(now_ns);
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

    /// Have tasks stalled for long?
    fn stalls_on(&self, now_ns: u64) -> bool {
        self.stalled_since_ns
            .is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= STALL_FOR_NS)
    }

    /// A machine with so much available on which tasks stall has a control group at its limit: nothing
    /// that a donor gives back would help there.
    fn plenty_bytes(&self) -> u64 {
        self.settings.keep_free_bytes.saturating_mul(2)
    }

    /// With so much available the machine is well again: above the mark that is kept free, so that
    /// one slab more or less does not decide.
    fn resume_bytes(&self) -> u64 {
        let keep = self.settings.keep_free_bytes;
        keep.saturating_add((keep / 4).max(4 * SLAB_BYTES))
    }

    /// Slabs that may be made anew in this step.
    fn room_slabs(&self, reading: MemoryReading) -> u32 {
        let room = reading.available_bytes.saturating_sub(self.resume_bytes()) / SLAB_BYTES;
        u32::try_from(room.div_ceil(REMAKE_SHARE)).unwrap_or(u32::MAX)
    }

    /// Slabs that borrowers are to give back.
    fn missing_slabs(&self, now_ns: u64, reading: MemoryReading) -> u32 {
        if now_ns.saturating_sub(self.high_since_ns) < ASK_AFTER_NS {
            return 0;
        }
        let wanted = match self.stalls_on(now_ns) {
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
    fn what_is_free_goes_back_at_once_and_returns_little_by_little() {
        let mut watch = watch();
        assert_eq!(watch.handle_reading(0, reading(600, 0.0), slabs(8, 0)), Default::default());
        let orders = watch.handle_reading(S, reading(500, 0.0), slabs(8, 0));
        assert_eq!((orders.withhold_slabs, watch.report().level), (8, PressureLevel::Low));
        // Not yet far enough above the mark, then not yet for long enough.
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
        // Nothing is made anew down to the mark itself.
        let orders = watch.handle_reading(10 * S, reading(630, 0.0), slabs(1, 7));
        assert_eq!((orders.remake_slabs, watch.report().level), (0, PressureLevel::None));
    }

    #[test]
    fn the_calm_must_last() {
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
    fn stalls_count_where_memory_is_scarce_only() {
        let mut watch = watch();
        watch.handle_reading(0, reading(20_000, 0.9), slabs(4, 0));
        assert_eq!(watch.report().level, PressureLevel::None);
        watch.handle_reading(S, reading(900, 0.2), slabs(4, 0));
        assert_eq!(watch.report().level, PressureLevel::Low);
        // Not high: nothing is missing below the mark, and it has not stalled for long.
        watch.handle_reading(2 * S, reading(900, 0.2), slabs(0, 4));
        assert_eq!(watch.report().level, PressureLevel::Low);
        for s in 3..20 {
            watch.handle_reading(s * S, reading(900, 0.07), slabs(0, 4));
        }
        assert_eq!(watch.report().level, PressureLevel::Low, "it still stalls");
        for s in 20..26 {
            watch.handle_reading(s * S, reading(900, 0.01), slabs(0, 4));
        }
        assert_eq!(watch.report().level, PressureLevel::None);
        let unsaid = MemoryReading { available_bytes: 900 * MIB, stall_ratio: None };
        watch.handle_reading(27 * S, unsaid, slabs(0, 4));
        assert_eq!(watch.report().level, PressureLevel::None);
    }

    #[test]
    fn a_machine_that_stalls_on_and_on_wants_lent_memory_back() {
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
        // Free slabs go first, and what has come back counts.
        let orders = watch.handle_reading(13 * S, reading(960, 0.3), slabs(1, 4));
        assert_eq!((orders.withhold_slabs, orders.want_back_slabs), (1, 0));
        let orders = watch.handle_reading(14 * S, reading(1030, 0.3), slabs(0, 4));
        assert_eq!((orders.want_back_slabs, watch.report().level), (0, PressureLevel::Low));
        // It must stall for as long again.
        let orders = watch.handle_reading(15 * S, reading(900, 0.3), slabs(0, 4));
        assert_eq!((orders.want_back_slabs, watch.report().level), (0, PressureLevel::Low));
    }

    #[test]
    fn lent_memory_is_wanted_back_as_long_as_it_is_missing() {
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
        // It begins anew.
        assert_eq!(watch.handle_reading(6 * S, short, slabs(0, 2)).want_back_slabs, 0);
        assert_eq!(watch.handle_reading(8 * S, short, slabs(0, 2)).want_back_slabs, 1);
    }
}
