//! Absent pages of a run for another process of this machine: `venice core` writes them to a file.
//!
//! After the answer to [`Question::Core`](super::Question::Core) the connection carries binary
//! requests, little-endian: a number of pages (`u32`, at most [`MOST_PAGES`]), what they are (`u32`,
//! 0: far slots, 1: shared memory), and then as many slots (`u32` each), or the number of the first
//! shared page (`u64`). The reply has one byte for each page, 1 if it was found, and then 4096 bytes
//! for each. The supervisor reads the pages, because it has a way to the donors.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use venice_memory::dump::AbsentPages;
use venice_wire::PAGE_BYTES;

/// Most pages of a request.
pub const MOST_PAGES: usize = 256;
const PAGE: usize = PAGE_BYTES as usize;
const FAR: u32 = 0;
const SHARED: u32 = 1;

/// A process of the run, as seen by `venice core`.
#[derive(Default)]
pub struct CoreView {
    /// Address of the header of its pager's tables; `None`: its memory is all in place.
    pub image: Option<u64>,
    /// Reader of its absent pages, if it may have any.
    pub pages: Option<Box<dyn AbsentPages + Send>>,
}

impl std::fmt::Debug for CoreView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreView").field("image", &self.image).finish_non_exhaustive()
    }
}

/// The asking side of a connection. It fails if the run ended, or does not answer.
#[derive(Debug)]
pub struct FarPages {
    stream: UnixStream,
}

impl FarPages {
    /// Continues a connection on which [`Question::Core`](super::Question::Core) was answered.
    pub fn new(stream: UnixStream) -> FarPages {
        FarPages { stream }
    }

    fn ask(&mut self, kind: u32, which: &[u8], into: &mut [u8]) -> io::Result<Vec<bool>> {
        let count = into.len() / PAGE;
        let head = [count as u32, kind];
        let request: Vec<u8> =
            head.iter().flat_map(|word| word.to_le_bytes()).chain(which.iter().copied()).collect();
        self.stream.write_all(&request)?;
        let mut found = vec![0u8; count];
        self.stream.read_exact(&mut found)?;
        self.stream.read_exact(into)?;
        Ok(found.into_iter().map(|byte| byte != 0).collect())
    }
}

impl AbsentPages for FarPages {
    fn far(&mut self, slots: &[u32], into: &mut [u8]) -> io::Result<Vec<bool>> {
        let mut found = Vec::with_capacity(slots.len());
        for (slots, into) in slots.chunks(MOST_PAGES).zip(into.chunks_mut(MOST_PAGES * PAGE)) {
            let which: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
            found.extend(self.ask(FAR, &which, into)?);
        }
        Ok(found)
    }

    fn shared(&mut self, first: usize, into: &mut [u8]) -> io::Result<Vec<bool>> {
        let mut found = Vec::with_capacity(into.len() / PAGE);
        for into in into.chunks_mut(MOST_PAGES * PAGE) {
            let first = (first + found.len()) as u64;
            found.extend(self.ask(SHARED, &first.to_le_bytes(), into)?);
        }
        Ok(found)
    }
}

/// Serves the connection of one `venice core` until it ends, in a thread of its own.
pub(super) fn serve(stream: UnixStream, pages: Box<dyn AbsentPages + Send>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    // A debugged `venice core` may take its time.
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let thread = std::thread::Builder::new().name("venice-core".into());
    thread.spawn(move || {
        let mut pages = pages;
        // It ends with the connection.
        let _ = answer_all(stream, &mut *pages);
    })?;
    Ok(())
}

fn answer_all(mut stream: impl Read + Write, pages: &mut dyn AbsentPages) -> io::Result<()> {
    loop {
        let [count, kind] = [read_word(&mut stream)?, read_word(&mut stream)?];
        let count = count as usize;
        if count > MOST_PAGES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut contents = vec![0u8; count * PAGE];
        let found = match kind {
            FAR => {
                let mut slots = Vec::with_capacity(count);
                for _ in 0..count {
                    slots.push(read_word(&mut stream)?);
                }
                pages.far(&slots, &mut contents)?
            }
            SHARED => {
                let mut first = [0u8; 8];
                stream.read_exact(&mut first)?;
                pages.shared(u64::from_le_bytes(first) as usize, &mut contents)?
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let mut reply: Vec<u8> = found.into_iter().map(u8::from).collect();
        reply.append(&mut contents);
        stream.write_all(&reply)?;
    }
}

fn read_word(stream: &mut impl Read) -> io::Result<u32> {
    let mut word = [0u8; 4];
    stream.read_exact(&mut word)?;
    Ok(u32::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages filled with their slot or number; 5 is lost.
    struct Numbered;

    impl Numbered {
        fn fill(numbers: impl Iterator<Item = usize>, into: &mut [u8]) -> io::Result<Vec<bool>> {
            let pages = into.chunks_exact_mut(PAGE).zip(numbers);
            Ok(pages.map(|(page, number)| (page.fill(number as u8), number != 5).1).collect())
        }
    }

    impl AbsentPages for Numbered {
        fn far(&mut self, slots: &[u32], into: &mut [u8]) -> io::Result<Vec<bool>> {
            Numbered::fill(slots.iter().map(|slot| *slot as usize), into)
        }

        fn shared(&mut self, first: usize, into: &mut [u8]) -> io::Result<Vec<bool>> {
            Numbered::fill(first.., into)
        }
    }

    #[test]
    fn pages_arrive_by_number() {
        let (asker, server) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || answer_all(server, &mut Numbered));
        let mut far = FarPages::new(asker);
        let many: Vec<u32> = (3..3 + 2 * MOST_PAGES as u32).collect();
        for slots in [&[7u32, 5, 9][..], &[8], &[], &many] {
            let mut pages = vec![0u8; slots.len() * PAGE];
            let found = far.far(slots, &mut pages).unwrap();
            assert_eq!(found, slots.iter().map(|slot| *slot != 5).collect::<Vec<_>>());
            for (slot, page) in slots.iter().zip(pages.chunks_exact(PAGE)) {
                assert!(page.iter().all(|byte| *byte == *slot as u8));
            }
        }
        let mut pages = vec![0u8; (MOST_PAGES + 3) * PAGE];
        let found = far.shared(4, &mut pages).unwrap();
        assert_eq!(found.iter().position(|found| !found), Some(1));
        assert_eq!(pages[(MOST_PAGES + 2) * PAGE], (MOST_PAGES + 6) as u8);
        drop(far);
        assert!(serving.join().unwrap().is_err(), "it ends with the connection");
    }
}
