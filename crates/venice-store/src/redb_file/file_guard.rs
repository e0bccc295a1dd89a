//! Taking hold of a store's file, and looking at it before the database does.
//!
//! Everything here happens under the file's lock: without it one would look at a file that a
//! dying process or another starting one is still writing.

use super::failed::Failed;
use crate::error::StoreError;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A killed process holds its lock until the kernel is done with it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

const MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";
const HEADER_BYTES: usize = 320;
const FLAGS_AT: usize = MAGIC.len();
const RECOVERY_REQUIRED: u8 = 2;
const TWO_PHASE_COMMIT: u8 = 4;
/// The last bit says which of two states is the last.
const ALL_FLAGS: u8 = RECOVERY_REQUIRED | TWO_PHASE_COMMIT | 1;
const PAGE_BYTES: u64 = 4096;
/// A new file is made with about one MiB; whatever is longer has been in use.
const LONGEST_NEW_BYTES: u64 = 4 << 20;

/// Nobody else reads or writes it.
const OWNER_ONLY: u32 = 0o600;

/// The file at `path`, locked: empty, or one that the database may open.
pub(super) fn open(path: &Path, failed: &Failed<'_>) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
    // Root may open it for whoever has the folder, who may have put a link there to anything.
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let mut file = options.open(path).map_err(|error| failed.io(error))?;
    // It holds keys; one of an earlier version may still be there for all to read.
    let owner_only = Permissions::from_mode(OWNER_ONLY);
    file.set_permissions(owner_only).map_err(|error| failed.io(error))?;
    lock(&file, path, failed)?;
    let length = file.metadata().map_err(|error| failed.io(error))?.len();
    if length == 0 {
        return Ok(file);
    }
    if length < HEADER_BYTES as u64 {
        return Err(failed.corrupt(format!("it has {length} bytes")));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(|error| failed.io(error))?;
    if header.starts_with(MAGIC) {
        Header::of(&header).check(length).map_err(|reason| failed.corrupt(reason))?;
        if header[FLAGS_AT] & !ALL_FLAGS != 0 {
            return Err(failed.corrupt(format!("its flags are {:#04x}", header[FLAGS_AT])));
        }
        let was_closed = header[FLAGS_AT] & RECOVERY_REQUIRED == 0;
        have_it_verified(&file, &header).map_err(|error| failed.io(error))?;
        if was_closed {
            make_room_for_earlier_states(&file, length).map_err(|error| failed.io(error))?;
        }
    } else if was_never_finished(&mut file, &header, length).map_err(|error| failed.io(error))? {
        file.set_len(0).map_err(|error| failed.io(error))?;
    } else {
        return Err(failed.corrupt("it does not begin like one".to_owned()));
    }
    Ok(file)
}

fn lock(file: &File, path: &Path, failed: &Failed<'_>) -> Result<(), StoreError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        // The very lock that the database takes, of the same open file: it finds it taken by itself.
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked { path: path.to_owned() });
            }
            Err(error) => return Err(failed.io(error)),
        }
    }
}

/// True for a file whose maker was killed before it was one. The database gives it its length,
/// then the header without the magic number, then the magic number; nothing else is written
/// before that, so nothing is lost with it.
fn was_never_finished(
    file: &mut File,
    header: &[u8; HEADER_BYTES],
    length: u64,
) -> std::io::Result<bool> {
    let is_new = length.is_multiple_of(PAGE_BYTES) && length <= LONGEST_NEW_BYTES;
    let is_blank = header.iter().all(|byte| *byte == 0);
    let has_no_magic_yet = header[..MAGIC.len()].iter().all(|byte| *byte == 0)
        && Header::of(header).check(length).is_ok();
    if !is_new || !(is_blank || has_no_magic_yet) {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes[HEADER_BYTES..].iter().all(|byte| *byte == 0))
}

/// Of a file that was closed well the database believes everything, and panics where it should
/// not. As if its owner had been killed, it verifies every checksum before it follows a page.
fn have_it_verified(file: &File, header: &[u8; HEADER_BYTES]) -> std::io::Result<()> {
    let flags = (header[FLAGS_AT] | RECOVERY_REQUIRED) & !TWO_PHASE_COMMIT;
    file.write_all_at(&[flags], FLAGS_AT as u64)
}

/// A file is made shorter when it is closed. Where its last state is damaged, the database looks at the
/// one before, and panics over pages that were cut off; so they are there again, with nothing in them.
fn make_room_for_earlier_states(file: &File, length: u64) -> std::io::Result<()> {
    file.set_len(length.saturating_mul(2).max(LONGEST_NEW_BYTES))
}

/// The counts in a header of redb's file format 3 that give the file's length in pages.
#[derive(Debug)]
struct Header {
    page_bytes: u64,
    header_pages: u64,
    data_pages: u64,
    full_regions: u64,
    trailing_pages: u64,
}

impl Header {
    fn of(header: &[u8; HEADER_BYTES]) -> Self {
        let count = |index: usize| {
            let at = 12 + 4 * index;
            let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
            u64::from(u32::from_le_bytes(bytes))
        };
        let [page_bytes, header_pages, data_pages, full_regions, trailing_pages] =
            [0, 1, 2, 3, 4].map(count);
        Self { page_bytes, header_pages, data_pages, full_regions, trailing_pages }
    }

    /// redb takes a header it can read at its word, and panics when the file is shorter than the
    /// header says; so ask before it does. A longer file is sound: the database makes it longer
    /// before it says so, and shorter after.
    fn check(&self, length: u64) -> Result<(), String> {
        let Self { header_pages, data_pages, full_regions, trailing_pages, .. } = *self;
        let trailing = if trailing_pages > 0 { header_pages + trailing_pages } else { 0 };
        let pages = full_regions
            .saturating_mul(header_pages + data_pages)
            .saturating_add(trailing)
            .saturating_add(1);
        let is_possible = self.page_bytes == PAGE_BYTES
            && data_pages > 0
            && trailing_pages <= data_pages
            && pages > 1;
        if !is_possible {
            return Err(format!("its header makes no sense: {self:?}"));
        }
        if length < pages.saturating_mul(PAGE_BYTES) {
            return Err(format!("it is cut short at {length} bytes"));
        }
        Ok(())
    }
}
