//! The platform and its devices: one for each granted accelerator.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError, Weak};

use opencl_sys::*;
use venice_accel::opencl::session::{Session, Sink};
use venice_accel::opencl::wire::{Notice, Parameter};
use venice_accel::opencl::{PLATFORM_NAME, SERVICE, losses};
use venice_rack::types::ServiceAccess;

use crate::call::{Done, Out, array, code, store};
use crate::event::Event;
use crate::object::{Object, Shared, bodies};
use crate::output;

/// Variables in which `venice run` and `venice get` describe the grants.
const ENDPOINTS: &str = "VENICE_GRANT_ENDPOINTS";
const NODES: &str = "VENICE_GRANT_NODE";
/// Most devices: each has a bit in masks.
const MAX_DEVICES: usize = 64;
/// Suffix of the platform's own extension functions.
const SUFFIX: &str = "VENICE";

/// Extensions of the kernel language, which need no function of the driver.
const EXTENSIONS: &[&str] = &[
    "cl_khr_byte_addressable_store",
    "cl_khr_global_int32_base_atomics",
    "cl_khr_global_int32_extended_atomics",
    "cl_khr_local_int32_base_atomics",
    "cl_khr_local_int32_extended_atomics",
    "cl_khr_int64_base_atomics",
    "cl_khr_int64_extended_atomics",
    "cl_khr_fp64",
    "cl_khr_fp16",
    "cl_khr_3d_image_writes",
    "cl_khr_depth_images",
    "cl_khr_image2d_from_buffer",
    "cl_khr_extended_bit_ops",
    "cl_khr_integer_dot_product",
    "cl_khr_expect_assume",
    "cl_khr_select_fprounding_mode",
    "cl_khr_il_program",
    "cl_amd_media_ops",
    "cl_nv_pragma_unroll",
    "cl_nv_compiler_options",
    "cl_intel_subgroups",
];

bodies! {
    Platform: CL_INVALID_PLATFORM;
    Device: CL_INVALID_DEVICE;
}

/// The platform.
pub struct Platform {
    pub devices: Vec<Shared<Device>>,
    /// Version of OpenCL: the lowest of the devices.
    version: (u32, u32),
}

/// A granted accelerator.
pub struct Device {
    /// Place among the devices; its bit in masks.
    pub index: usize,
    pub session: Arc<Session>,
    /// Number of its grant.
    grant: u64,
    parameters: HashMap<cl_device_info, Vec<u8>>,
    /// Events that notices are to come for.
    pending: Mutex<HashMap<u64, Shared<Event>>>,
    /// Places of released buffers that the donor still uses.
    leaving: Mutex<HashMap<u64, u64>>,
    /// Errors of objects that could not be made, by id.
    failures: Mutex<HashMap<u64, cl_int>>,
    background: Once,
}

static PLATFORM: LazyLock<Option<Shared<Platform>>> = LazyLock::new(open);

/// Opens a session with each granted accelerator. One that cannot be opened is told of, and left out.
fn open() -> Option<Shared<Platform>> {
    let text = std::env::var(ENDPOINTS).ok()?;
    let nodes = std::env::var(NODES).unwrap_or_default();
    let nodes: Vec<_> = nodes.split(',').collect();
    let granted: Vec<Option<ServiceAccess>> = serde_json::from_str(&text).ok()?;
    let mut devices: Vec<Shared<Device>> = Vec::new();
    for (at, access) in granted.iter().enumerate() {
        let Some(access) = access.as_ref().filter(|access| access.service == SERVICE) else {
            continue;
        };
        let node = nodes.get(at).copied().unwrap_or("an unknown node");
        if devices.len() == MAX_DEVICES {
            eprintln!("venice: accelerator at {node} is left out: {MAX_DEVICES} are in use");
            break;
        }
        match Session::open(access) {
            Ok(session) => {
                devices.push(Device::new(devices.len(), (access.grant.0, node), session));
            }
            Err(error) => eprintln!("venice: accelerator at {node} cannot be used: {error}"),
        }
    }
    if devices.is_empty() {
        return None;
    }
    let version = devices.iter().map(|device| device.version()).min().unwrap_or((1, 2));
    Some(Object::new(Platform { devices, version }))
}

/// Returns the platform.
///
/// # Errors
/// The code for none: the program has no grant of an accelerator.
pub fn platform() -> Done<&'static Shared<Platform>> {
    PLATFORM.as_ref().ok_or(CL_PLATFORM_NOT_FOUND_KHR)
}

