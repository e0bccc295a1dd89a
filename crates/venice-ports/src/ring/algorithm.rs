//! The ring itself: one writer, one reader, no lock, no copy; where things are and who may touch
//! them when. The memory is behind [`RingMemory`], so that the model checker runs this very code.
//!
//! The ring is `lines` lines of 128 bytes: pairs of cache lines, which processors fetch together. A
//! *record* is a word (its length) and bytes, in consecutive lines; one that starts near the end
//! runs on into spare lines behind it, and the next one starts at line 0. *Positions* count lines
//! and never wrap.
//!
//! The word publishes the record: the writer first writes 0 where the next record will start, then
//! the bytes, then the word (release). So the reader, looking (acquire) where the next record
//! starts, sees 0 or a whole record, whatever an earlier lap left there; there is no shared tail to
//! fetch first, and a record travels with the cache line that announces it. Behind a short record
//! the 0 is there before the record is written. In the other direction the reader publishes how
//! far it is, now and then, and the writer reads that only when the ring seems full.
//!
//! Each side trusts only its own cursor. The reader takes from the other side nothing but a word,
//! whose length it checks; the writer nothing but the reader's position, which can only lie between
//! the last one and its own.
//!
//! **Sleep** (Dekker): who is about to sleep raises a flag, fences, looks once more. Who has
//! published fences and looks at the flag. One of the two sees the other.

/// Lines of the longest record.
pub(crate) const RECORD_LINES: u64 = 34;
/// How far ahead words are cleared, in lines from the next record's first on.
const CLEARED_LINES: u64 = 3;
/// Bytes of a line.
pub(crate) const LINE_BYTES: usize = 128;
/// What a record's word and time take of its first line.
pub(crate) const RECORD_HEAD_BYTES: usize = 16;
/// A ring has at least so many lines, so that any record fits however it lies.
pub(crate) const MIN_LINES: u64 = 8 * RECORD_LINES;

/// Set in the word of every record, so that an empty one is not 0.
const PRESENT: u64 = 1 << 63;

/// The other side has written what no honest one writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// What both sides share of one direction.
pub(crate) trait RingMemory {
    /// The word at the start of a line, with acquire.
    fn word(&self, line: u64) -> u64;
    /// Sets the word of a free line; ordered by the next [`RingMemory::publish_word`].
    fn clear_word(&self, line: u64);
    /// Sets the word of a line, with release.
    fn publish_word(&self, line: u64, word: u64);
    /// The reader's position, with acquire.
    fn head(&self) -> u64;
    /// Sets the reader's position, with release.
    fn publish_head(&self, head: u64);
    /// Raises or lowers a flag, relaxed.
    fn set_flag(&self, flag: Flag, raised: bool);
    /// Whether a flag is raised, relaxed.
    fn is_raised(&self, flag: Flag) -> bool;
    /// Sequentially consistent.
    fn fence(&self);
}

/// Who wants to be rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// The reader sleeps until there is a record.
    ReaderSleeps,
    /// The writer sleeps until there is room.
    WriterSleeps,
}

/// How many lines a record of `len_bytes` takes.
pub(crate) fn lines_of(len_bytes: usize) -> u64 {
    (RECORD_HEAD_BYTES + len_bytes).div_ceil(LINE_BYTES) as u64
}

/// Where the record after one of `record_lines` at `position` starts.
fn next_position(position: u64, record_lines: u64, lines: u64) -> u64 {
    let offset = position & (lines - 1);
    if offset + record_lines < lines { position + record_lines } else { position - offset + lines }
}

/// The writing side.
#[derive(Debug)]
pub(crate) struct Writer<M> {
    memory: M,
    lines: u64,
    longest_bytes: usize,
    /// Where the next record goes.
    position: u64,
    /// The reader's position, as last seen.
    head: u64,
    /// The words from behind the next record's first line up to this position are 0.
    cleared: u64,
    /// Something was published that the reader has not been rung for.
    unannounced: bool,
}

impl<M: RingMemory> Writer<M> {
    /// The writer of a new ring of `lines` lines, a power of two, which is all zeroes.
    pub(crate) fn new(memory: M, lines: u64, longest_bytes: usize) -> Self {
        assert!(lines.is_power_of_two() && lines > 2 * lines_of(longest_bytes));
        Self { memory, lines, longest_bytes, position: 0, head: 0, cleared: 0, unannounced: false }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// The line where a record of any length can be written, if there is room now.
    pub(crate) fn reserve(&mut self) -> Result<Option<u64>, Broken> {
        if !self.has_room() {
            self.look_at_head()?;
            if !self.has_room() {
                return Ok(None);
            }
        }
        Ok(Some(self.position & (self.lines - 1)))
    }

    /// Publishes the record written at the line that [`Writer::reserve`] gave.
    pub(crate) fn publish(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.longest_bytes, "a record is no longer than the ring's longest");
        let next = next_position(self.position, lines_of(len_bytes), self.lines);
        assert!(next + 1 - self.head <= self.lines, "nothing is published without room");
        if next >= self.cleared {
            self.memory.clear_word(next & (self.lines - 1));
        }
        self.memory.publish_word(self.position & (self.lines - 1), PRESENT | len_bytes as u64);
        self.position = next;
        self.unannounced = true;
    }

