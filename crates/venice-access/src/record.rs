//! Recording: from the memory accesses of a real run, as valgrind's tool Lackey prints them, to an
//! access trace.

use std::collections::BTreeSet;

use venice_simkernel::units::Bytes;

use crate::cache::{Cache, CacheConfig, LINE_BYTES, Lookup};
use crate::trace::{Access, AccessTrace, Kind, LINES_OF_PAGE, MOST_ACCESSES, PAGE_BYTES};

/// A store of the program to this address begins the recording, one to the 8 bytes behind it ends it.
/// 64 GiB: valgrind maps nothing there by itself.
pub const FIRST_MARK: u64 = 64 << 30;
const LAST_MARK: u64 = FIRST_MARK + 8;

/// Pages that a region may have left untouched in a row.
const MOST_UNTOUCHED: u64 = (1 << 20) / PAGE_BYTES;

/// The part of a run to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecorderConfig {
    /// The cache whose misses are recorded.
    pub filter: CacheConfig,
    /// The program marks the part to record. Else it is recorded from `skip` instructions on.
    pub is_marked: bool,
    /// Instructions before the recording.
    pub skip: u64,
    /// Accesses to record at most.
    pub most: u64,
    /// Regions smaller than this are no data: stacks, static variables.
    pub least_region: Bytes,
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self {
            filter: CacheConfig { bytes: Bytes(32 << 10), ways: 8 },
            is_marked: false,
            skip: 0,
            most: MOST_ACCESSES,
            least_region: Bytes(1 << 20),
        }
    }
}

/// A run that cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecording {
    /// The filter has no valid size.
    #[error("filter: a cache of {} in {} ways: lines of 64 bytes / ways must be a power of two", .0.bytes, .0.ways)]
    Filter(CacheConfig),
    /// There was not one instruction.
    #[error("no instructions: run `valgrind --tool=lackey --trace-mem=yes`")]
    Nothing,
    /// The program ended before the part to record.
    #[error("the program ended before the part to record: mark it, or skip fewer instructions")]
    NotBegun,
    /// No access to data passed the filter.
    #[error(
        "no access to data passed the filter: the program's data fit the cache, or are smaller than a region must be"
    )]
    NoData,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    Recording,
    After,
}

/// Turns the lines of Lackey into a trace.
#[derive(Debug)]
pub struct Recorder {
    config: RecorderConfig,
    cache: Cache,
    state: State,
    /// Instructions so far, at the begin of the recording, and at its end.
    instructions: u64,
    begun_at: u64,
    ended_at: u64,
    /// Pages that were accessed at any time.
    pages: BTreeSet<u64>,
    last_page: u64,
    /// Instructions before each access, its line by address, its kind.
    accesses: Vec<(u64, u64, Kind)>,
}

impl Recorder {
    /// Begins.
    ///
    /// # Errors
    /// If the filter is no cache.
    pub fn new(config: RecorderConfig) -> Result<Self, BadRecording> {
        let cache = Cache::new(&config.filter).ok_or(BadRecording::Filter(config.filter))?;
        Ok(Self {
            config,
            cache,
            state: State::Before,
            instructions: 0,
            begun_at: 0,
            ended_at: 0,
            pages: BTreeSet::new(),
            last_page: u64::MAX,
            accesses: Vec::new(),
        })
    }

    /// True once all has been recorded: what follows changes nothing.
    pub fn is_done(&self) -> bool {
        self.state == State::After
    }

    /// Takes a line: `I  04001,3`, ` L 1ffe,8`, ` S 1ffe,8` or ` M 1ffe,8`; others are skipped.
    pub fn take(&mut self, text: &[u8]) {
        let Some((kind, address, bytes)) = parse(text) else { return };
        if self.state == State::After {
            return;
        }
        if kind == b'I' {
            self.instructions += 1;
            if !self.config.is_marked && self.instructions > self.config.skip {
                self.begin(self.config.skip);
            }
            return;
        }
        if self.config.is_marked && (FIRST_MARK..FIRST_MARK + PAGE_BYTES).contains(&address) {
            match (kind, address) {
                (b'S', FIRST_MARK) => self.begin(self.instructions),
                (b'S', LAST_MARK) => self.finish_recording(),
                _ => {}
            }
            return;
        }
        let last = address.saturating_add(bytes.saturating_sub(1)) / LINE_BYTES;
        for line in address / LINE_BYTES..=last {
            self.access(line, kind != b'L');
        }
    }

