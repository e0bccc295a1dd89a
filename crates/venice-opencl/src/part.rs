//! Parts of devices: `clCreateSubDevices`.

use std::ffi::c_void;
use std::sync::Arc;

use opencl_sys::*;
use venice_accel::opencl::session::Session;
use venice_accel::opencl::wire::{PartitionRequest, PartitionResult, decode, encode, opcode};

use crate::call::{Done, array, code, session_code, store};
use crate::device::Device;
use crate::object::{Object, Shared, new_id};

/// Most parts of a device.
const MAX_PARTS: u64 = 4096;

/// Place of a device among its relatives.
pub struct Part {
    /// Id at the donor.
    pub id: u64,
    pub division: Arc<Division>,
    /// The granted device.
    pub whole: Shared<Device>,
}

/// A division of a device.
pub struct Division {
    parent: Shared<Device>,
    properties: Vec<u64>,
    /// Ids at the donor of all parts that this made.
    ids: Vec<u64>,
}

impl Part {
    /// Returns the device that was divided.
    pub fn parent(&self) -> &Shared<Device> {
        &self.division.parent
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.whole.session().release(self.id);
    }
}

impl Division {
    /// Returns how often the device was divided until this.
    pub fn depth(&self) -> usize {
        1 + self.parent.part().map_or(0, |part| part.division.depth())
    }

    /// Divides the device at a donor.
    ///
    /// # Errors
    /// The code of the donor's driver, or of a lost session.
    pub fn make(&self, session: &Session) -> Done<PartitionResult> {
        let (part, properties) = (self.parent.part_id(), self.properties.clone());
        let request = PartitionRequest { part, properties, ids: self.ids.clone() };
        let answer = session.call(opcode::PARTITION, &encode(&request)).map_err(session_code)?;
        let result = decode::<PartitionResult>(&answer).map_err(|_| CL_DEVICE_PARTITION_FAILED)?;
        if result.status == CL_SUCCESS { Ok(result) } else { Err(result.status) }
    }
}

impl Object<Device> {
    /// Returns its id at the donor; 0: the granted device.
    pub fn part_id(&self) -> u64 {
        self.part().map_or(0, |part| part.id)
    }

    /// Returns the handle of the device that was divided; null for a granted one.
    pub fn parent(&self) -> *mut c_void {
        self.part().map_or(std::ptr::null_mut(), |part| Object::handle(part.parent()))
    }

    /// Returns the references that the program has: granted devices live as long as it.
    pub fn program_references(&self) -> u32 {
        if self.part().is_some() { self.references() } else { 1 }
    }
}

/// Returns the granted device of a device.
pub fn whole_of(device: &Shared<Device>) -> &Shared<Device> {
    device.part().map_or(device, |part| &part.whole)
}

/// Divides a device.
fn divide(parent: &Shared<Device>, properties: Vec<u64>) -> Done<Vec<Shared<Device>>> {
    let whole = whole_of(parent);
    let units = parent.number(CL_DEVICE_MAX_COMPUTE_UNITS).clamp(1, MAX_PARTS);
    let mut ids: Vec<u64> = (0..units).map(|_| new_id()).collect();
    let parent = Shared::clone(parent);
    let mut division = Division { parent, properties, ids: ids.clone() };
    let result = division.make(&whole.session())?;
    ids.truncate(result.parts.len());
    division.ids = ids.clone();
    let division = Arc::new(division);
    let parts = ids.into_iter().zip(&result.parts).map(|(id, told)| {
        let part = Part { id, division: Arc::clone(&division), whole: Shared::clone(whole) };
        Device::new_part(part, &told.device)
    });
    Ok(parts.collect())
}

/// Returns the properties of a partition, with the 0 that ends them.
///
/// # Errors
/// [`CL_INVALID_VALUE`] for a kind that the device lacks.
///
/// # Safety
/// `list` is null, or a list as `clCreateSubDevices` takes it.
unsafe fn properties_at(
    device: &Device,
    list: *const cl_device_partition_property,
) -> Done<Vec<u64>> {
    let next = |at: usize| {
        // SAFETY: not beyond the 0 that ends the list.
        unsafe { list.add(at).read() }
    };
    if list.is_null() || next(0) == 0 {
        return Err(CL_INVALID_VALUE);
    }
    let known = device.parameter(CL_DEVICE_PARTITION_PROPERTIES).unwrap_or_default();
    let is_known = known.as_chunks().0.iter().any(|it| isize::from_ne_bytes(*it) == next(0));
    if !is_known {
        return Err(CL_INVALID_VALUE);
    }
    let mut properties = vec![next(0) as u64];
    // Counts end with a 0 of their own; the other kinds have one value.
    let mut at = 1;
    loop {
        let value = next(at);
        properties.push(value as u64);
        at += 1;
        if value == 0 || next(0) != CL_DEVICE_PARTITION_BY_COUNTS {
            break;
        }
    }
    if next(at) != 0 {
        return Err(CL_INVALID_VALUE);
    }
    properties.push(0);
    Ok(properties)
}

pub unsafe extern "C" fn create_sub_devices(
    handle: cl_device_id,
    properties: *const cl_device_partition_property,
    room: cl_uint,
    devices: *mut cl_device_id,
    count: *mut cl_uint,
) -> cl_int {
    // SAFETY: the program passes a list that ends with 0, and null or valid places.
    code(|| unsafe {
        let device = Object::<Device>::get(handle)?;
        let properties = properties_at(&device, properties)?;
        if devices.is_null() && count.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let parts = divide(&device, properties)?;
        if !devices.is_null() && (room as usize) < parts.len() {
            return Err(CL_INVALID_VALUE);
        }
        store(count, parts.len() as cl_uint);
        if !devices.is_null() {
            for (at, part) in parts.into_iter().enumerate() {
                devices.add(at).write(Object::hand_out(part));
            }
        }
        Ok(())
    })
}

pub unsafe extern "C" fn retain_device(handle: cl_device_id) -> cl_int {
    code(|| {
        let device = Object::<Device>::get(handle)?;
        if device.part().is_some() {
            device.retain();
        }
        Ok(())
    })
}

pub unsafe extern "C" fn release_device(handle: cl_device_id) -> cl_int {
    code(|| {
        let device = Object::<Device>::get(handle)?;
        if device.part().is_some() { device.release() } else { Ok(()) }
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
