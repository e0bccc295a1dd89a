//! The trial that shows whether a device works on buffers of the region in place.

use std::ptr::null_mut;

use opencl_sys::{CL_INVALID_VALUE, cl_device_id};
use venice_service::ConnectionId;

use super::Donor;
use super::execute::{created, done};
use super::objects::{Kind, Owned};
use crate::opencl::library::{self, Library, call};

/// True if the device works on buffers in place: what it stores in one that lies in the region is
/// seen there without a transfer, and the reverse.
pub(super) fn works_in_region(donor: &Donor) -> bool {
    let tried = || -> Result<bool, i32> {
        const BYTES: u64 = 4096;
        let (library, device) = (donor.library, donor.device);
        let class = library.device_info(device, opencl_sys::CL_DEVICE_TYPE);
        let class = class.map(|value| library::number(&value)).unwrap_or(0);
        if class & opencl_sys::CL_DEVICE_TYPE_CPU == 0 {
            return Ok(false);
        }
        let nobody = ConnectionId(u64::MAX);
        let offset = donor.extents.borrow_mut().reserve(nobody, BYTES).ok_or(CL_INVALID_VALUE)?;
        let at = donor.place(nobody, offset, BYTES).ok_or(CL_INVALID_VALUE)?;
        let placed = fill_in_place(library, device, at.cast(), BYTES as usize);
        donor.give_back(nobody, offset);
        placed
    };
    tried().unwrap_or(false)
}

fn fill_in_place(
    library: &'static Library,
    device: cl_device_id,
    at: *mut u8,
    bytes: usize,
) -> Result<bool, i32> {
    let make = |kind, raw| Owned::new(library, kind, raw);
    let device = &raw const device;
    let context = make(
        Kind::Context,
        created(|code| {
            call!(library, clCreateContext(std::ptr::null(), 1, device, None, null_mut(), code))
        })?,
    );
    // SAFETY: the caller passes the address of a device that its platform has.
    let device = unsafe { *device };
    let queue = make(
        Kind::Queue,
        created(|code| call!(library, clCreateCommandQueue(context.raw(), device, 0, code)))?,
    );
    let flags = opencl_sys::CL_MEM_USE_HOST_PTR;
    let buffer = make(
        Kind::Memory,
        created(|code| {
            call!(library, clCreateBuffer(context.raw(), flags, bytes, at.cast(), code))
        })?,
    );
    static PATTERN: u8 = 0xA7;
    let pattern = (&raw const PATTERN).cast();
    done(call!(
        library,
        clEnqueueFillBuffer(
            queue.raw(),
            buffer.raw(),
            pattern,
            1,
            0,
            bytes,
            0,
            std::ptr::null(),
            null_mut()
        )
    ))?;
    done(call!(library, clFinish(queue.raw())))?;
    let mut read = 0_u8;
    // SAFETY: the caller's range has `bytes` bytes, which nobody else uses.
    let is_stored = unsafe { at.add(bytes - 1).read_volatile() == PATTERN };
    // SAFETY: as above.
    unsafe { at.write_volatile(!PATTERN) };
    let into = (&raw mut read).cast();
    done(call!(
        library,
        clEnqueueReadBuffer(
            queue.raw(),
            buffer.raw(),
            1,
            0,
            1,
            into,
            0,
            std::ptr::null(),
            null_mut()
        )
    ))?;
    Ok(is_stored && read == !PATTERN)
}