impl Device {
    fn new(index: usize, (grant, node): (u64, &str), session: Arc<Session>) -> Shared<Self> {
        let told = session.description().device.iter();
        let mut parameters: HashMap<_, _> =
            told.map(|Parameter { name, value }| (*name, value.clone())).collect();
        adapt(&mut parameters, node, session.region().is_mapped());
        let device = Object::new(Self {
            index,
            session,
            grant,
            parameters,
            pending: Mutex::default(),
            leaving: Mutex::default(),
            failures: Mutex::default(),
            background: Once::new(),
        });
        let sink = DeviceSink { device: Arc::downgrade(&device) };
        device.session.set_sink(Arc::new(sink));
        device
    }

    /// Returns its bit in masks.
    pub fn bit(&self) -> u64 {
        1 << self.index
    }

    /// Returns the value of a parameter.
    pub fn parameter(&self, name: cl_device_info) -> Option<&[u8]> {
        self.parameters.get(&name).map(Vec::as_slice)
    }

    /// Returns the value of a parameter as a number; 0 if the donor does not tell it.
    pub fn number(&self, name: cl_device_info) -> u64 {
        self.parameter(name).map_or(0, venice_accel::opencl::library::number)
    }

    /// True if buffers may lie in the region.
    pub fn has_placed_buffers(&self) -> bool {
        self.session.description().has_placed_buffers
    }

    /// Returns the version of OpenCL that it has.
    fn version(&self) -> (u32, u32) {
        let text = self.parameter(CL_DEVICE_VERSION).map(venice_accel::opencl::library::text);
        text.as_deref().and_then(version_of).unwrap_or((1, 2))
    }

    /// Adds an event that a notice is to come for. Of a lost device it fails at once.
    pub fn expect(&self, event: &Shared<Event>) {
        self.pending().insert(event.id, Arc::clone(event));
        if self.session.why_lost().is_some() {
            self.fail_pending();
        }
    }

    /// Forgets an event whose command was not sent.
    pub fn forget(&self, event: &Event) {
        drop(self.pending().remove(&event.id));
    }

    /// Takes notices in even while the program waits for nothing here.
    pub fn receive_always(&self) {
        self.background.call_once(|| self.session.receive_always());
    }

    /// Frees the place of a buffer once the donor has no more use for it.
    pub fn free_later(&self, id: u64, place: u64) {
        lock(&self.leaving).insert(id, place);
        self.session.release(id);
    }

    /// Returns the error of the making of an object.
    pub fn failure(&self, id: u64) -> Option<cl_int> {
        lock(&self.failures).get(&id).copied()
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Shared<Event>>> {
        lock(&self.pending)
    }

    fn fail_pending(&self) {
        let pending = std::mem::take(&mut *self.pending());
        pending.into_values().for_each(|event| event.end(CL_DEVICE_NOT_AVAILABLE, None, &[]));
    }
}

/// Takes the notices of a device.
struct DeviceSink {
    device: Weak<Object<Device>>,
}

impl Sink for DeviceSink {
    fn notice(&self, notice: Notice<'_>) {
        let Some(device) = self.device.upgrade() else { return };
        match notice {
            Notice::Done { event, status, times, data } => {
                let event = device.pending().remove(&event);
                if let Some(event) = event {
                    event.end(status, times, data);
                }
            }
            Notice::Failed { id, status, queue } => {
                let id = if id == 0 { queue } else { id };
                lock(&device.failures).entry(id).or_insert(status);
            }
            Notice::Output { bytes } => output::print(bytes),
            Notice::Freed { id } => {
                let place = lock(&device.leaving).remove(&id);
                if let Some(place) = place {
                    device.session.free(place);
                }
            }
        }
    }

    fn lost(&self, why: &str) {
        let Some(device) = self.device.upgrade() else { return };
        // The run that started the program tells the user, with the donor's reason.
        let dir = std::env::var_os(losses::VARIABLE);
        let is_noted = dir.is_some_and(|dir| losses::note(dir.as_ref(), device.grant, why).is_ok());
        if !is_noted {
            let name = device.parameter(CL_DEVICE_NAME).map(venice_accel::opencl::library::text);
            let name = name.unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "venice: accelerator {name} is lost: {why}");
        }
        device.fail_pending();
    }
}

