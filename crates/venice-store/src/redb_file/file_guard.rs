//! Locks a store's file, and checks it before the database opens it.
//!
//! Everything here happens under the file's lock: without it the check could read a file that a
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

/// Time-out of the lock: a killed process holds its lock until the kernel has cleaned up.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

const MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";
const HEADER_BYTES: usize = 320;
const FLAGS_AT: usize = MAGIC.len();
const RECOVERY_REQUIRED: u8 = 2;
const TWO_PHASE_COMMIT: u8 = 4;
/// All flags of the header. The lowest bit selects the newer of two states.
const ALL_FLAGS: u8 = RECOVERY_REQUIRED | TWO_PHASE_COMMIT | 1;
const PAGE_BYTES: u64 = 4096;
/// Longest file that may be unfinished, in bytes: a new one has about 1 MiB; a longer one has been
/// in use.
const LONGEST_NEW_BYTES: u64 = 4 << 20;

/// Mode of the file: no access for others.
const OWNER_ONLY: u32 = 0o600;

/// Opens and locks the file at `path`: empty, or valid for the database.
pub(super) fn open(path: &Path, failed: &Failed<'_>) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
    // Root may open it in a user's directory, where the user may have put a link to anything.
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let was_there = path.exists();
    let mut file = options.open(path).map_err(|error| failed.io(error))?;
    // The file contains keys; one of an earlier version may be readable by all.
    let owner_only = Permissions::from_mode(OWNER_ONLY);
    file.set_permissions(owner_only).map_err(|error| failed.io(error))?;
    lock(&file, path, failed)?;
    let length = file.metadata().map_err(|error| failed.io(error))?.len();
    if length == 0 {
        // Its creator was killed, or a damaged file system has truncated it.
        if was_there {
            tracing::warn!(
                path = %path.display(),
                "the store is an empty file: starting with empty tables; if the rack had quotas, \
                 revocations or join tokens, stop and restore it from a backup"
            );
        }
        return Ok(file);
    }
    if length < HEADER_BYTES as u64 {
        return Err(failed.corrupt(format!("invalid length of {length} bytes")));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(|error| failed.io(error))?;
    if header.starts_with(MAGIC) {
        Header::of(&header).check(length).map_err(|reason| failed.corrupt(reason))?;
        if header[FLAGS_AT] & !ALL_FLAGS != 0 {
            return Err(failed.corrupt(format!("invalid flags {:#04x}", header[FLAGS_AT])));
        }
        let was_closed = header[FLAGS_AT] & RECOVERY_REQUIRED == 0;
        force_verification(&file, &header).map_err(|error| failed.io(error))?;
        if was_closed {
            make_room_for_earlier_states(&file, length).map_err(|error| failed.io(error))?;
        }
    } else if was_never_finished(&mut file, &header, length).map_err(|error| failed.io(error))? {
        file.set_len(0).map_err(|error| failed.io(error))?;
    } else {
        return Err(failed.corrupt("wrong magic number".to_owned()));
    }
    Ok(file)
}

fn lock(file: &File, path: &Path, failed: &Failed<'_>) -> Result<(), StoreError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        // The same lock as the database's, on the same open file: the database then takes it again
        // without conflict.
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

/// True for a file whose creator was killed before it was complete. The database first sets the
/// length, then writes the header without the magic number, then the magic number; nothing else is
/// written before that, which means that no record is lost.
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

/// Makes the database verify every checksum before it follows a page, as after a kill of its owner.
/// For a file that was closed regularly it skips the checks, and panics on damage.
fn force_verification(file: &File, header: &[u8; HEADER_BYTES]) -> std::io::Result<()> {
    let flags = (header[FLAGS_AT] | RECOVERY_REQUIRED) & !TWO_PHASE_COMMIT;
    file.write_all_at(&[flags], FLAGS_AT as u64)
}

/// Extends the file to its earlier length with zeros. A file is truncated when it is closed. If its
/// last state is damaged, the database reads the one before, and panics over pages that were cut
/// off.
fn make_room_for_earlier_states(file: &File, length: u64) -> std::io::Result<()> {
    file.set_len(length.saturating_mul(2).max(LONGEST_NEW_BYTES))
}

/// Fields of a header of redb's file format 3 that give the file's length in pages.
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

    /// Checks that the file is as long as its header requires: redb trusts a readable header, and
    /// panics on a shorter file. A longer file is sound: the database extends it before it changes
    /// the header, and truncates it afterwards.
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
            return Err(format!("invalid header: {self:?}"));
        }
        if length < pages.saturating_mul(PAGE_BYTES) {
            return Err(format!("cut short at {length} bytes"));
        }
        Ok(())
    }
}
