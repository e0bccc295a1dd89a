//! `venice_pool`.

use std::ffi::c_char;

use venice_client::accel::{Argument, Code, Executable, Pool};
use venice_client::{Error, Rack};

use crate::arguments::{give, handle, items, place, room, take, text};
use crate::device::{Options, options};
use crate::status::{Status, status_of};

/// `venice_argument` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct CArgument {
    kind: u32,
    value: *const u8,
    value_bytes: usize,
    offset: u64,
    bytes: u64,
}

/// `venice_executable` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct CExecutable {
    struct_bytes: usize,
    code_kind: u32,
    name: *const c_char,
    options: *const c_char,
    code: *const u8,
    code_bytes: usize,
    global: [u64; 3],
    local: [u64; 3],
    arguments: *const CArgument,
    argument_count: usize,
}

/// `venice_task` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct CTask {
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
}

/// Converts an executable.
///
/// # Safety
/// The requirements of [`crate::arguments`].
unsafe fn executable(executable: *const CExecutable) -> Result<Executable, Error> {
    // SAFETY: guaranteed by the caller; every version of the struct begins with its length.
    let struct_bytes = unsafe { *handle(executable.cast::<usize>(), "executable")? };
    if struct_bytes != size_of::<CExecutable>() {
        let said = "invalid executable: begin with VENICE_EXECUTABLE";
        return Err(Error::Invalid(said.into()));
    }
    // SAFETY: guaranteed by the caller, for all of them.
    let (given, name, build, code, arguments) = unsafe {
        let given = &*executable;
        let name = text(given.name, "name")?.unwrap_or_default();
        let build = text(given.options, "options")?.unwrap_or_default();
        let code = items(given.code, given.code_bytes, "code")?;
        (given, name, build, code, items(given.arguments, given.argument_count, "arguments")?)
    };
    let code = match given.code_kind {
        1 => Code::BuiltIn,
        2 => Code::OpenClSource(code.to_vec()),
        3 => Code::SpirV(code.to_vec()),
        4 => Code::DeviceBinary(code.to_vec()),
        kind => return Err(Error::Invalid(format!("invalid kind of code {kind}"))),
    };
    // SAFETY: guaranteed by the caller.
    let arguments = arguments.iter().map(|it| unsafe { argument(it) });
    Ok(Executable {
        code,
        name: name.to_owned(),
        options: build.to_owned(),
        global: given.global,
        local: given.local,
        arguments: arguments.collect::<Result<_, _>>()?,
    })
}

/// Converts an argument.
///
/// # Safety
/// The requirements of [`crate::arguments`].
unsafe fn argument(given: &CArgument) -> Result<Argument, Error> {
    let CArgument { kind, value, value_bytes, offset, bytes } = *given;
    match kind {
        // SAFETY: guaranteed by the caller.
        1 => Ok(Argument::Value(unsafe { items(value, value_bytes, "value") }?.to_vec())),
        2 => Ok(Argument::Input { offset, bytes }),
        3 => Ok(Argument::Output { offset, bytes }),
        4 => Ok(Argument::Local(bytes)),
        kind => Err(Error::Invalid(format!("invalid kind of argument {kind}"))),
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_get_pool(
    rack: *const Rack,
    count: u32,
    needs: *const c_char,
    options_pointer: *const Options,
    pool: *mut *mut Pool,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(pool, || {
            let needs = text(needs, "needs")?.unwrap_or_default();
            Pool::get(handle(rack, "rack")?, count, needs, &options(options_pointer)?)
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_pool_from_grants(pool: *mut *mut Pool) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe { give(pool, Pool::from_grants) })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`]; no two tasks share bytes of their outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_pool_map(
    pool: *mut Pool,
    executable_pointer: *const CExecutable,
    tasks: *mut CTask,
    count: usize,
) -> Status {
    let map = || {
        // SAFETY: guaranteed by the caller.
        let (pool, run) = unsafe { (place(pool, "pool")?, executable(executable_pointer)?) };
        // SAFETY: guaranteed by the caller.
        let given = unsafe { items(tasks.cast_const(), count, "tasks") }?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for task in given {
            // SAFETY: guaranteed by the caller.
            unsafe {
                inputs.push(items(task.input, task.input_bytes, "input")?);
                outputs.push(room(task.output, task.output_bytes, "output")?);
            }
        }
        let lens = pool.map_into(&run, &inputs, &mut outputs)?;
        for (at, len) in lens.into_iter().enumerate() {
            // SAFETY: one of the `count` tasks, to which no reference is left.
            unsafe { (*tasks.add(at)).output_bytes = len };
        }
        Ok(())
    };
    status_of(map())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_pool_size(pool: *const Pool) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { pool.as_ref() }.map_or(0, Pool::len)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_free_pool(pool: *mut Pool) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(pool) });
}
