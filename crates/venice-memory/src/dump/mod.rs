//! Core dumps of programs on borrowed memory.
//!
//! A pager is a part of its program. So whoever stops the program to look at it, a debugger or the
//! kernel's own core dump, stops the pager too, and far pages cannot be brought in: a debugger gets
//! an error for them, and the kernel leaves them out. Two ways lead to a whole core dump:
//! - [`write_core`] stops a living process and writes its core. Far pages are read from the donors
//!   and go to the file only; neither the program's memory nor its budget changes.
//! - [`complete_core`] adds the far pages to a core file that the kernel wrote.
//!
//! Shared memory has its pager in the run's supervisor, which reads it for both
//! ([`SharedPager::read`](crate::paged::SharedPager::read)).
//!
//! Both find the other pages by the pager's tables ([`image`](crate::paged::image)) and read them by the
//! run's supervisor, which has a way to the donors.
//!
//! Sources: `elf(5)`, `core(5)`, `ptrace(2)`, `proc(5)`; `fs/binfmt_elf.c` of Linux for the notes.

mod elf;
mod file_image;
mod filled;
mod kernel_dump;
mod live;
mod mappings;
mod notes;
mod process_memory;
mod stopped;

use std::io;

use crate::paged::image::ImageError;

pub use file_image::{Completed, complete_core, process_of};
pub use kernel_dump::{core_handler, has_dumped_core};
pub use live::{CoreSource, Written, write_core};
pub use mappings::{Mapping, Part, read as mappings_of};

/// A reader of pages that are not in the process.
pub trait AbsentPages {
    /// Fills one page of 4096 bytes for each far slot, and returns for each if it was found.
    ///
    /// # Errors
    /// If there is no way to them.
    fn far(&mut self, slots: &[u32], into: &mut [u8]) -> io::Result<Vec<bool>>;

    /// Fills pages of the run's shared memory, from the number `first` on
    /// ([`shared_memory_at`](crate::paged::shared_memory_at)), and returns for each if it was found.
    ///
    /// # Errors
    /// If there is no way to them.
    fn shared(&mut self, first: usize, into: &mut [u8]) -> io::Result<Vec<bool>>;
}

/// An error of writing or completing a core dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// There is no such process, or no access to it.
    #[error("{doing}")]
    Process {
        /// The operation that failed.
        doing: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A thread goes on in the kernel.
    #[error("thread {thread} did not stop within {seconds} s: it waits in the kernel; try again")]
    Unstoppable {
        /// Its id.
        thread: u32,
        /// The time waited.
        seconds: u64,
    },
    /// Another process traces it.
    #[error("process {tracer} traces it: detach the debugger first")]
    Traced {
        /// The tracing process.
        tracer: u32,
    },
    /// The pager's tables could not be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The donors' pages could not be read.
    #[error("reading far pages failed")]
    Far(#[source] io::Error),
    /// The core file could not be written.
    #[error("writing the core file failed")]
    File(#[source] io::Error),
    /// The file ends before its last page.
    #[error(
        "it ends early (a limited core file size, or a full disk): raise `ulimit -c`, or make room"
    )]
    CutOff,
    /// The caller ended it.
    #[error("interrupted")]
    Interrupted,
    /// The file is not a core dump of this machine.
    #[error("not a core dump of a 64-bit program: {0}")]
    NotCore(&'static str),
}
