//! Devices: one for each grant.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use venice_accel::cuda::SERVICE;
use venice_rack::types::ServiceAccess;

use crate::call::*;
use crate::link::Link;

/// Variables that name the grants, and their nodes.
const ENDPOINTS: &str = "VENICE_GRANT_ENDPOINTS";
const NODES: &str = "VENICE_GRANT_NODE";
/// Variable of programs of CUDA: the devices that they are to see.
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// Number of a device that the program is not to see.
const HIDDEN: c_int = -1;
/// Version of the driver API that `functions.txt` lists: 13.0.
const NEWEST_VERSION: c_int = 13000;
/// Attributes of what no remote device can do, which are told as 0: mapped and managed memory,
/// pageable access, operations on memory in streams, cooperation of devices, virtual memory, handles
/// of other processes, access of network cards, arrays mapped later, tensor maps, multicast.
const ABSENT: [c_int; 30] = [
    19, 83, 84, 88, 89, 91, 92, 93, 94, 96, 98, 100, 101, 102, 103, 104, 110, 113, 116, 119, 121,
    122, 123, 124, 125, 127, 128, 129, 132, 134,
];

/// A device.
pub struct Device {
    pub number: c_int,
    pub link: Arc<Link>,
    /// Handle of the primary context.
    pub primary: OnceLock<usize>,
    uses: AtomicI64,
}

/// All granted devices.
static GRANTED: OnceLock<Vec<Device>> = OnceLock::new();
/// Those that the program is to see, by their numbers.
static VISIBLE: OnceLock<Vec<&'static Device>> = OnceLock::new();
/// Process that opened the links; a child of it has no devices.
static PROCESS: OnceLock<u32> = OnceLock::new();

impl Device {
    /// Counts a use of the primary context.
    pub fn add_use(&self, uses: i64) {
        self.uses.fetch_add(uses, Ordering::Relaxed);
    }

    /// Counts a use less; false if there is none.
    pub fn remove_use(&self) -> bool {
        let less = |uses| (uses > 0).then_some(uses - 1);
        self.uses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Returns the uses of the primary context.
    pub fn uses(&self) -> i64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Returns an attribute.
    pub fn attribute(&self, name: c_int) -> Option<c_int> {
        let known = self.link.description.attributes.iter().find(|it| it.name == name)?;
        Some(if ABSENT.contains(&name) { 0 } else { known.value })
    }
}

/// Opens the links of all grants, once.
pub fn granted() -> &'static [Device] {
    GRANTED.get_or_init(|| {
        let _ = PROCESS.set(std::process::id());
        let text = std::env::var(ENDPOINTS).unwrap_or_default();
        let nodes = std::env::var(NODES).unwrap_or_default();
        let nodes: Vec<_> = nodes.split(',').collect();
        let granted: Vec<Option<ServiceAccess>> = serde_json::from_str(&text).unwrap_or_default();
        let mut links = Vec::new();
        for (at, access) in granted.iter().enumerate() {
            let Some(access) = access.as_ref().filter(|access| access.service == SERVICE) else {
                continue;
            };
            let node = nodes.get(at).copied().unwrap_or("an unknown node");
            match Link::open(access) {
                Ok(link) => links.push(link),
                Err(error) => eprintln!("venice: accelerator at {node} cannot be used: {error}"),
            }
        }
        let uuids: Vec<_> = links.iter().map(|it| uuid_text(&it.description.uuid)).collect();
        let order = visible(std::env::var(VISIBLE_DEVICES).ok().as_deref(), &uuids);
        let number = |place| order.iter().position(|it| *it == place);
        let device = |(place, link)| Device {
            number: number(place).map_or(HIDDEN, |it| it as c_int),
            link,
            primary: OnceLock::new(),
            uses: AtomicI64::new(0),
        };
        links.into_iter().enumerate().map(device).collect()
    })
}

/// Returns the devices that the program is to see, by their numbers.
pub fn devices() -> &'static [&'static Device] {
    VISIBLE.get_or_init(|| {
        let mut all: Vec<_> = granted().iter().filter(|it| it.number != HIDDEN).collect();
        all.sort_by_key(|it| it.number);
        all
    })
}

/// Returns the text of a UUID, as the vendor's tools have it.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|it| format!("{it:02x}")).collect();
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

/// Returns the places of the devices that a variable names, by their places or the beginnings of their
/// UUIDs, up to the first word that names none. All without the variable.
fn visible(variable: Option<&str>, uuids: &[String]) -> Vec<usize> {
    let Some(variable) = variable else { return (0..uuids.len()).collect() };
    let mut found = Vec::new();
    for word in variable.split(',').map(str::trim) {
        let place = match word.strip_prefix("GPU-") {
            Some(_) => uuids.iter().position(|uuid| uuid.starts_with(word)),
            None => word.parse().ok().filter(|place| *place < uuids.len()),
        };
        match place {
            Some(place) if !found.contains(&place) => found.push(place),
            Some(_) | None => break,
        }
    }
    found
}

