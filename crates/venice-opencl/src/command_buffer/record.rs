//! Functions that record commands.
//!
//! Version 0.9.5 of the extension put a parameter, the properties of the command, in front of those
//! of the command. Which version a program was compiled for shows in the arguments: where the
//! properties would be, older programs have a memory object. The functions take as many words as the
//! newer form has.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use opencl_sys::*;
use venice_accel::opencl::wire::CommandKind;

use super::{CL_INVALID_SYNC_POINT_WAIT_LIST_KHR, CommandBuffer, Recording, point};
use crate::call::{Done, array, check_list, code};
use crate::memory::Memory;
use crate::object::Object;
use crate::queue::Enqueue;
use crate::{image_commands, kernel, transfer};

/// Numbers below are no addresses.
const FIRST_ADDRESS: usize = 1 << 16;
/// True once a call had the older form.
static IS_OLD: AtomicBool = AtomicBool::new(false);

/// Arguments behind buffer and queue: each is a word, in a register or on the stack (System V ABI,
/// and that of 64-bit ARM).
#[derive(Clone, Copy)]
struct Words<'a> {
    buffer: *mut c_void,
    queue: cl_command_queue,
    /// Properties of the newer form.
    properties: usize,
    /// Arguments of the command itself; then wait list, sync point and handle.
    rest: &'a [usize],
}

impl<'a> Words<'a> {
    /// Takes the arguments of a command that begins with a memory object.
    fn of_memory(buffer: *mut c_void, queue: cl_command_queue, words: &'a [usize]) -> Self {
        let is_old = Object::<Memory>::get(address(words[0])).is_ok();
        if is_old {
            IS_OLD.store(true, Ordering::Relaxed);
        }
        Self::new(buffer, queue, words, is_old)
    }

    fn of_barrier(buffer: *mut c_void, queue: cl_command_queue, words: &'a [usize; 5]) -> Self {
        let is_old = is_old_barrier(words);
        if is_old && words[..4] != [0; 4] {
            IS_OLD.store(true, Ordering::Relaxed);
        }
        Self::new(buffer, queue, words, is_old)
    }

    fn new(buffer: *mut c_void, queue: cl_command_queue, words: &'a [usize], is_old: bool) -> Self {
        match words {
            [properties, rest @ ..] if !is_old => {
                Self { buffer, queue, properties: *properties, rest }
            }
            rest => Self { buffer, queue, properties: 0, rest },
        }
    }

    /// Returns the arguments of the command itself, and a call that records it.
    ///
    /// # Safety
    /// The program passes valid lists.
    unsafe fn begin<const N: usize>(self) -> Done<([usize; N], Enqueue)> {
        let (own, rest) = self.rest.split_at(N);
        let count = rest[0] as cl_uint;
        let ends = (address::<cl_uint>(rest[1]).cast_const(), address(rest[2]), rest[3]);
        // SAFETY: promised by the caller.
        let call = unsafe { recording(self.buffer, self.queue, self.properties, count, ends)? };
        Ok((own.try_into().expect("as many as asked for"), call))
    }
}

fn address<T>(word: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(word)
}

/// Begins a call that records a command.
///
/// # Safety
/// `properties` is null or a list, `waits` null or so many sync points, `place` null or valid.
unsafe fn recording(
    buffer: *mut c_void,
    queue: cl_command_queue,
    properties: usize,
    count: cl_uint,
    (waits, place, handle): (*const cl_uint, *mut cl_uint, usize),
) -> Done<Enqueue> {
    let buffer = Object::<CommandBuffer>::get(buffer)?;
    if !queue.is_null() {
        return Err(CL_INVALID_COMMAND_QUEUE);
    }
    let properties = address::<u64>(properties);
    // SAFETY: a list ends with 0.
    if handle != 0 || (!properties.is_null() && unsafe { properties.read() } != 0) {
        return Err(CL_INVALID_VALUE);
    }
    let recorded = {
        let state = buffer.state();
        if state.is_final {
            return Err(CL_INVALID_OPERATION);
        }
        state.steps.len() as u32
    };
    check_list(count, waits, CL_INVALID_SYNC_POINT_WAIT_LIST_KHR)?;
    // SAFETY: promised by the caller.
    let waits = unsafe { array(waits, count as usize) };
    let place_of = |wait: &cl_uint| (0..recorded).contains(&wait.wrapping_sub(point(0)));
    if !waits.iter().all(place_of) {
        return Err(CL_INVALID_SYNC_POINT_WAIT_LIST_KHR);
    }
    let waits = waits.iter().map(|wait| wait - point(0)).collect();
    let queue = std::sync::Arc::clone(&buffer.queue);
    let (uses, kernels) = (Vec::new(), Vec::new());
    Ok(Enqueue::record(queue, Recording { buffer, waits, place, uses, kernels }))
}

