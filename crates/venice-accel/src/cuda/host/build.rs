//! Loading and linking of images, on the thread that may take long.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;

use super::execute::{Done, done};
use crate::cuda::library::{Library, call};
use crate::cuda::wire::{Attribute, CompilerOptions, FunctionInfo, Linked, Loaded, Logs, Place};

/// `CUjit_option`s of texts and of the time.
const WALL_TIME: c_int = 2;
const INFO_LOG: c_int = 3;
const INFO_LOG_BYTES: c_int = 4;
const ERROR_LOG: c_int = 5;
const ERROR_LOG_BYTES: c_int = 6;
/// `CUjit_option`s that hold addresses of the program, or count what is there.
const POINTERS: [c_int; 9] = [INFO_LOG, ERROR_LOG, 17, 18, 19, 25, 26, 27, 28];
/// Longest text of the compiler in bytes.
const MAX_LOG_BYTES: u32 = 1 << 20;
/// Numbers of a function's attributes that are asked for.
const FUNCTION_ATTRIBUTES: std::ops::Range<i32> = 0..16;
/// Most parameters of a kernel that are asked for.
const MAX_PARAMETERS: usize = 4096;

/// A module that was loaded.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) raw: usize,
    /// Its functions; their numbers follow.
    pub(super) functions: Vec<(usize, FunctionInfo)>,
}

/// An image to link.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) kind: i32,
    pub(super) name: CString,
    pub(super) values: Vec<Attribute>,
    pub(super) bytes: Vec<u8>,
}

/// Options in the form of the API, and what they point to.
struct Options {
    names: Vec<c_int>,
    values: Vec<*mut c_void>,
    /// Buffers of the texts for the program and about errors, and the places of their lengths.
    texts: [Option<(Vec<u8>, usize)>; 2],
    time_place: Option<usize>,
}

impl Options {
    fn new(asked: &CompilerOptions) -> Self {
        let (mut names, mut values) = numbers(&asked.values);
        let kinds = [(INFO_LOG, INFO_LOG_BYTES), (ERROR_LOG, ERROR_LOG_BYTES)];
        let texts = std::array::from_fn(|at| {
            let mut text = vec![0_u8; asked.log_bytes[at].min(MAX_LOG_BYTES) as usize];
            if text.is_empty() {
                return None;
            }
            names.extend([kinds[at].0, kinds[at].1]);
            values.push(text.as_mut_ptr().cast());
            values.push(std::ptr::without_provenance_mut(text.len()));
            Some((text, values.len() - 1))
        });
        // A plain load has no options at all.
        let time_place = (!names.is_empty()).then(|| {
            names.push(WALL_TIME);
            values.push(null_mut());
            values.len() - 1
        });
        Self { names, values, texts, time_place }
    }

    fn count(&self) -> u32 {
        self.names.len() as u32
    }

    /// Returns what the compiler has stored.
    fn logs(&self) -> Logs {
        let text = |at: usize| {
            let Some((text, place)) = &self.texts[at] else { return String::new() };
            let len = (self.values[*place] as usize).min(text.len());
            let end = text[..len].iter().position(|it| *it == 0).unwrap_or(len);
            String::from_utf8_lossy(&text[..end]).into_owned()
        };
        let ms = self.time_place.map_or(0, |place| self.values[place] as usize as u32);
        Logs { info: text(0), errors: text(1), ms }
    }
}

fn numbers(values: &[Attribute]) -> (Vec<c_int>, Vec<*mut c_void>) {
    let is_number = |it: &&Attribute| {
        it.name >= 0
            && ![WALL_TIME, INFO_LOG_BYTES, ERROR_LOG_BYTES].contains(&it.name)
            && !POINTERS.contains(&it.name)
    };
    let value =
        |it: &Attribute| (it.name, std::ptr::without_provenance_mut(it.value as u32 as usize));
    values.iter().filter(is_number).map(value).unzip()
}

/// Loads an image.
pub(super) fn load(
    library: &Library,
    image: &[u8],
    asked: &CompilerOptions,
) -> (Done<Module>, Logs) {
    let mut options = Options::new(asked);
    let loaded = load_with(library, image, &mut options);
    (loaded, options.logs())
}

