//! An open RDMA device, and the choice of its port and address.

use std::ffi::CStr;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::VerbsError;
use super::abi::{Context, Device as AbiDevice, DeviceAttr, Gid, GidEntry, PortAttr, constants};
use super::library::{Library, library};

/// Returns the names of the machine's RDMA devices.
///
/// # Errors
/// [`VerbsError::Library`] if rdma-core is not installed.
pub fn device_names() -> Result<Vec<String>, VerbsError> {
    let list = DeviceList::get(library()?);
    Ok(list.devices().iter().map(|device| list.name(*device)).collect())
}

/// An open device and its first active port. Shared by all objects made on it.
#[derive(Debug)]
pub struct Device {
    library: &'static Library,
    context: NonNull<Context>,
    name: String,
    limits: DeviceAttr,
    port_number: u8,
    port: PortAttr,
}

// SAFETY: libibverbs may be called from any thread; a context is freed only when the last owner of
// the device drops it.
unsafe impl Send for Device {}
// SAFETY: as above: its functions lock what they change.
unsafe impl Sync for Device {}

/// Address of a queue pair: the properties of its device that its peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortAddress {
    /// Address with RoCE; its index in the device's table is `gid_index`.
    pub gid: Gid,
    pub gid_index: u8,
    /// Address with InfiniBand, within the subnet.
    pub lid: u16,
    /// Largest packet, as in the header's `enum ibv_mtu`.
    pub mtu: u8,
}

/// Addresses of a port at the time of a query.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    device: String,
    /// Addresses with their indices in the device's table.
    all: Vec<(Gid, u8)>,
    lid: u16,
    mtu: u8,
}

impl Addresses {
    /// Returns the address for a peer that reaches this machine as `ip`: with RoCE, the entry that
    /// is `ip`, else the first RoCE v2 entry.
    pub(super) fn of(&self, ip: IpAddr) -> Result<PortAddress, VerbsError> {
        let wanted = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        // Link-local addresses come first in the table and do not work across namespaces.
        let routable = |entry: &&(Gid, u8)| !entry.0.0.starts_with(&[0xfe, 0x80]);
        let (gid, gid_index) = *self
            .all
            .iter()
            .find(|(gid, _)| gid.0 == wanted)
            .or_else(|| self.all.iter().find(routable))
            .or_else(|| self.all.first())
            .ok_or_else(|| VerbsError::NoAddress { device: self.device.clone() })?;
        Ok(PortAddress { gid, gid_index, lid: self.lid, mtu: self.mtu })
    }
}

