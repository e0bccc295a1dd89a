//! The platform and its devices: one for each granted accelerator.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

use opencl_sys::*;
use venice_accel::opencl::session::Session;
use venice_accel::opencl::wire::Parameter;
use venice_accel::opencl::{PLATFORM_NAME, SERVICE};
use venice_rack::types::ServiceAccess;
use venice_wire::GrantId;

use crate::call::{Done, Out, code, store};
use crate::command_buffer::{
    self, CAPABILITIES, CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR,
    CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR,
    CL_DEVICE_COMMAND_BUFFER_SUPPORTED_QUEUE_PROPERTIES_KHR,
};
use crate::control::Control;
use crate::link::Link;
use crate::object::{Object, Shared, bodies};
use crate::part::Part;
use crate::seat::Seat;

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
    "cl_khr_spir",
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
    parameters: HashMap<cl_device_info, Vec<u8>>,
    role: Role,
}

/// Role of a device.
enum Role {
    /// A granted one.
    Granted(Seat),
    /// A part of one.
    Part(Part),
}

static PLATFORM: LazyLock<Option<Shared<Platform>>> = LazyLock::new(open);

/// Opens a session with each granted accelerator. One that cannot be opened is told of, and left out.
fn open() -> Option<Shared<Platform>> {
    let text = std::env::var(ENDPOINTS).ok()?;
    let nodes = std::env::var(NODES).unwrap_or_default();
    let nodes: Vec<_> = nodes.split(',').collect();
    let granted: Vec<Option<ServiceAccess>> = serde_json::from_str(&text).ok()?;
    let control = Control::connect().unwrap_or_else(|error| {
        eprintln!("venice: the accelerators cannot move to other donors: {error}");
        None
    });
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
        let present = control.as_ref().map_or(access, |control| control.present(access));
        match Link::open(present) {
            Ok(link) => devices.push(Device::new((devices.len(), access.grant), node, link)),
            Err(error) => eprintln!("venice: accelerator at {node} cannot be used: {error}"),
        }
    }
    if devices.is_empty() {
        return None;
    }
    if let Some(Err(error)) = control.map(|control| control.start(devices.clone())) {
        eprintln!("venice: the accelerators cannot move to other donors: {error}");
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
    fn new((index, grant): (usize, GrantId), node: &str, link: Arc<Link>) -> Shared<Self> {
        let told = link.session.description().device.iter();
        let mut parameters: HashMap<_, _> =
            told.map(|Parameter { name, value }| (*name, value.clone())).collect();
        adapt(&mut parameters, node, link.session.region().is_mapped());
        Object::new(Self { index, parameters, role: Role::Granted(Seat::new(grant, link)) })
    }

    /// Makes a part of a device: it shares all but its parameters with the whole.
    pub fn new_part(part: Part, told: &[Parameter]) -> Shared<Self> {
        let index = part.whole.index;
        let mut parameters = part.parent().parameters.clone();
        parameters.extend(told.iter().map(|Parameter { name, value }| (*name, value.clone())));
        Object::new(Self { index, parameters, role: Role::Part(part) })
    }

    /// Returns what it is a part of; `None` for a granted device.
    pub fn part(&self) -> Option<&Part> {
        match &self.role {
            Role::Part(part) => Some(part),
            Role::Granted(_) => None,
        }
    }

    /// Returns the seat of the granted device.
    pub fn seat(&self) -> &Seat {
        match &self.role {
            Role::Granted(seat) => seat,
            Role::Part(part) => part.whole.seat(),
        }
    }

    /// Returns the present link.
    pub fn link(&self) -> Arc<Link> {
        self.seat().link()
    }

    /// Returns the session of the present link.
    pub fn session(&self) -> Arc<Session> {
        Arc::clone(&self.link().session)
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

    /// Returns the version of OpenCL that it has.
    pub fn version(&self) -> (u32, u32) {
        let text = self.parameter(CL_DEVICE_VERSION).map(venice_accel::opencl::library::text);
        text.as_deref().and_then(version_of).unwrap_or((1, 2))
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
    let kept = extensions.split_whitespace().filter(|it| EXTENSIONS.contains(it));
    let all: Vec<_> = kept.chain([command_buffer::EXTENSION]).collect();
    parameters.insert(CL_DEVICE_EXTENSIONS, terminated(all.join(" ")));
    if let Some(versions) = parameters.get_mut(&CL_DEVICE_EXTENSIONS_WITH_VERSION) {
        *versions = kept_versions(versions, |name| EXTENSIONS.contains(&name));
        let (name, version) = (command_buffer::EXTENSION, command_buffer::EXTENSION_VERSION);
        versions.extend(name_version(name, version));
    }
    let queues = parameters.get(&CL_DEVICE_QUEUE_PROPERTIES).cloned().unwrap_or_default();
    for (name, value) in [
        (CL_DEVICE_COMMAND_BUFFER_SUPPORTED_QUEUE_PROPERTIES_KHR, queues),
        (CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR, vec![0; 8]),
        (CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR, CAPABILITIES.to_le_bytes().to_vec()),
    ] {
        parameters.insert(name, value);
    }
    // A program would map buffers instead of copying them.
    if !is_mapped {
        parameters.insert(CL_DEVICE_HOST_UNIFIED_MEMORY, 0_u32.to_le_bytes().to_vec());
    }
    // No native kernels, no shared virtual memory, no pipes, no device queues.
    let kernels = CL_EXEC_KERNEL;
    parameters.insert(CL_DEVICE_EXECUTION_CAPABILITIES, kernels.to_le_bytes().to_vec());
    for (name, bytes) in [
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
        (CL_DEVICE_PARTITION_TYPE, 0),
    ] {
        parameters.insert(name, vec![0; bytes]);
    }
    // Drivers before OpenCL 1.2 tell of none of these.
    for (name, bytes) in [
        (CL_DEVICE_BUILT_IN_KERNELS, 1),
        (CL_DEVICE_PARTITION_MAX_SUB_DEVICES, 4),
        (CL_DEVICE_PARTITION_AFFINITY_DOMAIN, 8),
        (CL_DEVICE_PARTITION_PROPERTIES, 8),
    ] {
        parameters.entry(name).or_insert_with(|| vec![0; bytes]);
    }
}

/// Bytes of a name in `cl_name_version`, which has the version before it.
const VERSIONED_NAME_BYTES: usize = 64;

/// Returns a `cl_name_version`.
fn name_version(name: &str, version: u32) -> Vec<u8> {
    let mut record = version.to_le_bytes().to_vec();
    record.extend_from_slice(name.as_bytes());
    record.resize(4 + VERSIONED_NAME_BYTES, 0);
    record
}

/// Keeps the extensions with a version that a test lets pass: `cl_name_version` each.
fn kept_versions(all: &[u8], keep: impl Fn(&str) -> bool) -> Vec<u8> {
    let records = all.chunks_exact(4 + VERSIONED_NAME_BYTES);
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
                CL_PLATFORM_EXTENSIONS => {
                    out.put_text(&format!("cl_khr_icd {}", command_buffer::EXTENSION))
                }
                CL_PLATFORM_ICD_SUFFIX_KHR => out.put_text(SUFFIX),
                CL_PLATFORM_HOST_TIMER_RESOLUTION => out.put_plain(&[0_u64]),
                CL_PLATFORM_NUMERIC_VERSION if major >= 3 => {
                    out.put_plain(&[major << 22 | minor << 12])
                }
                CL_PLATFORM_EXTENSIONS_WITH_VERSION if major >= 3 => {
                    let (name, version) =
                        (command_buffer::EXTENSION, command_buffer::EXTENSION_VERSION);
                    let icd = name_version("cl_khr_icd", 1 << 22);
                    out.put(&[icd, name_version(name, version)].concat())
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
                CL_DEVICE_PARENT_DEVICE => out.put_plain(&[device.parent()]),
                CL_DEVICE_REFERENCE_COUNT => out.put_plain(&[device.program_references()]),
                CL_DEVICE_AVAILABLE if device.session().why_lost().is_some() => {
                    out.put_plain(&[CL_FALSE])
                }
                name => out.put(device.parameter(name).ok_or(CL_INVALID_VALUE)?),
            }
        }
    })
}