/// Fails before `cuInit`, and in a child of the process that called it.
pub fn initialized() -> Done {
    let is_same = || PROCESS.get().is_some_and(|it| *it == std::process::id());
    VISIBLE.get().filter(|_| is_same()).map(drop).ok_or(NOT_INITIALIZED)
}

/// Returns the device that bytes belong to: addresses differ from device to device.
pub fn owner(address: u64, bytes: u64) -> Option<&'static Device> {
    devices().iter().copied().find(|it| it.link.memory_at(address, bytes).is_some())
}

/// Returns the device of a number.
pub fn device(number: c_int) -> Done<&'static Device> {
    initialized()?;
    let at = usize::try_from(number).map_err(|_| INVALID_DEVICE)?;
    devices().get(at).copied().ok_or(INVALID_DEVICE)
}

/// Returns the version of the driver API that all devices have, and this library.
pub fn api_version() -> c_int {
    let lowest = granted().iter().map(|it| it.link.description.version).min();
    lowest.unwrap_or(0).min(NEWEST_VERSION)
}

exported! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if devices().is_empty() { Err(NO_DEVICE) } else { initialized() }
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put(version, api_version()) }
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        initialized()?;
        // SAFETY: as above.
        unsafe { put(count, devices().len() as c_int) }
    }

    fn cuDeviceGet(at: *mut c_int, number: c_int) {
        let device = device(number)?;
        // SAFETY: as above.
        unsafe { put(at, device.number) }
    }

    fn cuDeviceGetName(name: *mut c_char, room: c_int, number: c_int) {
        let device = device(number)?;
        let room = usize::try_from(room).map_err(|_| INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put_text(&device.link.description.name, name, room) }
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], number: c_int) {
        let device = device(number)?;
        // SAFETY: as above.
        unsafe { put(uuid, device.link.description.uuid) }
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], number: c_int) {
        let device = device(number)?;
        // SAFETY: as above.
        unsafe { put(uuid, device.link.description.uuid) }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, number: c_int) {
        let device = device(number)?;
        // SAFETY: as above.
        unsafe { put(bytes, device.link.description.bytes as usize) }
    }

    fn cuDeviceGetAttribute(value: *mut c_int, name: c_int, number: c_int) {
        let told = device(number)?.attribute(name).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put(value, told) }
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, number: c_int) {
        let device = device(number)?;
        let room = usize::try_from(room).map_err(|_| INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put_text(&device.link.description.pci, text, room) }
    }

    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, number: c_int) {
        let device = device(number)?;
        // SAFETY: as above.
        unsafe { put(major, device.attribute(75).unwrap_or(0)) }?;
        // SAFETY: as above.
        unsafe { put(minor, device.attribute(76).unwrap_or(0)) }
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, number: c_int, peer: c_int) {
        device(number)?;
        device(peer)?;
        // SAFETY: as above.
        unsafe { put(can, 0) }
    }

    fn cuDeviceGetP2PAttribute(value: *mut c_int, _name: c_int, number: c_int, peer: c_int) {
        device(number)?;
        device(peer)?;
        // SAFETY: as above.
        unsafe { put(value, 0) }
    }

    fn cuDeviceGetByPCIBusId(number: *mut c_int, bus: *const c_char) {
        initialized()?;
        // SAFETY: the program passes a string.
        let bus = unsafe { text(bus) }.map_err(|_| INVALID_VALUE)?;
        let is_it = |it: &&&Device| it.link.description.pci.eq_ignore_ascii_case(bus);
        let found = devices().iter().find(is_it).ok_or(INVALID_DEVICE)?;
        // SAFETY: as above.
        unsafe { put(number, found.number) }
    }

    fn cuDeviceGetExecAffinitySupport(value: *mut c_int, _kind: c_int, number: c_int) {
        device(number)?;
        // SAFETY: as above.
        unsafe { put(value, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_chooses_devices() {
        let uuids = [[1; 16], [2; 16], [3; 16]].map(|it| uuid_text(&it));
        assert_eq!(visible(None, &uuids), [0, 1, 2]);
        assert_eq!(visible(Some("2,0"), &uuids), [2, 0]);
        assert_eq!(visible(Some("GPU-0202, 0,7,1"), &uuids), [1, 0]);
        assert_eq!(visible(Some("1,1"), &uuids), [1]);
        assert!(visible(Some(""), &uuids).is_empty());
        assert!(visible(Some("-1"), &uuids).is_empty());
    }
}
