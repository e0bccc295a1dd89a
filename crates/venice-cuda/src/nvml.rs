//! The management library, as far as programs ask it which devices there are.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::LazyLock;

use venice_accel::cuda::wire::opcode;

use crate::call::{Done, put, put_text};
use crate::device::{Device, api_version, granted, uuid_text};

/// Codes of NVML.
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const GPU_IS_LOST: c_int = 15;

/// Memory of a device, as `nvmlMemory_t`.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// Memory of a device, as `nvmlMemory_v2_t`.
#[repr(C)]
struct Memory2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Place on the bus, as `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    old_bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: [c_uint; 2],
    bus_id: [u8; 32],
}

/// Attributes of devices: domain, bus and device on the PCI bus.
const PCI: [c_int; 3] = [50, 33, 34];

/// Handles are places from 1 on.
fn device(handle: usize) -> Done<&'static Device> {
    handle.checked_sub(1).and_then(|at| granted().get(at)).ok_or(INVALID_ARGUMENT)
}

fn handle(at: *mut usize, place: Option<usize>) -> Done {
    let place = place.filter(|place| *place < granted().len()).ok_or(NOT_FOUND)?;
    // SAFETY: the program passes room for a handle.
    unsafe { put(at, place + 1) }.map_err(|_| INVALID_ARGUMENT)
}

fn uuid(device: &Device) -> String {
    uuid_text(&device.link.description.uuid)
}

/// Returns the place of a device. Variables that hide devices of CUDA hide none here.
fn place_of(device: &Device) -> c_uint {
    granted().iter().position(|it| std::ptr::eq(it, device)).map_or(0, |it| it as c_uint)
}

fn told(value: &str, at: *mut c_char, room: c_uint) -> Done {
    // SAFETY: the program has the room that it names.
    unsafe { put_text(value, at, room as usize) }.map_err(|_| INVALID_ARGUMENT)
}

crate::call::exported! {
    fn nvmlInit() {
        granted();
        Ok(())
    }

    fn nvmlInit_v2() {
        granted();
        Ok(())
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        granted();
        Ok(())
    }

    fn nvmlShutdown() {
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(at: *mut c_char, room: c_uint) {
        told(concat!("550.0-venice-", env!("CARGO_PKG_VERSION")), at, room)
    }

    fn nvmlDeviceGetCount(count: *mut c_uint) {
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put(count, granted().len() as c_uint) }.map_err(|_| INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetCount_v2(count: *mut c_uint) {
        // SAFETY: as above.
        unsafe { put(count, granted().len() as c_uint) }.map_err(|_| INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetHandleByIndex(place: c_uint, at: *mut usize) {
        handle(at, usize::try_from(place).ok())
    }

    fn nvmlDeviceGetHandleByIndex_v2(place: c_uint, at: *mut usize) {
        handle(at, usize::try_from(place).ok())
    }

    fn nvmlDeviceGetHandleByUUID(text: *const c_char, at: *mut usize) {
        // SAFETY: the program passes a string.
        let named = unsafe { crate::call::text(text) }.map_err(|_| INVALID_ARGUMENT)?;
        handle(at, granted().iter().position(|it| uuid(it) == named))
    }

    fn nvmlDeviceGetIndex(handle: usize, place: *mut c_uint) {
        let device = device(handle)?;
        // SAFETY: as above.
        unsafe { put(place, place_of(device)) }.map_err(|_| INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetName(handle: usize, at: *mut c_char, room: c_uint) {
        told(&device(handle)?.link.description.name, at, room)
    }

    fn nvmlDeviceGetUUID(handle: usize, at: *mut c_char, room: c_uint) {
        told(&uuid(device(handle)?), at, room)
    }

    fn nvmlDeviceGetMemoryInfo(handle: usize, at: *mut Memory) {
        let link = &device(handle)?.link;
        let free: u64 = link.call(opcode::FREE_BYTES, &[]).map_err(|_| GPU_IS_LOST)?;
        let total = link.description.bytes;
        let memory = Memory { total, free, used: total.saturating_sub(free) };
        // SAFETY: as above.
        unsafe { put(at, memory) }.map_err(|_| INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: usize, at: *mut Memory2) {
        let link = &device(handle)?.link;
        // SAFETY: as above.
        let at = unsafe { at.as_mut() }.ok_or(INVALID_ARGUMENT)?;
        let free: u64 = link.call(opcode::FREE_BYTES, &[]).map_err(|_| GPU_IS_LOST)?;
        let total = link.description.bytes;
        (at.total, at.free, at.used, at.reserved) = (total, free, total.saturating_sub(free), 0);
        Ok(())
    }

    fn nvmlDeviceGetPciInfo_v3(handle: usize, at: *mut PciInfo) {
        let its = device(handle)?;
        let text = &its.link.description.pci;
        if text.is_empty() {
            return Err(NOT_SUPPORTED);
        }
        let mut info = PciInfo {
            old_bus_id: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            ids: [0; 2],
            bus_id: [0; 32],
        };
        let [domain, bus, slot] = PCI.map(|it| its.attribute(it).unwrap_or(0).cast_unsigned());
        (info.domain, info.bus, info.device) = (domain, bus, slot);
        for (into, from) in info.old_bus_id.iter_mut().take(15).zip(text.bytes()) {
            *into = from;
        }
        // Its domain has eight digits.
        for (into, from) in info.bus_id.iter_mut().take(31).zip(format!("0000{text}").bytes()) {
            *into = from;
        }
        // SAFETY: as above.
        unsafe { put(at, info) }.map_err(|_| INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetCudaComputeCapability(handle: usize, major: *mut c_int, minor: *mut c_int) {
        let device = device(handle)?;
        let [major_value, minor_value] = [75, 76].map(|it| device.attribute(it).unwrap_or(0));
        // SAFETY: as above.
        unsafe { put(major, major_value) }.map_err(|_| INVALID_ARGUMENT)?;
        // SAFETY: as above.
        unsafe { put(minor, minor_value) }.map_err(|_| INVALID_ARGUMENT)
    }

    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) {
        // SAFETY: as above.
        unsafe { put(version, api_version()) }.map_err(|_| INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetUtilizationRates(_handle: usize, _rates: *mut c_uint) {
        Err(NOT_SUPPORTED)
    }
}

/// Returns a description of a code.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    static OTHER: LazyLock<CString> = LazyLock::new(CString::default);
    let text = match code {
        0 => c"Success",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        GPU_IS_LOST => c"GPU is lost",
        _ => return OTHER.as_ptr(),
    };
    text.as_ptr()
}
