//! `venice_rack` and `venice_options`.

use std::ffi::c_char;
use std::time::Duration;

use venice_client::{Error, MemoryOptions, Rack, ReclaimTo, UnknownPolicy, wants};

use crate::arguments::{give, handle, place, take, text};
use crate::status::{Status, status_of};

/// `venice_options` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct Options {
    struct_bytes: usize,
    donors: *const c_char,
    port: *const c_char,
    node: *const c_char,
    purpose: *const c_char,
    placement: *const c_char,
    reclaim_to: *const c_char,
    most_under_way: u32,
    copies: u32,
    wait_ms: u32,
    priority: u32,
    preempt: u32,
    bandwidth_bps: u64,
    devices: *const c_char,
}

/// Converts the options; null: the defaults.
///
/// # Safety
/// The requirements of [`crate::arguments`].
pub unsafe fn options(options: *const Options) -> Result<MemoryOptions, Error> {
    let mut meant = MemoryOptions::default();
    // SAFETY: guaranteed by the caller; every version of the struct begins with its length.
    let struct_bytes = match unsafe { options.cast::<usize>().as_ref() } {
        None => return Ok(meant),
        Some(struct_bytes) => *struct_bytes,
    };
    if struct_bytes != size_of::<Options>() {
        return Err(Error::Invalid("invalid options: begin with VENICE_OPTIONS".into()));
    }
    // SAFETY: guaranteed by the caller, for all of them.
    unsafe {
        let options = &*options;
        if let Some(donors) = text(options.donors, "donors")? {
            let names = donors.split(',').map(str::trim).filter(|name| !name.is_empty());
            meant.donors = names.map(str::to_string).collect();
        }
        if let Some(port) = text(options.port, "port")? {
            meant.port = Some(port.parse().map_err(Error::Invalid)?);
        }
        meant.node = text(options.node, "node")?.map(str::to_string);
        meant.devices = wants(text(options.devices, "devices")?.unwrap_or_default())?;
        meant.purpose = text(options.purpose, "purpose")?.unwrap_or_default().to_string();
        if let Some(placement) = text(options.placement, "placement")? {
            let wrong = |error: UnknownPolicy| Error::Invalid(error.to_string());
            meant.placement = Some(placement.parse().map_err(wrong)?);
        }
        if let Some(places) = text(options.reclaim_to, "reclaim_to")? {
            meant.reclaim_to = ReclaimTo::list(places).map_err(Error::Invalid)?;
        }
        meant.bandwidth_bps = options.bandwidth_bps;
        if options.most_under_way > 0 {
            meant.most_under_way = options.most_under_way as usize;
        }
        meant.copies = (options.copies > 0).then_some(options.copies);
        meant.wait = Duration::from_millis(options.wait_ms.into());
        meant.preempt = options.preempt != 0;
        if options.priority > 0 {
            let wrong = |_| Error::Invalid("priority too high: at most 255".into());
            meant.priority = u8::try_from(options.priority).map_err(wrong)?;
        }
    }
    Ok(meant)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_connect(monitor: *const c_char, rack: *mut *mut Rack) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(rack, || match text(monitor, "monitor")? {
            Some(monitor) => Rack::connect_to(monitor),
            None => Rack::connect(),
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_disconnect(rack: *mut Rack) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(rack) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_free_bytes(rack: *const Rack, bytes: *mut u64) -> Status {
    let ask = || {
        // SAFETY: guaranteed by the caller.
        let (rack, bytes) = unsafe { (handle(rack, "rack")?, place(bytes, "bytes")?) };
        *bytes = rack.free_bytes()?;
        Ok(())
    };
    status_of(ask())
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use venice_client::Policy;

    use super::*;

    fn with(placement: *const c_char) -> Result<MemoryOptions, Error> {
        meant(&Options { placement, ..nothing() })
    }

    fn nothing() -> Options {
        Options {
            struct_bytes: size_of::<Options>(),
            donors: null(),
            port: null(),
            node: null(),
            purpose: null(),
            placement: null(),
            reclaim_to: null(),
            most_under_way: 0,
            copies: 0,
            wait_ms: 0,
            priority: 0,
            preempt: 0,
            bandwidth_bps: 0,
            devices: null(),
        }
    }

    fn meant(said: &Options) -> Result<MemoryOptions, Error> {
        // SAFETY: all that it points to lives longer than this call.
        unsafe { options(said) }
    }

    #[test]
    fn reclaim_to_is_parsed() {
        let to = |places: *const c_char| meant(&Options { reclaim_to: places, ..nothing() });
        assert_eq!(to(null()).unwrap().reclaim_to, [ReclaimTo::Donors, ReclaimTo::Local]);
        let places = to(c"donors, disk:/".as_ptr()).unwrap().reclaim_to;
        assert_eq!(places, [ReclaimTo::Donors, ReclaimTo::Disk("/".into())]);
        for (wrong, said) in [
            (c"tape", "\"tape\""),
            (c"disk:/no/such", "is not a directory"),
            (c"", "unknown place"),
        ] {
            let error = to(wrong.as_ptr()).unwrap_err();
            assert!(matches!(&error, Error::Invalid(text) if text.contains(said)), "{error}");
        }
    }

    #[test]
    fn placement_is_parsed_or_default() {
        assert_eq!(with(null()).unwrap().placement, None);
        assert_eq!(with(c"pack".as_ptr()).unwrap().placement, Some(Policy::Pack));
        assert_eq!(with(c"spread".as_ptr()).unwrap().placement, Some(Policy::Spread));
        let error = with(c"widely".as_ptr()).unwrap_err().to_string();
        assert!(error.contains("nearest, spread or pack"), "{error}");
    }
}
