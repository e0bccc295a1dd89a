//! `venice_device`.

use std::ffi::{CString, c_char};
use std::time::Duration;

use venice_client::{Device, DeviceOptions, Error, Memory, Rack, ServiceAccess, wants};

use crate::arguments::{give, handle, take, text};
use crate::status::{Status, status_of};

/// `venice_device_options` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct Options {
    struct_bytes: usize,
    donors: *const c_char,
    purpose: *const c_char,
    wait_ms: u32,
    priority: u32,
    preempt: u32,
}

/// A device, and its texts for C.
#[derive(Debug)]
pub struct DeviceHandle {
    pub(crate) device: Device,
    texts: Texts,
}

/// The texts of a grant for C.
#[derive(Debug)]
pub struct Texts {
    pub(crate) node: CString,
    pub(crate) address: CString,
    pub(crate) capabilities: CString,
    pub(crate) service: CString,
}

impl Texts {
    pub(crate) fn new(
        node: &str,
        address: &str,
        capabilities: &[String],
        service: Option<&ServiceAccess>,
    ) -> Self {
        Self {
            node: c_text(node),
            address: c_text(address),
            capabilities: c_text(&capabilities.join(",")),
            service: c_text(service.map_or("", |access| &access.service)),
        }
    }
}

/// Converts a text; zeros in it become spaces.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("no zero is left")
}

impl DeviceHandle {
    fn new(device: Device) -> DeviceHandle {
        let capabilities = device.capabilities();
        let texts = Texts::new(device.node(), device.address(), capabilities, device.service());
        DeviceHandle { device, texts }
    }
}

/// Converts the options; null: the defaults.
///
/// # Safety
/// The requirements of [`crate::arguments`].
pub(crate) unsafe fn options(options: *const Options) -> Result<DeviceOptions, Error> {
    let mut meant = DeviceOptions::default();
    // SAFETY: guaranteed by the caller; every version of the struct begins with its length.
    let struct_bytes = match unsafe { options.cast::<usize>().as_ref() } {
        None => return Ok(meant),
        Some(struct_bytes) => *struct_bytes,
    };
    if struct_bytes != size_of::<Options>() {
        return Err(Error::Invalid("invalid options: begin with VENICE_DEVICE_OPTIONS".into()));
    }
    let list = |text: Option<&str>| -> Vec<String> {
        let words = text.unwrap_or_default().split(',').map(str::trim);
        words.filter(|word| !word.is_empty()).map(str::to_string).collect()
    };
    // SAFETY: guaranteed by the caller, for all of them.
    unsafe {
        let options = &*options;
        meant.donors = list(text(options.donors, "donors")?);
        meant.purpose = text(options.purpose, "purpose")?.unwrap_or_default().to_string();
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
pub unsafe extern "C" fn venice_get_device(
    rack: *const Rack,
    want: *const c_char,
    options_pointer: *const Options,
    device: *mut *mut DeviceHandle,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(device, || {
            let wants = wants(text(want, "want")?.unwrap_or_default())?;
            let [want] = &wants[..] else {
                return Err(Error::Invalid("invalid want: name one device".into()));
            };
            let rack = handle(rack, "rack")?;
            rack.get_device(want, &options(options_pointer)?).map(DeviceHandle::new)
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`]; `devices` has room for `count` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_get_devices(
    rack: *const Rack,
    wanted: *const c_char,
    options_pointer: *const Options,
    devices: *mut *mut DeviceHandle,
    count: usize,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give_all(devices, count, || {
            let wants = wants(text(wanted, "wants")?.unwrap_or_default())?;
            let wanted: usize = wants.iter().map(|want| want.count as usize).sum();
            if wanted != count {
                let said = format!("invalid count {count}: the wants name {wanted} devices");
                return Err(Error::Invalid(said));
            }
            handle(rack, "rack")?.get_devices(&wants, &options(options_pointer)?)
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`]; `devices` has room for `count` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_take_devices(
    memory: *mut Memory,
    devices: *mut *mut DeviceHandle,
    count: usize,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give_all(devices, count, || {
            let memory = memory.as_mut().ok_or_else(|| Error::Invalid("memory is NULL".into()))?;
            let granted = memory.device_count();
            if granted != count {
                let said = format!("invalid count {count}: the memory has {granted} devices");
                return Err(Error::Invalid(said));
            }
            Ok(memory.take_devices())
        })
    })
}

/// Stores new handles at their destinations.
///
/// # Safety
/// `devices` has room for `count` handles.
unsafe fn give_all(
    devices: *mut *mut DeviceHandle,
    count: usize,
    made: impl FnOnce() -> Result<Vec<Device>, Error>,
) -> Result<(), Error> {
    if devices.is_null() {
        return Err(Error::Invalid("the place for the devices is NULL".into()));
    }
    for (at, device) in made()?.into_iter().enumerate().take(count) {
        let handle = Box::into_raw(Box::new(DeviceHandle::new(device)));
        // SAFETY: guaranteed by the caller.
        unsafe { devices.add(at).write(handle) };
    }
    Ok(())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_free_device(device: *mut DeviceHandle) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(device) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_check_device(device: *const DeviceHandle) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe { handle(device, "device") }.and_then(|got| got.device.check()))
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_device_leaving_s(device: *const DeviceHandle) -> f64 {
    // SAFETY: guaranteed by the caller.
    let leaving = unsafe { device.as_ref() }.and_then(|got| got.device.leaving());
    match leaving.map(|leaving| leaving.within) {
        None => -1.0,
        Some(None) => f64::INFINITY,
        Some(Some(within)) => within.as_secs_f64(),
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_device_bytes(device: *const DeviceHandle) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { device.as_ref() }.map_or(0, |got| got.device.len_bytes())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_device_grant(device: *const DeviceHandle) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { device.as_ref() }.map_or(0, |got| got.device.grant())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_device_node(device: *const DeviceHandle) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { device.as_ref() }.map_or(c"".as_ptr(), |got| got.texts.node.as_ptr())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_device_address(device: *const DeviceHandle) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { device.as_ref() }.map_or(c"".as_ptr(), |got| got.texts.address.as_ptr())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_device_capabilities(device: *const DeviceHandle) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { device.as_ref() }.map_or(c"".as_ptr(), |got| got.texts.capabilities.as_ptr())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_device_service(device: *const DeviceHandle) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { device.as_ref() }.map_or(c"".as_ptr(), |got| got.texts.service.as_ptr())
}
