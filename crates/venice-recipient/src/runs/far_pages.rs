//! Far pages of a run for another process of this machine: `venice core` writes them to a file.
//!
//! After the answer to [`Question::Core`](super::Question::Core) the connection carries binary
//! requests, little-endian: a number of slots (`u32`, at most [`MOST_SLOTS`]) and as many slots
//! (`u32` each). The reply has one byte for each slot, 1 if the page was found, and then 4096 bytes
//! for each. The supervisor reads the pages, because it has a way to the donors.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use venice_memory::paged::SlotReader;
use venice_wire::PAGE_BYTES;

/// Most slots of a request.
pub const MOST_SLOTS: usize = 256;
const PAGE: usize = PAGE_BYTES as usize;

/// A process of the run, as seen by `venice core`.
#[derive(Debug, Default)]
pub struct CoreView {
    /// Address of the header of its pager's tables; `None`: its memory is all in place.
    pub image: Option<u64>,
    /// Reader of its far pages, if it may have any.
    pub reader: Option<SlotReader>,
}

/// The asking side of a connection.
#[derive(Debug)]
pub struct FarPages {
    stream: UnixStream,
}

impl FarPages {
    /// Continues a connection on which [`Question::Core`](super::Question::Core) was answered.
    pub fn new(stream: UnixStream) -> FarPages {
        FarPages { stream }
    }

    /// Reads the pages in `slots` into `pages`, 4096 bytes each. Returns for each if it was found.
    ///
    /// # Errors
    /// If the run ended, or does not answer.
    ///
    /// # Panics
    /// If there are more than [`MOST_SLOTS`] slots.
    pub fn read(&mut self, slots: &[u32], pages: &mut [u8]) -> io::Result<Vec<bool>> {
        assert!(slots.len() <= MOST_SLOTS, "at most {MOST_SLOTS} slots a request");
        let words = std::iter::once(slots.len() as u32).chain(slots.iter().copied());
        let request: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        self.stream.write_all(&request)?;
        let mut found = vec![0u8; slots.len()];
        self.stream.read_exact(&mut found)?;
        self.stream.read_exact(pages)?;
        Ok(found.into_iter().map(|byte| byte != 0).collect())
    }
}

/// Serves the connection of one `venice core` until it ends, in a thread of its own.
pub(super) fn serve(stream: UnixStream, reader: SlotReader) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    // A debugged `venice core` may take its time.
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let thread = std::thread::Builder::new().name("venice-core".into());
    thread.spawn(move || {
        let mut reader = reader;
        // It ends with the connection.
        let _ = answer_all(stream, |slot, page| reader.read(slot, page));
    })?;
    Ok(())
}

fn answer_all(
    mut stream: impl Read + Write,
    mut read: impl FnMut(u32, &mut [u8]) -> bool,
) -> io::Result<()> {
    let mut word = [0u8; 4];
    loop {
        stream.read_exact(&mut word)?;
        let count = u32::from_le_bytes(word) as usize;
        if count > MOST_SLOTS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut slots = vec![0u8; count * 4];
        stream.read_exact(&mut slots)?;
        let mut reply = vec![0u8; count * (1 + PAGE)];
        let (found, pages) = reply.split_at_mut(count);
        for (at, page) in pages.chunks_exact_mut(PAGE).enumerate() {
            let slot = slots[at * 4..][..4].try_into().expect("four bytes");
            found[at] = u8::from(read(u32::from_le_bytes(slot), page));
        }
        stream.write_all(&reply)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_arrive_by_slot() {
        let (asker, server) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || {
            answer_all(server, |slot, page| {
                page.fill(slot as u8);
                slot != 5
            })
        });
        let mut far = FarPages::new(asker);
        for slots in [&[7u32, 5, 9][..], &[8], &[]] {
            let mut pages = vec![0u8; slots.len() * PAGE];
            let found = far.read(slots, &mut pages).unwrap();
            assert_eq!(found, slots.iter().map(|slot| *slot != 5).collect::<Vec<_>>());
            for (slot, page) in slots.iter().zip(pages.chunks_exact(PAGE)) {
                assert!(page.iter().all(|byte| u32::from(*byte) == *slot));
            }
        }
        drop(far);
        assert!(serving.join().unwrap().is_err(), "it ends with the connection");
    }
}