/// Changes what is not the same here as at the donor.
fn adapt(parameters: &mut HashMap<cl_device_info, Vec<u8>>, node: &str, is_mapped: bool) {
    let text = |parameters: &HashMap<_, Vec<u8>>, name| {
        parameters.get(&name).map(|value| venice_accel::opencl::library::text(value))
    };
    let terminated = |text: String| [text.into_bytes(), vec![0]].concat();
    let name = text(parameters, CL_DEVICE_NAME).unwrap_or_default();
    parameters.insert(CL_DEVICE_NAME, terminated(format!("{name} on {node}")));
    let extensions = text(parameters, CL_DEVICE_EXTENSIONS).unwrap_or_default();
    let kept: Vec<_> = extensions.split_whitespace().filter(|it| EXTENSIONS.contains(it)).collect();
    parameters.insert(CL_DEVICE_EXTENSIONS, terminated(kept.join(" ")));
    if let Some(versions) = parameters.get_mut(&CL_DEVICE_EXTENSIONS_WITH_VERSION) {
        *versions = kept_versions(versions, |name| EXTENSIONS.contains(&name));
    }
    // A program would map buffers instead of copying them.
    if !is_mapped {
        parameters.insert(CL_DEVICE_HOST_UNIFIED_MEMORY, 0_u32.to_le_bytes().to_vec());
    }
    // No native kernels, no sub-devices, no shared virtual memory, no pipes, no device queues.
    let kernels = CL_EXEC_KERNEL;
    parameters.insert(CL_DEVICE_EXECUTION_CAPABILITIES, kernels.to_le_bytes().to_vec());
    for (name, bytes) in [
        (CL_DEVICE_PARTITION_MAX_SUB_DEVICES, 4),
        (CL_DEVICE_PARTITION_AFFINITY_DOMAIN, 8),
        (CL_DEVICE_SVM_CAPABILITIES, 8),
        (CL_DEVICE_PIPE_SUPPORT, 4),
        (CL_DEVICE_MAX_PIPE_ARGS, 4),
        (CL_DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS, 4),
        (CL_DEVICE_PIPE_MAX_PACKET_SIZE, 4),
        (CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES, 8),
        (CL_DEVICE_QUEUE_ON_DEVICE_PROPERTIES, 8),
        (CL_DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE, 4),
        (CL_DEVICE_QUEUE_ON_DEVICE_MAX_SIZE, 4),
        (CL_DEVICE_MAX_ON_DEVICE_QUEUES, 4),
        (CL_DEVICE_MAX_ON_DEVICE_EVENTS, 4),
        (CL_DEVICE_MAX_NUM_SUB_GROUPS, 4),
        (CL_DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS, 4),
        (CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION, 0),
        (CL_DEVICE_BUILT_IN_KERNELS, 1),
        (CL_DEVICE_PARTITION_TYPE, 0),
        (CL_DEVICE_PARTITION_PROPERTIES, 8),
    ] {
        parameters.insert(name, vec![0; bytes]);
    }
}

/// Keeps the extensions with a version that a test lets pass: `cl_name_version` each.
fn kept_versions(all: &[u8], keep: impl Fn(&str) -> bool) -> Vec<u8> {
    const NAME: usize = 64;
    let records = all.chunks_exact(4 + NAME);
    let kept = records.filter(|record| {
        let name = record[4..].split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(name).is_ok_and(&keep)
    });
    kept.flatten().copied().collect()
}

/// Parses `OpenCL 3.0 ...`.
fn version_of(text: &str) -> Option<(u32, u32)> {
    let number = text.split_whitespace().nth(1)?;
    let (major, minor) = number.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists the platform: `clIcdGetPlatformIDsKHR`.
pub unsafe extern "C" fn icd_platform_ids(
    room: cl_uint,
    platforms: *mut cl_platform_id,
    count: *mut cl_uint,
) -> cl_int {
    code(|| {
        if (room == 0 && !platforms.is_null()) || (platforms.is_null() && count.is_null()) {
            return Err(CL_INVALID_VALUE);
        }
        let found = platform();
        // SAFETY: the program passes null or valid places.
        unsafe {
            store(count, u32::from(found.is_ok()));
            store(platforms, Object::handle(found?));
        }
        Ok(())
    })
}

pub unsafe extern "C" fn platform_info(
    handle: cl_platform_id,
    name: cl_platform_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let platform = Object::<Platform>::get(handle)?;
        let out = Out { room, value, needed };
        let (major, minor) = platform.version;
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_PLATFORM_PROFILE => out.put_text("FULL_PROFILE"),
                CL_PLATFORM_VERSION => out.put_text(&format!(
                    "OpenCL {major}.{minor} Venice {}",
                    env!("CARGO_PKG_VERSION")
                )),
                CL_PLATFORM_NAME => out.put_text(PLATFORM_NAME),
                CL_PLATFORM_VENDOR => out.put_text("Venice"),
                CL_PLATFORM_EXTENSIONS => out.put_text("cl_khr_icd"),
                CL_PLATFORM_ICD_SUFFIX_KHR => out.put_text(SUFFIX),
                CL_PLATFORM_HOST_TIMER_RESOLUTION => out.put_plain(&[0_u64]),
                CL_PLATFORM_NUMERIC_VERSION if major >= 3 => {
                    out.put_plain(&[major << 22 | minor << 12])
                }
                CL_PLATFORM_EXTENSIONS_WITH_VERSION if major >= 3 => {
                    let mut record = (1_u32 << 22).to_le_bytes().to_vec();
                    record.extend_from_slice(b"cl_khr_icd");
                    record.resize(4 + 64, 0);
                    out.put(&record)
                }
                _ => Err(CL_INVALID_VALUE),
            }
        }
    })
}

