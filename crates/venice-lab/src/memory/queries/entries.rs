//! The database's entries: 64 bytes each, as in the paper, a fixed number for each owner. A query
//! reads all of one owner's.

use std::io::{self, Write};

use venice_measure::pattern;

/// Letters of one entry.
pub(super) const ENTRY_BYTES: usize = 64;
/// Entries of an owner, so that an answer just fits a size class of redis's allocator.
pub(super) const ENTRIES_PER_OWNER: u64 = 15;
/// Bytes of one answer.
pub(super) const ANSWER_BYTES: usize = ENTRY_BYTES * ENTRIES_PER_OWNER as usize;
/// Memory that redis takes for an answer with its key: measured with redis 7.
const CACHED_BYTES: u64 = 1_110;

/// All entries: those of owner `o` are numbered `o`, `o + owners`, `o + 2 owners` and so on, so
/// that no two of them share a page of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entries {
    pub(super) owners: u64,
}

impl Entries {
    /// Chooses the number of owners so that a cache of `cache_bytes` holds `share` of all answers.
    pub(super) fn for_cache(cache_bytes: u64, share: f64) -> Self {
        Self { owners: ((answers_in(cache_bytes) as f64 / share) as u64).max(1) }
    }

    /// Returns the rows of the table.
    pub(super) fn rows(self) -> u64 {
        self.owners * ENTRIES_PER_OWNER
    }

    /// Writes all rows in the form that `LOAD DATA` reads; calls `go_on` every few thousand rows.
    ///
    /// # Errors
    /// When `out` fails, or `go_on` does.
    pub(super) fn write_rows(
        self,
        out: &mut impl Write,
        mut go_on: impl FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        const BETWEEN: u64 = 8192;
        let mut text = [0; ENTRY_BYTES];
        for number in 0..self.rows() {
            if number % BETWEEN == 0 {
                go_on(number)?;
            }
            fill_entry(number, &mut text);
            write!(out, "{number}\t{}\t", number % self.owners)?;
            out.write_all(&text)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Fills `out` with the right answer to a query for `owner`.
    pub(super) fn fill_answer(self, owner: u64, out: &mut [u8; ANSWER_BYTES]) {
        for (entry, text) in out.as_chunks_mut::<ENTRY_BYTES>().0.iter_mut().enumerate() {
            fill_entry(owner + entry as u64 * self.owners, text);
        }
    }
}

/// Returns how many answers a cache of `cache_bytes` holds.
pub(super) fn answers_in(cache_bytes: u64) -> u64 {
    cache_bytes / CACHED_BYTES
}

/// Fills an entry with letters and digits, which need no escaping on their way.
fn fill_entry(number: u64, out: &mut [u8; ENTRY_BYTES]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (index, letters) in out.chunks_mut(16).enumerate() {
        let mut word = pattern::word(number, index as u64);
        for letter in letters {
            *letter = DIGITS[(word & 15) as usize];
            word >>= 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_consists_of_owners_rows() {
        let entries = Entries { owners: 7 };
        let mut table = Vec::new();
        let mut answers = 0;
        entries
            .write_rows(&mut table, |_| {
                answers += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(answers, 1);
        let table = String::from_utf8(table).unwrap();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(rows.len() as u64, entries.rows());
        for owner in [0, 3, 6] {
            let own = rows.iter().filter(|row| row[1] == owner.to_string());
            let wanted: String = own.map(|row| row[2]).collect();
            let mut answer = [0; ANSWER_BYTES];
            entries.fill_answer(owner, &mut answer);
            assert_eq!(wanted.as_bytes(), answer);
        }
    }

    #[test]
    fn cache_holds_its_share() {
        let entries = Entries::for_cache(350 << 20, 0.95);
        let share = answers_in(350 << 20) as f64 / entries.owners as f64;
        assert!((0.949..0.951).contains(&share), "{share}");
    }
}
