//! Contexts: devices that share objects.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use opencl_sys::*;
use venice_accel::opencl::wire::CommandKind;

use crate::call::{self, Done, Out, code, made, session_code};
use crate::device::{Device, Platform, devices_of, platform};
use crate::event::plain;
use crate::object::{Object, Shared, bodies, new_id};
use crate::part::{devices_at, whole_of};

bodies! {
    Context: CL_INVALID_CONTEXT;
}

/// A context.
pub struct Context {
    pub id: u64,
    /// Devices as the program knows them: granted ones, and parts.
    pub listed: Vec<Shared<Device>>,
    /// The granted devices of these: each has copies of objects.
    pub devices: Vec<Shared<Device>>,
    properties: Vec<cl_context_properties>,
    /// Devices at which it exists.
    made_at: Mutex<u64>,
    destructors: Mutex<Vec<Destructor>>,
}

struct Destructor {
    function: unsafe extern "C" fn(cl_context, *mut c_void),
    user: usize,
}

impl Context {
    /// Returns its id at a device, where it is made if it is not there.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn id_at(&self, device: &Device) -> Done<u64> {
        let mut made_at = self.made_at.lock().unwrap_or_else(PoisonError::into_inner);
        if *made_at & device.bit() == 0 {
            let create = plain(self.creation_at(device));
            device.session().submit(&create).map_err(session_code)?;
            *made_at |= device.bit();
        }
        Ok(self.id)
    }

    /// Returns the command that makes it at a device.
    pub fn creation_at(&self, device: &Device) -> CommandKind<'static> {
        let here = self.listed.iter().filter(|listed| listed.index == device.index);
        let parts = here.map(|listed| listed.part_id()).filter(|id| *id != 0).collect();
        CommandKind::CreateContext { id: self.id, parts }
    }

    /// True if it exists at a device.
    pub fn is_at(&self, device: &Device) -> bool {
        let made_at = self.made_at.lock().unwrap_or_else(PoisonError::into_inner);
        *made_at & device.bit() != 0
    }

    /// Returns its device of a handle.
    ///
    /// # Errors
    /// [`CL_INVALID_DEVICE`] for another one.
    pub fn device(&self, handle: cl_device_id) -> Done<&Shared<Device>> {
        let is_it = |device: &&Shared<Device>| Object::handle(device) == handle;
        self.listed.iter().find(is_it).ok_or(CL_INVALID_DEVICE)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let made_at = *self.made_at.get_mut().unwrap_or_else(PoisonError::into_inner);
        for device in &self.devices {
            if made_at & device.bit() != 0 {
                device.session().release(self.id);
            }
        }
        let destructors = self.destructors.get_mut().unwrap_or_else(PoisonError::into_inner);
        for destructor in destructors.drain(..).rev() {
            // SAFETY: the program gave function and pointer to `clSetContextDestructorCallback`.
            unsafe { (destructor.function)(std::ptr::null_mut(), destructor.user as *mut c_void) };
        }
    }
}

/// Returns the properties of a list that ends with 0.
///
/// # Safety
/// `list` is null or such a list.
unsafe fn properties_at(list: *const cl_context_properties) -> Done<Vec<cl_context_properties>> {
    let mut names = Vec::new();
    let take = |name, value| {
        match name {
            CL_CONTEXT_PLATFORM => {
                Object::<Platform>::get(value as cl_platform_id)?;
            }
            CL_CONTEXT_INTEROP_USER_SYNC => {}
            _ => return Err(CL_INVALID_PROPERTY),
        }
        if names.contains(&name) {
            return Err(CL_INVALID_PROPERTY);
        }
        names.push(name);
        Ok(())
    };
    // SAFETY: promised by the caller.
    unsafe { call::properties(list, take) }
}

fn create(
    devices: Vec<Shared<Device>>,
    properties: Vec<cl_context_properties>,
) -> Done<*mut c_void> {
    let mut listed: Vec<Shared<Device>> = Vec::new();
    let mut wholes: Vec<Shared<Device>> = Vec::new();
    for device in devices {
        if device.session().why_lost().is_some() {
            return Err(CL_DEVICE_NOT_AVAILABLE);
        }
        let whole = whole_of(&device);
        if !wholes.iter().any(|known| Shared::ptr_eq(known, whole)) {
            wholes.push(Shared::clone(whole));
        }
        if !listed.iter().any(|known| Shared::ptr_eq(known, &device)) {
            listed.push(device);
        }
    }
    Ok(Object::hand_out(Object::new(Context {
        id: new_id(),
        listed,
        devices: wholes,
        properties,
        made_at: Mutex::default(),
        destructors: Mutex::default(),
    })))
}

type Notify = Option<unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void)>;

pub unsafe extern "C" fn create_context(
    properties: *const cl_context_properties,
    count: cl_uint,
    devices: *const cl_device_id,
    notify: Notify,
    user: *mut c_void,
    stored: *mut cl_int,
) -> cl_context {
    // SAFETY: the program passes valid lists, and null or a valid place.
    unsafe {
        made(stored, || {
            if count == 0 || devices.is_null() || (notify.is_none() && !user.is_null()) {
                return Err(CL_INVALID_VALUE);
            }
            let properties = properties_at(properties)?;
            create(devices_at(devices, count)?, properties)
        })
    }
}

pub unsafe extern "C" fn create_context_from_type(
    properties: *const cl_context_properties,
    class: cl_device_type,
    notify: Notify,
    user: *mut c_void,
    stored: *mut cl_int,
) -> cl_context {
    // SAFETY: the program passes a valid list, and null or a valid place.
    unsafe {
        made(stored, || {
            if notify.is_none() && !user.is_null() {
                return Err(CL_INVALID_VALUE);
            }
            let properties = properties_at(properties)?;
            create(devices_of(platform()?, class)?, properties)
        })
    }
}

pub unsafe extern "C" fn retain_context(handle: cl_context) -> cl_int {
    code(|| Object::<Context>::get(handle).map(|context| context.retain()))
}

pub unsafe extern "C" fn release_context(handle: cl_context) -> cl_int {
    code(|| Object::<Context>::get(handle)?.release())
}

pub unsafe extern "C" fn context_info(
    handle: cl_context,
    name: cl_context_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let context = Object::<Context>::get(handle)?;
        let out = Out { room, value, needed };
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_CONTEXT_REFERENCE_COUNT => out.put_plain(&[context.references()]),
                CL_CONTEXT_NUM_DEVICES => out.put_plain(&[context.listed.len() as cl_uint]),
                CL_CONTEXT_DEVICES => {
                    let handles: Vec<_> = context.listed.iter().map(Object::handle).collect();
                    out.put_plain(&handles)
                }
                CL_CONTEXT_PROPERTIES => out.put_plain(&context.properties),
                _ => Err(CL_INVALID_VALUE),
            }
        }
    })
}

pub unsafe extern "C" fn set_context_destructor_callback(
    handle: cl_context,
    function: Option<unsafe extern "C" fn(cl_context, *mut c_void)>,
    user: *mut c_void,
) -> cl_int {
    code(|| {
        let context = Object::<Context>::get(handle)?;
        let function = function.ok_or(CL_INVALID_VALUE)?;
        let mut destructors = context.destructors.lock().unwrap_or_else(PoisonError::into_inner);
        destructors.push(Destructor { function, user: user as usize });
        Ok(())
    })
}
