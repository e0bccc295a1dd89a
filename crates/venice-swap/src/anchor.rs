//! One page of a file that a memory cgroup does not lose, so that its pages are found when they are
//! wanted.
//!
//! Whether a group's active pages are to be looked at, the kernel decides by statistics that are up to
//! some seconds old (`inactive_is_low` in `mm/vmscan.c`; flushed every two seconds). A program that
//! goes over to using all it has at once makes all its pages active within a fraction of that. Then
//! the statistics say that there are inactive ones, there are none, and where the group has no page
//! of a file either, reclaim looks at nothing at all and the kernel kills the program, although swap
//! has room. With a page of a file on the group's lists it does look, finds too little, and then turns
//! to the active pages whatever the statistics say.
//!
//! The page is one of the swap device, read past nothing; a pipe that nobody reads holds on to it.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use venice_wire::PAGE_BYTES;

use crate::{SwapError, sys};

/// Dropped, the page may go.
#[derive(Debug)]
pub(crate) struct Anchor {
    device: File,
    offset: u64,
    // Without a reader the pipe would hold nothing.
    _reader: PipeReader,
    writer: PipeWriter,
}

impl Anchor {
    /// A page of `device`, once a process of the group has laid it.
    pub(crate) fn on(device: &Path) -> Result<Self, SwapError> {
        let mut file = File::open(device).map_err(SwapError::file("open", device))?;
        let len_bytes = file.seek(SeekFrom::End(0)).map_err(SwapError::file("measure", device))?;
        let pipe = std::io::pipe().map_err(SwapError::file("hold a page of", device))?;
        let (reader, writer) = pipe;
        // The last one: nothing follows that the kernel would read along with it.
        let offset = len_bytes.saturating_sub(PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
        Ok(Self { device: file, offset, _reader: reader, writer })
    }

    /// Reads the page, which is charged to the group of the calling process, and holds on to it. Neither
    /// allocates nor locks.
    pub(crate) fn lay(&self) -> std::io::Result<()> {
        // Somebody may have looked at the device before, and been charged for the page.
        let len = NonZeroU64::new(PAGE_BYTES);
        fadvise(&self.device, self.offset, len, Advice::DontNeed)?;
        sys::splice(&self.device, self.offset, &self.writer, PAGE_BYTES as usize)?;
        Ok(())
    }
}
