//! The ring algorithm: one writer, one reader, no lock, no copy. It defines the layout and the
//! order in which each side touches it. The memory is behind [`RingMemory`], which lets the model
//! checker run this very code.
//!
//! The ring is `lines` lines of 128 bytes: pairs of cache lines, which processors fetch together. A
//! *record* is a word (its length) and bytes, in consecutive lines. One that starts near the end
//! runs on into spare lines behind it, and the next one starts at line 0. *Positions* count lines
//! and never wrap.
//!
//! The word publishes the record: the writer first writes 0 where the next record will start, then
//! the bytes, then the word (release). The reader looks (acquire) where the next record starts and
//! sees 0 or a whole record, whatever an earlier lap left there. There is no shared tail to fetch
//! first: a record travels with the cache line that announces it. Behind a short record the 0 is
//! written before the record. In the other direction the reader publishes its position now and
//! then, and the writer reads it only when the ring seems full.
//!
//! Each side trusts only its own cursor. The reader takes from the other side nothing but a word,
//! whose length it checks; the writer nothing but the reader's position, which must lie between the
//! last one and its own.
//!
//! **Sleep** (Dekker): a side raises a flag before it sleeps, fences, and looks once more. The
//! publishing side fences and looks at the flag. One of the two sees the other.

/// Lines of the longest record.
pub(crate) const RECORD_LINES: u64 = 34;
/// Distance to which words are cleared ahead, in lines from the next record's first line on.
const CLEARED_LINES: u64 = 3;
/// Bytes of a line.
pub(crate) const LINE_BYTES: usize = 128;
/// Bytes of a record's first line that its word and its time take.
pub(crate) const RECORD_HEAD_BYTES: usize = 16;
/// Smallest number of lines of a ring: any record fits at any position.
pub(crate) const MIN_LINES: u64 = 8 * RECORD_LINES;

/// Bit set in the word of every record, which keeps an empty record's word from being 0.
const PRESENT: u64 = 1 << 63;

/// Error: the other side has written invalid data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// State that both sides of one direction share.
pub(crate) trait RingMemory {
    /// Reads the word at the start of a line, with acquire.
    fn word(&self, line: u64) -> u64;
    /// Sets the word of a free line; ordered by the next [`RingMemory::publish_word`].
    fn clear_word(&self, line: u64);
    /// Sets the word of a line, with release.
    fn publish_word(&self, line: u64, word: u64);
    /// Reads the reader's position, with acquire.
    fn head(&self) -> u64;
    /// Sets the reader's position, with release.
    fn publish_head(&self, head: u64);
    /// Raises or lowers a flag, relaxed.
    fn set_flag(&self, flag: Flag, raised: bool);
    /// True if a flag is raised, relaxed.
    fn is_raised(&self, flag: Flag) -> bool;
    /// Sequentially consistent fence.
    fn fence(&self);
}

/// Flag of a side that sleeps and wants the bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// The reader sleeps until there is a record.
    ReaderSleeps,
    /// The writer sleeps until there is room.
    WriterSleeps,
}

/// Returns the number of lines of a record of `len_bytes`.
pub(crate) fn lines_of(len_bytes: usize) -> u64 {
    (RECORD_HEAD_BYTES + len_bytes).div_ceil(LINE_BYTES) as u64
}

/// Returns the position of the record after one of `record_lines` at `position`.
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
    /// Position of the next record.
    position: u64,
    /// Reader's position, as last seen.
    head: u64,
    /// End of the cleared words: those from behind the next record's first line up to this position
    /// are 0.
    cleared: u64,
    /// True if records were published since the last announcement.
    unannounced: bool,
}

