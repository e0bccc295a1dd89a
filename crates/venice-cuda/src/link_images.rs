//! Options of the compiler, and linking of images: all are linked by one request, at the end.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use venice_accel::cuda::wire::{
    Attribute, Blob, CompilerOptions, LinkRequest, Linked, LinkedImage, Logs, decode, encode,
    opcode,
};

use crate::call::*;
use crate::context::current;
use crate::device::Device;
use crate::handle::{self, Object};
use crate::module::file;
use crate::names::refuse;

/// `CUjit_option`s.
const WALL_TIME: c_int = 2;
const INFO_LOG: c_int = 3;
const INFO_LOG_BYTES: c_int = 4;
const ERROR_LOG: c_int = 5;
const ERROR_LOG_BYTES: c_int = 6;
/// Options with names or addresses of the program.
const NAMES: [c_int; 7] = [17, 18, 19, 25, 26, 27, 28];

/// Places of the program for what the compiler says.
#[derive(Debug, Default)]
pub struct CompilerCall {
    /// Buffer, its length, and place of the length of the text; of texts for the program and about
    /// errors.
    texts: [Option<(usize, usize, usize)>; 2],
    time: Option<usize>,
}

impl CompilerCall {
    /// Reads the options of a call.
    ///
    /// # Errors
    /// An option is refused.
    ///
    /// # Safety
    /// The program passes as many options and values, and keeps the buffers that they name.
    pub unsafe fn of(
        count: c_uint,
        options: *const c_int,
        values: *mut *mut c_void,
    ) -> Done<(CompilerOptions, Self)> {
        let (mut call, mut numbers) = (Self::default(), Vec::new());
        let (mut buffers, mut lengths) = ([None; 2], [None; 2]);
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(INVALID_VALUE);
        }
        for at in 0..count as usize {
            // SAFETY: promised by the caller.
            let (name, value) = unsafe { (*options.add(at), *values.add(at) as usize) };
            let place = values.wrapping_add(at) as usize;
            match name {
                INFO_LOG => buffers[0] = Some(value),
                INFO_LOG_BYTES => lengths[0] = Some((value as u32 as usize, place)),
                ERROR_LOG => buffers[1] = Some(value),
                ERROR_LOG_BYTES => lengths[1] = Some((value as u32 as usize, place)),
                WALL_TIME => call.time = Some(place),
                _ if NAMES.contains(&name) => {
                    return Err(refuse("an option of the compiler that names symbols"));
                }
                _ => numbers.push(Attribute { name, value: value as u32 as i32 }),
            }
        }
        for (at, text) in call.texts.iter_mut().enumerate() {
            *text = match (buffers[at], lengths[at]) {
                (Some(buffer), Some((len, place))) if buffer != 0 && len > 0 => {
                    Some((buffer, len, place))
                }
                _ => None,
            };
        }
        let log_bytes = call.texts.map(|it| it.map_or(0, |it| it.1 as u32));
        Ok((CompilerOptions { values: numbers, log_bytes }, call))
    }

    /// Stores what the compiler said.
    pub fn store(&self, logs: &Logs) {
        for (text, place) in [&logs.info, &logs.errors].into_iter().zip(&self.texts) {
            let Some((buffer, len, length_at)) = *place else { continue };
            // SAFETY: the program passed the buffer with its length, and the place for that of the
            // text.
            let _ = unsafe { put_text(text, buffer as *mut c_char, len) };
            // SAFETY: as above.
            unsafe { *(length_at as *mut usize) = text.len().min(len - 1) };
        }
        if let Some(place) = self.time {
            // SAFETY: as above.
            unsafe { *(place as *mut usize) = logs.ms as usize };
        }
    }
}

/// An image that waits to be linked.
struct Image {
    kind: c_int,
    name: String,
    values: Vec<Attribute>,
    bytes: Vec<u8>,
}