/// True if a barrier's arguments are of the older form: number of sync points, list, place, handle.
fn is_old_barrier(words: &[usize; 5]) -> bool {
    match *words {
        [1..FIRST_ADDRESS, ..] => true,
        [0, 1..FIRST_ADDRESS, ..] => false,
        // All is null, and the last word is no argument of an older program.
        [0, 0, 0, 0, _] => true,
        [0, 0, 0, ..] => false,
        // Either the place of a sync point, or a list whose number is 0.
        [0, ..] => IS_OLD.load(Ordering::Relaxed),
        _ => false,
    }
}

pub unsafe extern "C" fn command_barrier_with_wait_list(
    buffer: *mut c_void,
    queue: cl_command_queue,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> cl_int {
    let words = [a, b, c, d, e];
    let words = Words::of_barrier(buffer, queue, &words);
    // SAFETY: the program passes valid lists.
    code(|| unsafe {
        let ([], call) = words.begin()?;
        call.send(Vec::new(), CommandKind::Barrier {})
    })
}

/// Defines functions whose command has five arguments at most, the first of them a memory object.
macro_rules! recorders {
    ($($name:ident($($argument:ident),*) = $module:ident::$function:ident($($given:expr),*);)*) => {
        $(pub unsafe extern "C" fn $name(
            buffer: *mut c_void,
            queue: cl_command_queue,
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
            g: usize,
            h: usize,
            i: usize,
            j: usize,
        ) -> cl_int {
            let words = [a, b, c, d, e, f, g, h, i, j];
            let words = Words::of_memory(buffer, queue, &words);
            // SAFETY: the program passes valid lists and memory.
            code(|| unsafe {
                let ([$($argument),*], call) = words.begin()?;
                $module::$function(call, $($given),*)
            })
        })*
    };
}

recorders! {
    command_copy_buffer(from, to, from_offset, to_offset, bytes) =
        transfer::copy_buffer(address(from), address(to), from_offset, to_offset, bytes);
    command_fill_buffer(memory, pattern, pattern_bytes, offset, bytes) =
        transfer::fill_buffer(address(memory), address(pattern), pattern_bytes, offset, bytes);
    command_copy_image(from, to, from_origin, to_origin, region) = image_commands::copy_image(
        address(from), address(to), address(from_origin), address(to_origin), address(region)
    );
    command_copy_image_to_buffer(from, to, origin, region, offset) = image_commands::copy_image_to_buffer(
        address(from), address(to), address(origin), address(region), offset
    );
    command_copy_buffer_to_image(from, to, offset, origin, region) = image_commands::copy_buffer_to_image(
        address(from), address(to), offset, address(origin), address(region)
    );
    command_fill_image(memory, color, origin, region) =
        image_commands::fill_image(address(memory), address(color), address(origin), address(region));
}

pub unsafe extern "C" fn command_copy_buffer_rect(
    buffer: *mut c_void,
    queue: cl_command_queue,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
    i: usize,
    j: usize,
    k: usize,
    l: usize,
    m: usize,
    n: usize,
) -> cl_int {
    let words = [a, b, c, d, e, f, g, h, i, j, k, l, m, n];
    let words = Words::of_memory(buffer, queue, &words);
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let ([from, to, from_origin, to_origin, region, pitches @ ..], call) =
            words.begin::<9>()?;
        let boxes = [from_origin, to_origin, region].map(|it| address::<usize>(it).cast_const());
        transfer::copy_buffer_rect(call, (address(from), address(to)), boxes, pitches)
    })
}

pub unsafe extern "C" fn command_nd_range_kernel(
    buffer: *mut c_void,
    queue: cl_command_queue,
    properties: *const u64,
    kernel: cl_kernel,
    dimensions: cl_uint,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    count: cl_uint,
    waits: *const cl_uint,
    place: *mut cl_uint,
    handle: *mut *mut c_void,
) -> cl_int {
    // SAFETY: the program passes valid lists.
    code(|| unsafe {
        let ends = (waits, place, handle.expose_provenance());
        let call = recording(buffer, queue, properties.expose_provenance(), count, ends)?;
        kernel::launch(call, kernel, dimensions, [offset, global, local])
    })
}

/// Refuses commands on shared virtual memory, which no device has.
pub unsafe extern "C" fn command_svm(buffer: *mut c_void) -> cl_int {
    code(|| Object::<CommandBuffer>::get(buffer).and(Err(CL_INVALID_OPERATION)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_barriers_are_told_apart() {
        let list = 0x7f00_1234_5678;
        for (words, is_old) in [
            ([2, list, 0, 0, 0], true),
            ([0, 2, list, 0, 0], false),
            ([list, 2, list, 0, 0], false),
            ([0, 0, 0, 0, list], true),
            ([0, 0, 0, list, 0], false),
        ] {
            assert_eq!(is_old_barrier(&words), is_old, "{words:x?}");
        }
    }
}