    fn begin(&mut self, after: u64) {
        if self.state == State::Before {
            self.state = State::Recording;
            self.begun_at = after;
        }
    }

    fn finish_recording(&mut self) {
        if self.state == State::Recording {
            self.state = State::After;
            self.ended_at = self.instructions;
        }
    }

    fn access(&mut self, line: u64, is_write: bool) {
        let page = line / LINES_OF_PAGE;
        if page != self.last_page {
            self.last_page = page;
            self.pages.insert(page);
        }
        let Lookup::Miss { write_back } = self.cache.access(line, is_write) else { return };
        if self.state != State::Recording {
            return;
        }
        let kind = if is_write { Kind::Store } else { Kind::Load };
        self.accesses.push((self.instructions, line, kind));
        let write_back = write_back.map(|line| (self.instructions, line, Kind::WriteBack));
        self.accesses.extend(write_back);
        if self.accesses.len() as u64 >= self.config.most {
            self.finish_recording();
        }
    }

    /// Ends, and returns what was recorded.
    ///
    /// # Errors
    /// If nothing was.
    pub fn finish(mut self, origin: &str) -> Result<AccessTrace, BadRecording> {
        if self.instructions == 0 {
            return Err(BadRecording::Nothing);
        }
        self.finish_recording();
        if self.state == State::Before {
            return Err(BadRecording::NotBegun);
        }
        let regions = self.regions();
        let mut accesses = Vec::new();
        let mut before = self.begun_at;
        for &(at, line, kind) in &self.accesses {
            let page = line / LINES_OF_PAGE;
            let region = regions.iter().find(|one| (one.first..=one.last).contains(&page));
            let Some(region) = region else { continue };
            let line = (region.place + page - region.first) * LINES_OF_PAGE + line % LINES_OF_PAGE;
            accesses.push(Access { gap: at - before, line, kind });
            before = at;
        }
        if accesses.is_empty() {
            return Err(BadRecording::NoData);
        }
        accesses.truncate(self.config.most.min(MOST_ACCESSES) as usize);
        Ok(AccessTrace {
            origin: origin.to_owned(),
            filter: self.config.filter,
            pages: regions.last().map_or(0, |last| last.place + last.last - last.first + 1),
            instructions: self.ended_at - self.begun_at,
            accesses,
        })
    }

    /// Finds the regions of data: pages near each other that are enough together.
    fn regions(&self) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        for &page in &self.pages {
            match regions.last_mut() {
                Some(region) if page - region.last <= MOST_UNTOUCHED => region.last = page,
                _ => regions.push(Region { first: page, last: page, place: 0 }),
            }
        }
        regions.retain(|one| (one.last - one.first + 1) * PAGE_BYTES >= self.config.least_region.0);
        let mut place = 0;
        for region in &mut regions {
            region.place = place;
            place += region.last - region.first + 1;
        }
        regions
    }
}

/// Pages of data in a row, and their place among all.
#[derive(Clone, Copy, Debug)]
struct Region {
    first: u64,
    last: u64,
    place: u64,
}