impl Device {
    /// Opens the device called `name`, or the first with an active port.
    ///
    /// # Errors
    /// Fails if there is no device ([`VerbsError::NoDevice`]), none can be opened, or rdma-core is
    /// missing.
    pub fn open(name: Option<&str>) -> Result<Arc<Self>, VerbsError> {
        let library = library()?;
        let list = DeviceList::get(library);
        let mut refused = None;
        for device in list.devices() {
            let this_name = list.name(*device);
            if name.is_some_and(|name| name != this_name) {
                continue;
            }
            match Self::open_one(library, *device, this_name) {
                Ok(Some(device)) => return Ok(Arc::new(device)),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        let none = VerbsError::NoDevice { wanted: name.map(str::to_owned) };
        Err(refused.unwrap_or(none))
    }

    /// Opens one device; `None` if it has no active port.
    fn open_one(
        library: &'static Library,
        device: *mut AbiDevice,
        name: String,
    ) -> Result<Option<Self>, VerbsError> {
        let failed = |step, source| VerbsError::Call { device: name.clone(), step, source };
        // SAFETY: the device is of a list that is not freed yet.
        let context = NonNull::new(unsafe { (library.open_device)(device) })
            .ok_or_else(|| failed("opening it", std::io::Error::last_os_error()))?;
        // SAFETY: all zeroes is a valid value of this plain C structure.
        let limits: DeviceAttr = unsafe { std::mem::zeroed() };
        let port = PortAttr::default();
        let mut this = Self { library, context, name: name.clone(), limits, port_number: 0, port };
        // SAFETY: the context is open; the structure is the one the function fills.
        let code = unsafe { (library.query_device)(context.as_ptr(), &mut this.limits) };
        this.check("querying its limits", code)?;
        for number in 1..=this.limits.phys_port_cnt {
            let mut port = PortAttr::default();
            // SAFETY: as above.
            let code = unsafe { (library.query_port)(context.as_ptr(), number, &mut port) };
            this.check("querying its port", code)?;
            if port.state == constants::PORT_ACTIVE {
                this.port_number = number;
                this.port = port;
                return Ok(Some(this));
            }
        }
        Ok(None)
    }

    /// Returns its name, as in `rdma link`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if it supports atomic operations.
    pub fn has_atomics(&self) -> bool {
        self.limits.atomic_cap > 0
    }

    pub(super) fn limits(&self) -> &DeviceAttr {
        &self.limits
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn context(&self) -> *mut Context {
        self.context.as_ptr()
    }

    /// Returns the descriptors that the library keeps open for it.
    pub(super) fn raw_fds(&self) -> [RawFd; 2] {
        // SAFETY: the context is open.
        let context = unsafe { self.context.as_ref() };
        [context.cmd_fd, context.async_fd]
    }

    pub(super) fn port_number(&self) -> u8 {
        self.port_number
    }

    pub(super) fn is_ethernet(&self) -> bool {
        self.port.link_layer == constants::LINK_LAYER_ETHERNET
    }

    /// Returns the address for a peer that reaches this machine as `ip`.
    pub(super) fn address(&self, ip: IpAddr) -> Result<PortAddress, VerbsError> {
        self.addresses()?.of(ip)
    }

    /// Returns the present addresses of its port.
    pub(super) fn addresses(&self) -> Result<Addresses, VerbsError> {
        let mtu = self.port.active_mtu as u8;
        let lid = self.port.lid;
        let all = match self.is_ethernet() {
            true => {
                let usable = |entry: &GidEntry| entry.gid_type == constants::GID_TYPE_ROCE_V2;
                let entries = self.gid_entries().filter(usable);
                entries.map(|entry| (entry.gid, entry.gid_index as u8)).collect()
            }
            false => {
                let mut gid = Gid::default();
                let (context, port) = (self.context(), self.port_number);
                // SAFETY: the context is open; entry 0 always exists.
                let code = unsafe { (self.library.query_gid)(context, port, 0, &mut gid) };
                self.check("querying its addresses", code)?;
                vec![(gid, 0)]
            }
        };
        Ok(Addresses { device: self.name.clone(), all, lid, mtu })
    }

    fn gid_entries(&self) -> impl Iterator<Item = GidEntry> {
        let count = self.port.gid_tbl_len.clamp(0, 256) as u32;
        (0..count).filter_map(|index| {
            let mut entry = GidEntry::default();
            let port = u32::from(self.port_number);
            // SAFETY: the context is open; the size passed is that of the structure.
            let code = unsafe {
                let size = size_of::<GidEntry>();
                (self.library.query_gid_ex)(self.context(), port, index, &mut entry, 0, size)
            };
            (code == 0).then_some(entry)
        })
    }

    /// Checks the result of functions that return 0 or an error's number.
    pub(super) fn check(&self, step: &'static str, code: i32) -> Result<(), VerbsError> {
        match code {
            0 => Ok(()),
            // Some functions return -1 and leave the number in errno.
            -1 => Err(self.failed(step)),
            number => Err(VerbsError::Call {
                device: self.name.clone(),
                step,
                source: std::io::Error::from_raw_os_error(number.abs()),
            }),
        }
    }

    /// Returns the error of functions that return null and leave the number in errno.
    pub(super) fn failed(&self, step: &'static str) -> VerbsError {
        let source = std::io::Error::last_os_error();
        VerbsError::Call { device: self.name.clone(), step, source }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every object made on it keeps it alive; none is left.
        unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

/// The library's list of devices, freed on drop.
struct DeviceList {
    library: &'static Library,
    list: *mut *mut AbiDevice,
    len: usize,
}

impl DeviceList {
    fn get(library: &'static Library) -> Self {
        let mut len = 0;
        // SAFETY: it fills `len`; a null list means that the kernel has no RDMA at all.
        let list = unsafe { (library.get_device_list)(&mut len) };
        Self { library, list, len: if list.is_null() { 0 } else { len.max(0) as usize } }
    }

    fn devices(&self) -> &[*mut AbiDevice] {
        match self.list.is_null() {
            true => &[],
            // SAFETY: the library reports that many devices in the list.
            false => unsafe { std::slice::from_raw_parts(self.list, self.len) },
        }
    }

    fn name(&self, device: *mut AbiDevice) -> String {
        // SAFETY: the device is of this list; its name is a string within it.
        let name = unsafe { CStr::from_ptr((self.library.get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: our own list, freed once.
            unsafe { (self.library.free_device_list)(self.list) };
        }
    }
}