impl<M: RingMemory> Writer<M> {
    /// Makes the writer of a new, zeroed ring of `lines` lines, a power of two.
    pub(crate) fn new(memory: M, lines: u64, longest_bytes: usize) -> Self {
        assert!(lines.is_power_of_two() && lines > 2 * lines_of(longest_bytes));
        Self { memory, lines, longest_bytes, position: 0, head: 0, cleared: 0, unannounced: false }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the line where a record of any length can be written, if there is room now.
    pub(crate) fn reserve(&mut self) -> Result<Option<u64>, Broken> {
        if !self.has_room() {
            self.look_at_head()?;
            if !self.has_room() {
                return Ok(None);
            }
        }
        Ok(Some(self.position & (self.lines - 1)))
    }

    /// Publishes the record written at the line that [`Writer::reserve`] returned.
    pub(crate) fn publish(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.longest_bytes, "a record is no longer than the ring's longest");
        let next = next_position(self.position, lines_of(len_bytes), self.lines);
        assert!(next + 1 - self.head <= self.lines, "the caller reserved room");
        if next >= self.cleared {
            self.memory.clear_word(next & (self.lines - 1));
        }
        self.memory.publish_word(self.position & (self.lines - 1), PRESENT | len_bytes as u64);
        self.position = next;
        self.unannounced = true;
    }

    /// Announces published records; returns true if the reader must be woken. Call it after the
    /// last of several records.
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

    /// Clears the word after the next record, in case that is a short one, while the reader does
    /// not wait for it. Done at the time of publication, this store would fall between the write of
    /// the record's first line, which the reader polls, and the write of its word: the line would
    /// travel twice.
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

    /// Prepares to sleep until there is room. `true` if there is none and the reader will ring.
    pub(crate) fn prepare_sleep(&mut self) -> Result<bool, Broken> {
        self.memory.set_flag(Flag::WriterSleeps, true);
        self.memory.fence();
        self.look_at_head()?;
        if self.has_room() {
            self.memory.set_flag(Flag::WriterSleeps, false);
        }
        Ok(!self.has_room())
    }

    /// True if there is room for the longest record, and for the word of the one after it.
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
    /// Position of the next record.
    position: u64,
    /// Position last published.
    released: u64,
}

/// A record ready to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// First line of the record.
    pub(crate) line: u64,
    /// Bytes of the record without its head; at most the ring's longest.
    pub(crate) len_bytes: usize,
}

impl<M: RingMemory> Reader<M> {
    /// Makes the reader of a new ring; see [`Writer::new`].
    pub(crate) fn new(memory: M, lines: u64, longest_bytes: usize) -> Self {
        assert!(lines.is_power_of_two() && lines > 2 * lines_of(longest_bytes));
        Self { memory, lines, longest_bytes, position: 0, released: 0 }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the next record, if there is one. It stays until [`Reader::consume`].
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

    /// Moves past `record`, which [`Reader::peek`] returned: its lines may be written again.
    /// Returns true if the writer must be woken.
    #[must_use]
    pub(crate) fn consume(&mut self, record: Record) -> bool {
        self.position = next_position(self.position, lines_of(record.len_bytes), self.lines);
        // A writer short of room has nearly a whole ring of records before the reader: publishing
        // now is soon enough for it.
        if self.position - self.released < self.lines / 8 {
            return false;
        }
        self.released = self.position;
        self.memory.publish_head(self.position);
        self.memory.fence();
        take_flag(&self.memory, Flag::WriterSleeps)
    }

    /// Prepares to sleep until there is a record. `true` if there is none and the writer will ring.
    pub(crate) fn prepare_sleep(&mut self) -> Result<bool, Broken> {
        self.memory.set_flag(Flag::ReaderSleeps, true);
        self.memory.fence();
        let is_empty = self.peek()?.is_none();
        if !is_empty {
            self.wake_up();
        }
        Ok(is_empty)
    }

    /// Ends a sleep: the bell is no longer needed.
    pub(crate) fn wake_up(&mut self) {
        self.memory.set_flag(Flag::ReaderSleeps, false);
    }
}

/// Lowers a flag; returns true if it was raised. If its owner raises it again meanwhile, the owner
/// looks once more afterwards and finds the published state.
fn take_flag(memory: &impl RingMemory, flag: Flag) -> bool {
    let raised = memory.is_raised(flag);
    if raised {
        memory.set_flag(flag, false);
    }
    raised
}