/// Reads a line of Lackey: its kind, address and bytes.
fn parse(text: &[u8]) -> Option<(u8, u64, u64)> {
    let (kind, rest) = match text {
        [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
        _ => return None,
    };
    let comma = rest.iter().position(|byte| *byte == b',')?;
    let address = number(&rest[..comma], 16)?;
    Some((kind, address, number(rest[comma + 1..].trim_ascii_end(), 10)?))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let add = |number: u64, byte: &u8| {
        let digit = char::from(*byte).to_digit(radix)?;
        number.checked_mul(radix.into())?.checked_add(digit.into())
    };
    (!digits.is_empty()).then_some(())?;
    digits.iter().try_fold(0, add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A region of a page, and a cache of one line.
    fn small() -> RecorderConfig {
        RecorderConfig {
            filter: CacheConfig { bytes: Bytes(64), ways: 1 },
            least_region: Bytes(4096),
            ..RecorderConfig::default()
        }
    }

    fn recorded(config: RecorderConfig, text: &str) -> Result<AccessTrace, BadRecording> {
        let mut recorder = Recorder::new(config).unwrap();
        text.lines().for_each(|line| recorder.take(line.as_bytes()));
        recorder.finish("a test")
    }

    fn accesses(trace: &AccessTrace) -> Vec<(u64, u64, Kind)> {
        trace.accesses.iter().map(|one| (one.gap, one.line, one.kind)).collect()
    }

    const RUN: &str = "==1== Lackey, an example Valgrind tool\nI  04001000,3\n L 00100000,8\nI  04001003,4\n S 00100004,4\nI  04001007,2\n M 0010007c,8\nI  04001009,1\n";

    #[test]
    fn accesses_pass_filter() {
        let trace = recorded(small(), RUN).unwrap();
        let (load, store, back) = (Kind::Load, Kind::Store, Kind::WriteBack);
        // The last access spans two lines; the line before it has become dirty.
        let wanted = [(1, 0, load), (2, 1, store), (0, 0, back), (0, 2, store), (0, 1, back)];
        assert_eq!(accesses(&trace), wanted);
        assert_eq!((trace.pages, trace.instructions), (1, 4));
        assert_eq!(AccessTrace::decode(&trace.encode()), Ok(trace));
    }

    #[test]
    fn skipped_part_warms_cache() {
        let trace = recorded(RecorderConfig { skip: 1, ..small() }, RUN).unwrap();
        assert_eq!(accesses(&trace)[0], (2, 1, Kind::Store));
        assert_eq!(trace.instructions, 3);
        let late = recorded(RecorderConfig { skip: 9, ..small() }, RUN);
        assert_eq!(late, Err(BadRecording::NotBegun));
    }

    #[test]
    fn marks_bound_recording() {
        let mark = |at: u64| format!("I  0,1\n S {at:x},8\n");
        let one = |line: u64| format!("I  0,1\n L {:x},8\n", line * 64);
        let text = [one(1), mark(FIRST_MARK), one(2), one(3), mark(LAST_MARK), one(4)].concat();
        let trace = recorded(RecorderConfig { is_marked: true, ..small() }, &text).unwrap();
        assert_eq!(accesses(&trace), [(1, 2, Kind::Load), (1, 3, Kind::Load)]);
        assert_eq!(trace.instructions, 3);
    }

    #[test]
    fn small_regions_are_no_data() {
        let load = |address: u64| format!("I  0,1\n L {address:x},8\n");
        // Two regions of two pages, one of a page between them.
        let at = [0x100_0000, 0x100_1000, 0x200_0000, 0x300_0000, 0x300_1040];
        let text: String = at.into_iter().map(load).collect();
        let config = RecorderConfig { least_region: Bytes(8192), ..small() };
        let trace = recorded(config, &text).unwrap();
        let wanted =
            [(1, 0), (1, 64), (2, 128), (1, 193)].map(|(gap, line)| (gap, line, Kind::Load));
        assert_eq!((accesses(&trace), trace.pages), (wanted.to_vec(), 4));
        let large = RecorderConfig { least_region: Bytes(1 << 20), ..small() };
        assert_eq!(recorded(large, &text), Err(BadRecording::NoData));
    }

    #[test]
    fn recording_is_bounded() {
        let trace = recorded(RecorderConfig { most: 2, ..small() }, RUN).unwrap();
        assert_eq!(trace.accesses.len(), 2);
        assert_eq!(recorded(small(), "hello\n"), Err(BadRecording::Nothing));
        let filter = CacheConfig { bytes: Bytes(1), ways: 1 };
        assert!(Recorder::new(RecorderConfig { filter, ..small() }).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "([ILSM ]{2,3}[0-9a-f]{0,20},[0-9]{0,3}\n){0,40}") {
            if let Ok(trace) = recorded(small(), &text) {
                prop_assert_eq!(AccessTrace::decode(&trace.encode()), Ok(trace));
            }
        }
    }
}
