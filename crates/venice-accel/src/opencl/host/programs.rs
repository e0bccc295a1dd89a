//! Programs that are no source text: binaries, SPIR-V, built-in kernels.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use opencl_sys::{
    CL_CONTEXT_DEVICES, CL_INVALID_VALUE, CL_PROGRAM_BINARY_TYPE, CL_PROGRAM_BINARY_TYPE_NONE,
    cl_device_id, cl_uint,
};
use venice_service::{ConnectionId, Status};

use super::execute::created;
use super::objects::{Kind, Owned};
use super::{Donor, OpenCl};
use crate::opencl::library::{Library, call, info, number};
use crate::opencl::wire::{BinaryKind, BinaryRequest, Loaded, decode, encode};

impl OpenCl {
    /// Makes a program; the answer is the driver's code.
    pub(super) fn create_program(
        &mut self,
        connection: ConnectionId,
        payload: &[u8],
    ) -> (Status, Vec<u8>) {
        let Ok(request) = decode::<BinaryRequest<'_>>(payload) else {
            return (Status::MALFORMED, Vec::new());
        };
        let Some(state) = self.connections.get(&connection) else {
            return (Status::MALFORMED, Vec::new());
        };
        let made = state.objects.get(request.context, Kind::Context).and_then(|context| {
            let bytes = self.donor.blob(connection, &request.binary).ok_or(CL_INVALID_VALUE)?;
            load(self.donor.library, context, &request.kind, bytes)
        });
        let binary_type = made.map_or(CL_PROGRAM_BINARY_TYPE_NONE, |raw| self.binary_type(raw));
        let made = made.map(|raw| Owned::new(self.donor.library, Kind::Program, raw));
        let Some(state) = self.connections.get_mut(&connection) else {
            return (Status::MALFORMED, Vec::new());
        };
        let status = state.objects.add(request.id, Kind::Program, made).err().unwrap_or(0);
        (Status::OK, encode(&Loaded { status, binary_type }))
    }

    fn binary_type(&self, program: *mut c_void) -> u32 {
        let Donor { library, device, .. } = self.donor;
        let value = info("clGetProgramBuildInfo", |bytes, value, needed| {
            let name = CL_PROGRAM_BINARY_TYPE;
            call!(library, clGetProgramBuildInfo(program, device, name, bytes, value, needed))
        });
        value.map_or(CL_PROGRAM_BINARY_TYPE_NONE, |value| number(&value) as u32)
    }
}

/// Makes a program for the devices of a context.
///
/// # Errors
/// The driver's.
pub(super) fn load(
    library: &Library,
    context: *mut c_void,
    kind: &BinaryKind,
    bytes: Vec<u8>,
) -> Result<*mut c_void, i32> {
    let devices = devices_of(library, context)?;
    let (count, first) = (devices.len() as cl_uint, devices.as_ptr());
    match kind {
        BinaryKind::Binary {} => {
            // Parts of the device have its binary.
            let lens = vec![bytes.len(); devices.len()];
            let mut places = vec![bytes.as_ptr(); devices.len()];
            let (lens, places) = (lens.as_ptr(), places.as_mut_ptr());
            created(|code| {
                call!(
                    library,
                    clCreateProgramWithBinary(
                        context,
                        count,
                        first,
                        lens,
                        places,
                        null_mut(),
                        code
                    )
                )
            })
        }
        BinaryKind::Il {} => {
            let (at, len) = (bytes.as_ptr().cast(), bytes.len());
            created(|code| call!(library, clCreateProgramWithIL(context, at, len, code)))
        }
        BinaryKind::BuiltIn {} => {
            let names = CString::new(bytes).map_err(|_| CL_INVALID_VALUE)?;
            let names = names.as_ptr();
            created(|code| {
                call!(
                    library,
                    clCreateProgramWithBuiltInKernels(context, count, first, names, code)
                )
            })
        }
    }
}

/// Returns the devices of a context.
fn devices_of(library: &Library, context: *mut c_void) -> Result<Vec<cl_device_id>, i32> {
    let value = info("clGetContextInfo", |bytes, value, needed| {
        call!(library, clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, value, needed))
    });
    let value = value.map_err(|error| error.code())?;
    let handles = value.as_chunks().0.iter().map(|bytes| usize::from_ne_bytes(*bytes));
    Ok(handles.map(std::ptr::with_exposed_provenance_mut).collect())
}
