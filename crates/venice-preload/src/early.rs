//! Memory that was mapped before the shim: an allocator may reserve its address space when the first
//! library is initialised. Its pages come later, so it is managed like any other mapping.

use std::ops::Range;

use venice_memory::dump;
use venice_memory::paged::Pager;

/// Bytes of the smallest mapping that is looked at: an allocator reserves more.
const LEAST_BYTES: u64 = 1 << 20;
/// Bytes of the largest: beyond are the shadows of sanitizers, for which the tables would be too
/// large.
const MOST_BYTES: u64 = 1 << 38;

/// Returns the mappings that are there and have no page in use. To be called before the pager makes
/// its own.
pub fn reserved() -> Vec<Range<u64>> {
    let mappings = dump::mappings_of(std::process::id()).unwrap_or_default();
    let reserved = mappings.into_iter().filter(dump::Mapping::is_reserved);
    let sized = reserved.filter(|it| (LEAST_BYTES..=MOST_BYTES).contains(&(it.end - it.start)));
    sized.map(|it| it.start..it.end).collect()
}

/// Manages mappings that [`reserved`] has found and that nobody has touched since.
pub fn adopt(pager: &'static Pager, reserved: &[Range<u64>]) {
    let mut structure = pager.hold_structure();
    for range in reserved {
        structure.adopt(range.start as usize, (range.end - range.start) as usize);
    }
}