/// A linker.
pub struct Linker {
    device: &'static Device,
    options: CompilerOptions,
    call: CompilerCall,
    images: Mutex<Vec<Image>>,
    /// The cubin, which the program reads until it ends the linker.
    cubin: Mutex<Option<Arc<Vec<u8>>>>,
}

impl Linker {
    fn images(&self) -> MutexGuard<'_, Vec<Image>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds an image to a linker.
///
/// # Safety
/// The arguments of `cuLinkAddData`.
unsafe fn add(
    linker: usize,
    (kind, bytes): (c_int, Vec<u8>),
    name: *const c_char,
    (count, options, values): (c_uint, *const c_int, *mut *mut c_void),
) -> Done {
    let linker = handle::linker(linker)?;
    // SAFETY: promised by the caller, here and below.
    let (options, _) = unsafe { CompilerCall::of(count, options, values) }?;
    // SAFETY: as above.
    let name = if name.is_null() { "" } else { unsafe { text(name) }? }.to_owned();
    linker.images().push(Image { kind, name, values: options.values, bytes });
    Ok(())
}

exported! {
    fn cuLinkCreate_v2(
        count: c_uint,
        options: *mut c_int,
        values: *mut *mut c_void,
        linker: *mut usize,
    ) {
        let device = current()?.device;
        // SAFETY: the program passes what the API asks for, here and below.
        let (options, call) = unsafe { CompilerCall::of(count, options, values) }?;
        let (images, cubin) = (Mutex::default(), Mutex::default());
        let made = Linker { device, options, call, images, cubin };
        // SAFETY: as above.
        unsafe { put(linker, handle::add(Object::Linker(Arc::new(made)))) }
    }

    fn cuLinkAddData_v2(
        linker: usize,
        kind: c_int,
        data: *const u8,
        len: usize,
        name: *const c_char,
        count: c_uint,
        options: *mut c_int,
        values: *mut *mut c_void,
    ) {
        if data.is_null() || len == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
        // SAFETY: as above.
        unsafe { add(linker, (kind, bytes), name, (count, options, values)) }
    }

    fn cuLinkAddFile_v2(
        linker: usize,
        kind: c_int,
        path: *const c_char,
        count: c_uint,
        options: *mut c_int,
        values: *mut *mut c_void,
    ) {
        // SAFETY: as above.
        let bytes = unsafe { file(path) }?;
        // SAFETY: as above.
        unsafe { add(linker, (kind, bytes), path, (count, options, values)) }
    }

    fn cuLinkComplete(linker: usize, cubin: *mut *const c_void, len: *mut usize) {
        let linker = handle::linker(linker)?;
        let link = &linker.device.link;
        link.check()?;
        let images = linker.images();
        let bytes: Vec<u8> = images.iter().flat_map(|it| it.bytes.iter().copied()).collect();
        let named = |it| {
            let Image { kind, name, values, bytes }: &Image = it;
            LinkedImage { kind: *kind, name, values: values.clone(), bytes: bytes.len() as u64 }
        };
        let images: Vec<_> = images.iter().map(named).collect();
        let options = linker.options.clone();
        let answer = link
            .stream
            .with_blob(&bytes, |bytes: Blob<'_>| {
                let request = LinkRequest { options, images, bytes };
                link.stream.call_long(opcode::LINK, &encode(&request))
            })
            .map_err(|error| link.failed(error))?;
        let linked: Linked = decode(&answer).map_err(|_| UNKNOWN)?;
        linker.call.store(&linked.logs);
        if linked.status != SUCCESS {
            return Err(linked.status);
        }
        let made = Arc::new(linked.cubin);
        // SAFETY: as above.
        unsafe { put(cubin, made.as_ptr().cast()) }?;
        // SAFETY: as above.
        unsafe { put_if(len, made.len()) };
        *linker.cubin.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        Ok(())
    }

    fn cuLinkDestroy(linker: usize) {
        handle::linker(linker)?;
        handle::remove(linker);
        Ok(())
    }
}