pub unsafe extern "C" fn device_ids(
    handle: cl_platform_id,
    class: cl_device_type,
    room: cl_uint,
    devices: *mut cl_device_id,
    count: *mut cl_uint,
) -> cl_int {
    code(|| {
        let platform = Object::<Platform>::get(handle)?;
        if (room == 0 && !devices.is_null()) || (devices.is_null() && count.is_null()) {
            return Err(CL_INVALID_VALUE);
        }
        let found = devices_of(&platform, class)?;
        // SAFETY: the program passes null, or room for so many.
        unsafe {
            store(count, found.len() as cl_uint);
            if !devices.is_null() {
                for (at, device) in found.iter().take(room as usize).enumerate() {
                    devices.add(at).write(Object::handle(device));
                }
            }
        }
        Ok(())
    })
}

/// Returns the devices of a type.
///
/// # Errors
/// The codes of `clGetDeviceIDs`.
pub fn devices_of(platform: &Platform, class: cl_device_type) -> Done<Vec<Shared<Device>>> {
    const KNOWN: cl_device_type = CL_DEVICE_TYPE_DEFAULT
        | CL_DEVICE_TYPE_CPU
        | CL_DEVICE_TYPE_GPU
        | CL_DEVICE_TYPE_ACCELERATOR
        | CL_DEVICE_TYPE_CUSTOM;
    if class != CL_DEVICE_TYPE_ALL && (class == 0 || class & !KNOWN != 0) {
        return Err(CL_INVALID_DEVICE_TYPE);
    }
    let found: Vec<_> = if class == CL_DEVICE_TYPE_DEFAULT {
        platform.devices.first().cloned().into_iter().collect()
    } else {
        let fits = |device: &&Shared<Device>| device.number(CL_DEVICE_TYPE) & class != 0;
        platform.devices.iter().filter(fits).cloned().collect()
    };
    if found.is_empty() { Err(CL_DEVICE_NOT_FOUND) } else { Ok(found) }
}

pub unsafe extern "C" fn device_info(
    handle: cl_device_id,
    name: cl_device_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let device = Object::<Device>::get(handle)?;
        let out = Out { room, value, needed };
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_DEVICE_PLATFORM => out.put_plain(&[Object::handle(platform()?)]),
                CL_DEVICE_PARENT_DEVICE => out.put_plain(&[0_usize]),
                CL_DEVICE_REFERENCE_COUNT => out.put_plain(&[1_u32]),
                CL_DEVICE_AVAILABLE if device.session.why_lost().is_some() => {
                    out.put_plain(&[CL_FALSE])
                }
                name => out.put(device.parameter(name).ok_or(CL_INVALID_VALUE)?),
            }
        }
    })
}

/// Devices live as long as the program: `clRetainDevice`, `clReleaseDevice`.
pub unsafe extern "C" fn keep_device(handle: cl_device_id) -> cl_int {
    code(|| Object::<Device>::get(handle).map(drop))
}

pub unsafe extern "C" fn create_sub_devices(
    handle: cl_device_id,
    _properties: *const cl_device_partition_property,
    _room: cl_uint,
    _devices: *mut cl_device_id,
    _count: *mut cl_uint,
) -> cl_int {
    code(|| {
        Object::<Device>::get(handle)?;
        Err(CL_INVALID_VALUE)
    })
}

/// Returns the devices of handles.
///
/// # Errors
/// [`CL_INVALID_DEVICE`].
///
/// # Safety
/// `first` is null or points to so many handles.
pub unsafe fn devices_at(first: *const cl_device_id, count: cl_uint) -> Done<Vec<Shared<Device>>> {
    // SAFETY: promised by the caller.
    let handles = unsafe { array(first, count as usize) };
    handles.iter().map(|handle| Object::<Device>::get(*handle)).collect()
}
