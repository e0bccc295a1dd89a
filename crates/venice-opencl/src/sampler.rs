//! Samplers.

use std::ffi::c_void;

use opencl_sys::*;
use venice_accel::opencl::wire::CommandKind;

use crate::call::{self, Done, Out, code, made, session_code};
use crate::context::Context;
use crate::event::plain;
use crate::object::{Object, Shared, bodies, new_id};

bodies! {
    Sampler: CL_INVALID_SAMPLER;
}

/// A sampler.
pub struct Sampler {
    pub id: u64,
    pub context: Shared<Context>,
    normalized: bool,
    addressing: cl_addressing_mode,
    filter: cl_filter_mode,
    list: Vec<cl_sampler_properties>,
}

impl Sampler {
    /// Returns the command that makes it at a device.
    pub fn creation(&self) -> CommandKind<'static> {
        CommandKind::CreateSampler {
            id: self.id,
            context: self.context.id,
            normalized: self.normalized,
            addressing: self.addressing,
            filter: self.filter,
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        for device in &self.context.devices {
            device.session().release(self.id);
        }
    }
}

fn create_sampler_of(
    context: cl_context,
    normalized: bool,
    addressing: cl_addressing_mode,
    filter: cl_filter_mode,
    list: Vec<cl_sampler_properties>,
) -> Done<*mut c_void> {
    let context = Object::<Context>::get(context)?;
    let is_addressing = (CL_ADDRESS_NONE..=CL_ADDRESS_MIRRORED_REPEAT).contains(&addressing);
    let is_filter = filter == CL_FILTER_NEAREST || filter == CL_FILTER_LINEAR;
    if !is_addressing || !is_filter {
        return Err(CL_INVALID_VALUE);
    }
    let id = new_id();
    let sampler = Object::new(Sampler { id, context, normalized, addressing, filter, list });
    for device in &sampler.context.devices {
        sampler.context.id_at(device)?;
        device.session().submit(&plain(sampler.creation())).map_err(session_code)?;
    }
    Ok(Object::hand_out(sampler))
}

pub unsafe extern "C" fn create_sampler(
    context: cl_context,
    normalized: cl_bool,
    addressing: cl_addressing_mode,
    filter: cl_filter_mode,
    stored: *mut cl_int,
) -> cl_sampler {
    let normalized = normalized != CL_FALSE;
    // SAFETY: the program passes null or a valid place.
    unsafe {
        made(stored, || create_sampler_of(context, normalized, addressing, filter, Vec::new()))
    }
}

pub unsafe extern "C" fn create_sampler_with_properties(
    context: cl_context,
    properties: *const cl_sampler_properties,
    stored: *mut cl_int,
) -> cl_sampler {
    // SAFETY: the program passes null or a list that ends with 0, and null or a valid place.
    unsafe {
        made(stored, || {
            let (mut normalized, mut addressing, mut filter) =
                (true, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST);
            let list = call::properties(properties, |name, value| {
                match name as cl_sampler_info {
                    CL_SAMPLER_NORMALIZED_COORDS => normalized = value != 0,
                    CL_SAMPLER_ADDRESSING_MODE => addressing = value as cl_addressing_mode,
                    CL_SAMPLER_FILTER_MODE => filter = value as cl_filter_mode,
                    _ => return Err(CL_INVALID_VALUE),
                }
                Ok(())
            })?;
            create_sampler_of(context, normalized, addressing, filter, list)
        })
    }
}

pub unsafe extern "C" fn retain_sampler(handle: cl_sampler) -> cl_int {
    code(|| Object::<Sampler>::get(handle).map(|sampler| sampler.retain()))
}

pub unsafe extern "C" fn release_sampler(handle: cl_sampler) -> cl_int {
    code(|| Object::<Sampler>::get(handle)?.release())
}

pub unsafe extern "C" fn sampler_info(
    handle: cl_sampler,
    name: cl_sampler_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let sampler = Object::<Sampler>::get(handle)?;
        let out = Out { room, value, needed };
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_SAMPLER_REFERENCE_COUNT => out.put_plain(&[sampler.references()]),
                CL_SAMPLER_CONTEXT => out.put_plain(&[Object::handle(&sampler.context)]),
                CL_SAMPLER_NORMALIZED_COORDS => out.put_plain(&[cl_bool::from(sampler.normalized)]),
                CL_SAMPLER_ADDRESSING_MODE => out.put_plain(&[sampler.addressing]),
                CL_SAMPLER_FILTER_MODE => out.put_plain(&[sampler.filter]),
                CL_SAMPLER_PROPERTIES => out.put_plain(&sampler.list),
                _ => Err(CL_INVALID_VALUE),
            }
        }
    })
}
