//! Watches this machine's memory, and returns lent memory to it under pressure.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use venice_control::server::is_out_of_descriptors;
use venice_ports::monotonic_ns;
use venice_rack::pressure::{
    MemoryReading, PressureLevel, PressureOrders, PressureReport, PressureSettings, PressureWatch,
    SlabCounts,
};
use venice_wire::ByteSize;

use crate::AgentConfig;
use crate::lender::Lender;

/// Interval between two readings.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Default `keep_free`: the machine's memory divided by this,
const DEFAULT_KEEP_FREE_SHARE: u64 = 50;
/// within these bounds in bytes.
const DEFAULT_KEEP_FREE_MIN: u64 = 64 << 20;
const DEFAULT_KEEP_FREE_MAX: u64 = 1 << 30;

/// The watching task.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    source: MemorySource,
    watch: PressureWatch,
    /// Time for recipients to move reclaimed memory; `None`: unlimited.
    take_back_after: Option<Duration>,
}

impl MemoryWatch {
    pub(crate) fn new(config: &AgentConfig) -> Self {
        let source = MemorySource::new(&config.proc_dir);
        let settings = PressureSettings { keep_free_bytes: source.keep_free_bytes(config) };
        let watch = PressureWatch::new(settings);
        Self { source, watch, take_back_after: config.take_back_after() }
    }

    /// Returns the available bytes and `keep_free`; `None` if the kernel does not report them.
    pub(crate) fn room(config: &AgentConfig) -> Option<(u64, u64)> {
        let source = MemorySource::new(&config.proc_dir);
        Some((source.read()?.available_bytes, source.keep_free_bytes(config)))
    }

    /// Returns the machine's total memory; `None` if the kernel does not report it.
    pub(crate) fn total_bytes(config: &AgentConfig) -> Option<u64> {
        MemorySource::new(&config.proc_dir).total_bytes()
    }

    /// Watches until dropped.
    pub(crate) async fn run(mut self, lender: Arc<Lender>) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_told = false;
        loop {
            ticks.tick().await;
            let Some(reading) = self.source.read() else {
                if !is_told {
                    let folder = self.source.meminfo.path.display();
                    tracing::warn!(file = %folder, "unreadable: memory pressure is not watched");
                    is_told = true;
                }
                continue;
            };
            let before = self.watch.report().level;
            let orders = self.watch.handle_reading(monotonic_ns(), reading, lender.slab_counts());
            let report = self.watch.report();
            if report.level != before {
                tell(report);
            }
            // Making or returning a slab takes a millisecond.
            let (lender, within) = (Arc::clone(&lender), self.take_back_after);
            let heeded = tokio::task::spawn_blocking(move || {
                lender.carry_out_orders(report, orders, within)
            });
            match heeded.await {
                Ok(()) => {}
                // The agent is ending, and its thread pool accepts no more work.
                Err(ended) if ended.is_cancelled() => return,
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            }
        }
    }
}

fn tell(report: PressureReport) {
    let available = report.available_bytes.map(|bytes| ByteSize(bytes).to_string());
    let available = available.unwrap_or_default();
    match report.level {
        PressureLevel::None => tracing::info!(available, "memory pressure is over: lending again"),
        level => tracing::warn!(available, level = level.name(), "memory pressure: lending less"),
    }
}

impl Lender {
    fn slab_counts(&self) -> SlabCounts {
        let state = self.state();
        let core = state.node.core();
        SlabCounts { free: core.status().free_slabs, withheld: core.withheld_slabs() }
    }

    /// Carries out the orders of the watch.
    fn carry_out_orders(
        self: &Arc<Self>,
        report: PressureReport,
        orders: PressureOrders,
        within: Option<Duration>,
    ) {
        let level_before = {
            let mut state = self.state();
            std::mem::replace(&mut state.pressure, report).level
        };
        self.withhold(orders.withhold_slabs);
        let made = self.remake(orders.remake_slabs);
        if made > 0 {
            tracing::info!(slabs = made, "took memory to lend from the kernel again");
        }
        self.reclaim(orders.want_back_slabs, within);
        if level_before != report.level || orders != PressureOrders::default() {
            self.notify_change();
        }
    }

    fn withhold(&self, slabs: u32) {
        let withdrawn = {
            let mut state = self.state();
            let count = state.node.core_mut().handle_withhold(slabs);
            let withdrawn = self.pool.withdraw(count as usize);
            assert_eq!(withdrawn.len(), count as usize, "free slabs are present");
            withdrawn
        };
        if !withdrawn.is_empty() {
            tracing::info!(slabs = withdrawn.len(), "returned unlent memory to the kernel");
        }
    }
}

/// The kernel's memory statistics files.
#[derive(Debug)]
struct MemorySource {
    meminfo: HeldFile,
    pressure: HeldFile,
}

impl MemorySource {
    fn new(proc_dir: &Path) -> Self {
        let held = |name| HeldFile::new(proc_dir.join(name));
        Self { meminfo: held("meminfo"), pressure: held("pressure/memory") }
    }

