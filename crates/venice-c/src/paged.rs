//! `venice_paged` and `venice_region`.

use std::ffi::{c_char, c_void};

use venice_client::{Error, PageSize, PagedMemory, PagedRegion, Rack};

use crate::arguments::{give, handle, take, text};
use crate::rack::{Options, options};
use crate::status::{Status, status_of};

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_paged_open(
    rack: *const Rack,
    len_bytes: u64,
    local_bytes: u64,
    wanted: *const Options,
    paged: *mut *mut PagedMemory,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(paged, || {
            handle(rack, "rack")?.paged_memory(len_bytes, local_bytes, &options(wanted)?)
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_paged_close(paged: *mut PagedMemory) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(paged) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_local_bytes(paged: *const PagedMemory) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { paged.as_ref() }.map_or(0, PagedMemory::local_bytes)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_resident_bytes(paged: *const PagedMemory) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { paged.as_ref() }.map_or(0, PagedMemory::resident_bytes)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_set_local_bytes(
    paged: *const PagedMemory,
    local_bytes: u64,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(
        unsafe { handle(paged, "paged") }.and_then(|paged| paged.set_local_bytes(local_bytes)),
    )
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_map(
    paged: *const PagedMemory,
    len_bytes: u64,
    page_size: *const c_char,
    region: *mut *mut PagedRegion,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(region, || {
            let size = match text(page_size, "page_size")? {
                Some(name) => name.parse().map_err(Error::Invalid)?,
                None => PageSize::default(),
            };
            handle(paged, "paged")?.map_by(len_bytes, size)
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_unmap(region: *mut PagedRegion) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(region) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_region_address(region: *const PagedRegion) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    unsafe { region.as_ref() }.map_or(std::ptr::null_mut(), |region| region.as_ptr().cast())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_region_bytes(region: *const PagedRegion) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { region.as_ref() }.map_or(0, PagedRegion::len_bytes)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_advise(
    region: *const PagedRegion,
    offset: usize,
    len_bytes: usize,
    hint: *const c_char,
) -> Status {
    let advise = || {
        // SAFETY: guaranteed by the caller.
        let (region, hint) = unsafe { (handle(region, "region")?, text(hint, "hint")?) };
        let hint = hint.ok_or_else(|| Error::Invalid("hint is NULL".into()))?;
        region.advise(offset, len_bytes, hint.parse().map_err(Error::Invalid)?)
    };
    status_of(advise())
}