fn load_with(library: &Library, image: &[u8], options: &mut Options) -> Done<Module> {
    let mut raw = 0;
    let (names, values) = (options.names.as_mut_ptr(), options.values.as_mut_ptr());
    let (image, count) = (image.as_ptr().cast(), options.count());
    done(call!(library, cuModuleLoadDataEx(&raw mut raw, image, count, names, values)))?;
    let functions = functions_of(library, raw);
    if functions.is_err() {
        let _ = call!(library, cuModuleUnload(raw));
    }
    Ok(Module { raw, functions: functions? })
}

fn functions_of(library: &Library, module: usize) -> Done<Vec<(usize, FunctionInfo)>> {
    let mut count = 0;
    done(call!(library, cuModuleGetFunctionCount(&raw mut count, module)))?;
    let mut all = vec![0_usize; count as usize];
    done(call!(library, cuModuleEnumerateFunctions(all.as_mut_ptr(), count, module)))?;
    all.into_iter().map(|raw| Ok((raw, describe(library, raw)?))).collect()
}

/// Describes a kernel, but for its number.
fn describe(library: &Library, raw: usize) -> Done<FunctionInfo> {
    let mut name = std::ptr::null();
    done(call!(library, cuFuncGetName(&raw mut name, raw)))?;
    // SAFETY: the driver returns a terminated string, which lives as long as the module.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut parameters = Vec::new();
    for place in 0..MAX_PARAMETERS {
        let (mut offset, mut bytes) = (0, 0);
        let asked = call!(library, cuFuncGetParamInfo(raw, place, &raw mut offset, &raw mut bytes));
        if asked.is_err() {
            break;
        }
        parameters.push(Place { offset: offset as u64, bytes: bytes as u64 });
    }
    let attribute = |name| {
        let mut value = 0;
        let asked = call!(library, cuFuncGetAttribute(&raw mut value, name, raw));
        asked.ok().map(|()| Attribute { name, value })
    };
    let attributes = FUNCTION_ATTRIBUTES.filter_map(attribute).collect();
    Ok(FunctionInfo { name, number: 0, parameters, attributes })
}

/// Links images.
pub(super) fn link(library: &Library, images: Vec<Image>, asked: &CompilerOptions) -> Linked {
    let mut options = Options::new(asked);
    let linked = link_with(library, images, &mut options);
    let logs = options.logs();
    match linked {
        Ok(cubin) => Linked { status: 0, cubin, logs },
        Err(status) => Linked { status, cubin: Vec::new(), logs },
    }
}

fn link_with(library: &Library, images: Vec<Image>, options: &mut Options) -> Done<Vec<u8>> {
    let mut state = 0;
    let (names, values) = (options.names.as_mut_ptr(), options.values.as_mut_ptr());
    done(call!(library, cuLinkCreate_v2(options.count(), names, values, &raw mut state)))?;
    let cubin = linked(library, state, images);
    let _ = call!(library, cuLinkDestroy(state));
    cubin
}

fn linked(library: &Library, state: usize, images: Vec<Image>) -> Done<Vec<u8>> {
    for mut image in images {
        let (mut names, mut values) = numbers(&image.values);
        let (bytes, len) = (image.bytes.as_mut_ptr().cast(), image.bytes.len());
        let (count, names, values) = (names.len() as u32, names.as_mut_ptr(), values.as_mut_ptr());
        let name = image.name.as_ptr();
        done(call!(
            library,
            cuLinkAddData_v2(state, image.kind, bytes, len, name, count, names, values)
        ))?;
    }
    let (mut cubin, mut len) = (null_mut(), 0);
    done(call!(library, cuLinkComplete(state, &raw mut cubin, &raw mut len)))?;
    // SAFETY: the driver keeps the cubin until the state is destroyed.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), len) }.to_vec())
}

/// Returns what a recipient is told of a failure.
pub(super) fn failed(status: i32, logs: Logs) -> Loaded {
    Loaded { status, functions: Vec::new(), logs }
}