    /// To be called after the last of some records: whether the reader is to be rung.
    #[must_use]
    pub(crate) fn announce(&mut self) -> bool {
        if !std::mem::take(&mut self.unannounced) {
            return false;
        }
        self.memory.fence();
        let rings = take_flag(&self.memory, Flag::ReaderSleeps);
        self.clear_ahead();
        rings
    }

    /// Clears the word after the next record, should that be a short one, while nobody waits for it.
    /// When that record is published this would come between the writing of its first line, which
    /// the reader looks at all the time, and of the word there: the line would travel twice.
    fn clear_ahead(&mut self) {
        let end = self.position + CLEARED_LINES;
        if end - self.head > self.lines {
            return;
        }
        for position in self.cleared.max(self.position + 1)..end {
            self.memory.clear_word(position & (self.lines - 1));
        }
        self.cleared = end;
    }

    /// Before sleeping until there is room: `true` if there is none and the reader will ring.
    pub(crate) fn prepare_sleep(&mut self) -> Result<bool, Broken> {
        self.memory.set_flag(Flag::WriterSleeps, true);
        self.memory.fence();
        self.look_at_head()?;
        if self.has_room() {
            self.memory.set_flag(Flag::WriterSleeps, false);
        }
        Ok(!self.has_room())
    }

    /// Room for the longest record, and for the word of the one after it.
    fn has_room(&self) -> bool {
        let next = next_position(self.position, lines_of(self.longest_bytes), self.lines);
        next + 1 - self.head <= self.lines
    }

    fn look_at_head(&mut self) -> Result<(), Broken> {
        let head = self.memory.head();
        if head < self.head || head > self.position {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }
}

/// The reading side.
#[derive(Debug)]
pub(crate) struct Reader<M> {
    memory: M,
    lines: u64,
    longest_bytes: usize,
    /// Where the next record is.
    position: u64,
    /// The position last published.
    released: u64,
}

/// A record that is there to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its first line.
    pub(crate) line: u64,
    /// Its bytes, those of its head left out; no more than the ring's longest.
    pub(crate) len_bytes: usize,
}

impl<M: RingMemory> Reader<M> {
    /// The reader of a new ring; see [`Writer::new`].
    pub(crate) fn new(memory: M, lines: u64, longest_bytes: usize) -> Self {
        assert!(lines.is_power_of_two() && lines > 2 * lines_of(longest_bytes));
        Self { memory, lines, longest_bytes, position: 0, released: 0 }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// The next record, if there is one. It stays until [`Reader::consume`].
    pub(crate) fn peek(&self) -> Result<Option<Record>, Broken> {
        let line = self.position & (self.lines - 1);
        let word = self.memory.word(line);
        if word == 0 {
            return Ok(None);
        }
        let len_bytes = (word & !PRESENT) as usize;
        if word & PRESENT == 0 || len_bytes > self.longest_bytes {
            return Err(Broken);
        }
        Ok(Some(Record { line, len_bytes }))
    }

    /// Goes past `record`, which [`Reader::peek`] gave: its lines may be written again. Returns
    /// whether the writer is to be rung.
    #[must_use]
    pub(crate) fn consume(&mut self, record: Record) -> bool {
        self.position = next_position(self.position, lines_of(record.len_bytes), self.lines);
        // A writer short of room has nearly a whole ring before us, so this comes in time for it.
        if self.position - self.released < self.lines / 8 {
            return false;
        }
        self.released = self.position;
        self.memory.publish_head(self.position);
        self.memory.fence();
        take_flag(&self.memory, Flag::WriterSleeps)
    }

    /// Before sleeping until there is a record: `true` if there is none and the writer will ring.
    pub(crate) fn prepare_sleep(&mut self) -> Result<bool, Broken> {
        self.memory.set_flag(Flag::ReaderSleeps, true);
        self.memory.fence();
        let is_empty = self.peek()?.is_none();
        if !is_empty {
            self.wake_up();
        }
        Ok(is_empty)
    }

    /// After sleeping: there is no need to be rung.
    pub(crate) fn wake_up(&mut self) {
        self.memory.set_flag(Flag::ReaderSleeps, false);
    }
}

/// Lowers a flag that is raised; true if it was. Should its owner raise it again meanwhile, the
/// owner looks once more after that, and finds what was published.
fn take_flag(memory: &impl RingMemory, flag: Flag) -> bool {
    let raised = memory.is_raised(flag);
    if raised {
        memory.set_flag(flag, false);
    }
    raised
}