    /// Reads the statistics; `None` if the kernel does not report available memory.
    fn read(&self) -> Option<MemoryReading> {
        let meminfo = self.meminfo.read().ok()?;
        let stall_ratio = self.pressure.read().ok().as_deref().and_then(stall_ratio);
        Some(MemoryReading {
            available_bytes: meminfo_bytes(&meminfo, "MemAvailable:")?,
            stall_ratio,
        })
    }

    fn keep_free_bytes(&self, config: &AgentConfig) -> u64 {
        config.keep_free.map_or_else(|| self.default_keep_free_bytes(), |size| size.0)
    }

    fn total_bytes(&self) -> Option<u64> {
        meminfo_bytes(&self.meminfo.read().ok()?, "MemTotal:")
    }

    fn default_keep_free_bytes(&self) -> u64 {
        let total = self.total_bytes().unwrap_or(0);
        (total / DEFAULT_KEEP_FREE_SHARE).clamp(DEFAULT_KEEP_FREE_MIN, DEFAULT_KEEP_FREE_MAX)
    }
}

/// A file of the kernel's that stays readable when no descriptor is left to open it again.
#[derive(Debug)]
struct HeldFile {
    path: PathBuf,
    held: Option<File>,
}

impl HeldFile {
    fn new(path: PathBuf) -> Self {
        let held = File::open(&path).ok();
        Self { path, held }
    }

    /// Reads it from its beginning. Another file may have been mounted over it, so its path comes
    /// first.
    fn read(&self) -> io::Result<String> {
        match (fs::read_to_string(&self.path), self.held.as_ref()) {
            (Err(error), Some(held)) if is_out_of_descriptors(&error) => {
                let mut held: &File = held;
                held.rewind()?;
                let mut text = String::new();
                held.read_to_string(&mut text)?;
                Ok(text)
            }
            (read, _) => read,
        }
    }
}

/// Parses a line of /proc/meminfo, in bytes.
fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Parses /proc/pressure/memory: share of the last ten seconds in which some task waited for
/// memory.
fn stall_ratio(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let avg10 = some.split(' ').find_map(|word| word.strip_prefix("avg10="))?;
    let percent: f64 = avg10.parse().ok()?;
    Some((percent / 100.0).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by Linux 6.18 on a swapping machine.
    const PRESSURE: &str = "some avg10=37.50 avg60=11.57 avg300=2.83 total=907009\n\
                            full avg10=22.04 avg60=7.30 avg300=1.79 total=880672\n";
    const MEMINFO: &str = "MemTotal:       24683520 kB\nMemFree:        18186240 kB\n\
                           MemAvailable:   23588864 kB\nBuffers:            4096 kB\n";

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(stall_ratio(PRESSURE), Some(0.375));
        assert_eq!(stall_ratio("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"), Some(0.0));
        assert_eq!(stall_ratio("full avg10=1.00"), None);
        assert_eq!(meminfo_bytes(MEMINFO, "MemAvailable:"), Some(23_588_864 << 10));
        assert_eq!(meminfo_bytes(MEMINFO, "SwapFree:"), None);
        assert_eq!(meminfo_bytes("MemTotal: many kB", "MemTotal:"), None);
    }

    /// Runs in a process of its own, since it uses up all descriptors.
    #[test]
    fn held_files_need_no_descriptor() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const CHILD: &str = "VENICE_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(CHILD).is_none() {
            let name = "memory_watch::tests::held_files_need_no_descriptor";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let said = child.args(["--exact", name]).env(CHILD, "1").output().unwrap();
            assert!(said.status.success(), "{said:?}");
            return;
        }
        let source = MemorySource::new(Path::new("/proc"));
        let few = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, few).unwrap();
        let open: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(fs::read_to_string("/proc/meminfo").is_err(), "{} are open", open.len());
        assert!(source.read().is_some_and(|reading| reading.available_bytes > 0));
        assert!(source.read().is_some(), "again, from the beginning");
    }

    #[test]
    fn keep_free_has_bounded_default() {
        let folder = tempfile::tempdir().unwrap();
        let source = MemorySource::new(folder.path());
        assert_eq!(source.read(), None);
        assert_eq!(source.default_keep_free_bytes(), 64 << 20);
        fs::write(folder.path().join("meminfo"), MEMINFO).unwrap();
        assert_eq!(source.default_keep_free_bytes(), (24_683_520 << 10) / 50);
        let unsaid = MemoryReading { available_bytes: 23_588_864 << 10, stall_ratio: None };
        assert_eq!(source.read(), Some(unsaid), "a kernel without PSI");
        fs::create_dir(folder.path().join("pressure")).unwrap();
        fs::write(folder.path().join("pressure/memory"), PRESSURE).unwrap();
        assert_eq!(source.read().unwrap().stall_ratio, Some(0.375));
    }
}
