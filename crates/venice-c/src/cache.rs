//! `venice_cache`.

use std::time::Duration;

use venice_client::{CacheOptions, CacheStats, Error, Eviction, ObjectCache, Rack};

use crate::arguments::{give, handle, items, place, room, take};
use crate::rack::{Options, options};
use crate::status::{Status, set_last_error, status_of};

/// `venice_cache_options` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct RawCacheOptions {
    struct_bytes: usize,
    evict_oldest: bool,
    max_age_s: f64,
}

/// `venice_cache_stats` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct Stats {
    objects: u64,
    value_bytes: u64,
    capacity_bytes: u64,
    puts: u64,
    hits: u64,
    misses: u64,
    evictions: u64,
    expired: u64,
    lost: u64,
}

impl From<CacheStats> for Stats {
    fn from(stats: CacheStats) -> Stats {
        let CacheStats {
            objects,
            value_bytes,
            capacity_bytes,
            puts,
            hits,
            misses,
            evictions,
            expired,
            lost,
        } = stats;
        Stats { objects, value_bytes, capacity_bytes, puts, hits, misses, evictions, expired, lost }
    }
}

/// Converts the options; null: the defaults.
///
/// # Safety
/// The requirements of [`crate::arguments`].
unsafe fn cache_options(options: *const RawCacheOptions) -> Result<CacheOptions, Error> {
    // SAFETY: guaranteed by the caller; every version of the struct begins with its length.
    let struct_bytes = match unsafe { options.cast::<usize>().as_ref() } {
        None => return Ok(CacheOptions::default()),
        Some(struct_bytes) => *struct_bytes,
    };
    if struct_bytes != size_of::<RawCacheOptions>() {
        return Err(Error::Invalid(
            "invalid cache options: begin with VENICE_CACHE_OPTIONS".into(),
        ));
    }
    // SAFETY: guaranteed by the caller.
    let options = unsafe { &*options };
    let eviction = if options.evict_oldest { Eviction::Oldest } else { Eviction::default() };
    let max_age = Duration::try_from_secs_f64(options.max_age_s)
        .map_err(|error| Error::Invalid(format!("max_age_s: {error}")))?;
    Ok(CacheOptions { eviction, max_age: (!max_age.is_zero()).then_some(max_age) })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_cache_open(
    rack: *const Rack,
    len_bytes: u64,
    wanted: *const Options,
    raw_options: *const RawCacheOptions,
    cache: *mut *mut ObjectCache,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(cache, || {
            let (memory, how) = (options(wanted)?, cache_options(raw_options)?);
            handle(rack, "rack")?.object_cache(len_bytes, &memory, &how)
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_cache_close(cache: *mut ObjectCache) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(cache) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_put(
    cache: *const ObjectCache,
    key: *const u8,
    key_bytes: usize,
    value: *const u8,
    value_bytes: usize,
) -> Status {
    // SAFETY: guaranteed by the caller.
    let put = || unsafe {
        let (key, value) = (items(key, key_bytes, "key")?, items(value, value_bytes, "value")?);
        handle(cache, "cache")?.put(key, value)
    };
    status_of(put())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_get(
    cache: *const ObjectCache,
    key: *const u8,
    key_bytes: usize,
    buffer: *mut u8,
    buffer_bytes: usize,
    value_bytes: *mut usize,
) -> Status {
    let mut status = Status::Ok;
    let mut get = || {
        // SAFETY: guaranteed by the caller.
        let (found, buffer, len) = unsafe {
            let found = handle(cache, "cache")?.get(items(key, key_bytes, "key")?)?;
            (found, room(buffer, buffer_bytes, "buffer")?, place(value_bytes, "value_bytes")?)
        };
        *len = found.as_ref().map_or(0, Vec::len);
        match found {
            None => {
                status = Status::NotFound;
                set_last_error("no object has this key".into());
            }
            Some(value) if value.len() > buffer_bytes => {
                status = Status::TooSmall;
                set_last_error(format!(
                    "buffer too small: the value is {} bytes, the buffer {buffer_bytes}",
                    value.len()
                ));
            }
            Some(value) => buffer[..value.len()].copy_from_slice(&value),
        }
        Ok(())
    };
    match status_of(get()) {
        Status::Ok => status,
        failed => failed,
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_delete(
    cache: *const ObjectCache,
    key: *const u8,
    key_bytes: usize,
) -> Status {
    // SAFETY: guaranteed by the caller.
    let delete = || unsafe { Ok(handle(cache, "cache")?.delete(items(key, key_bytes, "key")?)) };
    match delete() {
        Ok(true) => Status::Ok,
        Ok(false) => {
            set_last_error("no object has this key".into());
            Status::NotFound
        }
        Err(error) => status_of(Err(error)),
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_cache_get_stats(
    cache: *const ObjectCache,
    stats: *mut Stats,
) -> Status {
    let ask = || {
        // SAFETY: guaranteed by the caller.
        let (cache, stats) = unsafe { (handle(cache, "cache")?, place(stats, "stats")?) };
        *stats = cache.stats().into();
        Ok(())
    };
    status_of(ask())
}
