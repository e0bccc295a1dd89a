//! `venice_copies`.

use venice_client::{Memory, ObjectCache, PagedMemory};

use crate::arguments::{handle, place};
use crate::status::{Status, status_of};

/// `venice_copies` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct Copies {
    copies: u64,
    slabs: u64,
    short_slabs: u64,
    lost_slabs: u64,
    rebuilt: u64,
}

impl From<venice_client::Copies> for Copies {
    fn from(of: venice_client::Copies) -> Copies {
        let venice_client::Copies { copies, slabs, short_slabs, lost_slabs, rebuilt, .. } = of;
        Copies { copies: copies.into(), slabs, short_slabs, lost_slabs, rebuilt }
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_get_copies(memory: *const Memory, copies: *mut Copies) -> Status {
    let ask = || {
        // SAFETY: guaranteed by the caller.
        let (memory, copies) = unsafe { (handle(memory, "memory")?, place(copies, "copies")?) };
        *copies = memory.copies().into();
        Ok(())
    };
    status_of(ask())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_paged_get_copies(
    paged: *const PagedMemory,
    copies: *mut Copies,
) -> Status {
    let ask = || {
        // SAFETY: guaranteed by the caller.
        let (paged, copies) = unsafe { (handle(paged, "paged")?, place(copies, "copies")?) };
        *copies = paged.copies().into();
        Ok(())
    };
    status_of(ask())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_cache_get_copies(
    cache: *const ObjectCache,
    copies: *mut Copies,
) -> Status {
    let ask = || {
        // SAFETY: guaranteed by the caller.
        let (cache, copies) = unsafe { (handle(cache, "cache")?, place(copies, "copies")?) };
        *copies = cache.copies().into();
        Ok(())
    };
    status_of(ask())
}
