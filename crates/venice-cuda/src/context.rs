//! Contexts. Those of one device share the one of its host.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use venice_accel::cuda::wire::{Command, Told, encode, opcode};

use crate::call::*;
use crate::device::{self, Device};
use crate::gates;
use crate::handle::{self, Object};
use crate::link::Link;
use crate::names::refuse;

/// A context.
pub struct Context {
    pub device: &'static Device,
    is_primary: bool,
}

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// `CUctxCreateParams`.
#[repr(C)]
struct CreateParameters {
    affinities: *const c_void,
    count: c_int,
    shared: *const c_void,
}

/// Returns the handle of the current context, 0 without one.
fn current_handle() -> usize {
    CURRENT.with_borrow(|all| all.last().copied().unwrap_or(0))
}

/// The current context.
pub struct Current {
    pub handle: usize,
    pub device: &'static Device,
}

impl Current {
    pub fn link(&self) -> &'static Arc<Link> {
        &self.device.link
    }
}

/// Returns the current context, without looks at its errors. Fails in functions that streams call.
pub fn current_of_any_state() -> Done<Current> {
    device::initialized()?;
    if gates::is_called_by_stream() {
        return Err(NOT_PERMITTED);
    }
    let handle = current_handle();
    let context = if handle == 0 { return Err(INVALID_CONTEXT) } else { handle::context(handle)? };
    Ok(Current { handle, device: context.device })
}

/// Returns the current context; fails once one of its kernels has failed.
pub fn current() -> Done<Current> {
    let current = current_of_any_state()?;
    current.link().check()?;
    Ok(current)
}

/// Returns the handle of a device's primary context.
fn primary(device: &'static Device) -> usize {
    *device.primary.get_or_init(|| {
        handle::add(Object::Context(Arc::new(Context { device, is_primary: true })))
    })
}

/// Gives what was made in a context back.
fn release(context: usize, link: &Link) {
    for object in handle::remove_of(context) {
        match object {
            Object::Context(_)
            | Object::Function(_)
            | Object::Library(_)
            | Object::Kernel(_)
            | Object::Linker(_)
            | Object::Pool(_)
            | Object::Graph(_)
            | Object::Node(_)
            | Object::Exec(_) => {}
            Object::Module(module) => link.stream.release(module.id),
            Object::Stream(stream) => link.stream.release(stream.id),
            Object::Event(event) => link.stream.release(event.id),
        }
    }
    for (address, allocation) in link.take_memory_of(context) {
        let _ = link.free_memory(address, &allocation);
    }
    for pool in link.pools() {
        pool.trim(0);
    }
}

fn create(context: *mut usize, number: c_int) -> Done {
    let device = device::device(number)?;
    device.link.check()?;
    let made = handle::add(Object::Context(Arc::new(Context { device, is_primary: false })));
    CURRENT.with_borrow_mut(|all| all.push(made));
    // SAFETY: the program passes room for a handle.
    unsafe { put(context, made) }
}

exported! {
    fn cuDevicePrimaryCtxRetain(context: *mut usize, number: c_int) {
        let device = device::device(number)?;
        device.link.check()?;
        device.add_use(1);
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put(context, primary(device)) }
    }

    fn cuDevicePrimaryCtxRelease_v2(number: c_int) {
        let device = device::device(number)?;
        if !device.remove_use() {
            return Err(INVALID_CONTEXT);
        }
        if device.uses() == 0 {
            release(primary(device), &device.link);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(number: c_int) {
        let device = device::device(number)?;
        release(primary(device), &device.link);
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(number: c_int, _flags: c_uint) {
        device::device(number).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(number: c_int, flags: *mut c_uint, active: *mut c_int) {
        let device = device::device(number)?;
        // SAFETY: as above.
        unsafe { put_if(flags, 0) };
        // SAFETY: as above.
        unsafe { put(active, c_int::from(device.uses() > 0)) }
    }

    fn cuCtxCreate_v2(context: *mut usize, _flags: c_uint, number: c_int) {
        create(context, number)
    }

    fn cuCtxCreate_v3(
        context: *mut usize,
        affinities: *const c_void,
        count: c_int,
        _flags: c_uint,
        number: c_int,
    ) {
        if !affinities.is_null() && count > 0 {
            return Err(refuse("cuCtxCreate with an execution affinity"));
        }
        create(context, number)
    }

    fn cuCtxCreate_v4(
        context: *mut usize,
        parameters: *const CreateParameters,
        _flags: c_uint,
        number: c_int,
    ) {
        // SAFETY: as above.
        let has_any = unsafe { parameters.as_ref() }.is_some_and(|it| {
            (!it.affinities.is_null() && it.count > 0) || !it.shared.is_null()
        });
        if has_any {
            return Err(refuse("cuCtxCreate with an execution affinity"));
        }
        create(context, number)
    }

    fn cuCtxDestroy_v2(context: usize) {
        let its = handle::context(context)?;
        if its.is_primary {
            return Err(INVALID_CONTEXT);
        }
        release(context, &its.device.link);
        handle::remove(context);
        CURRENT.with_borrow_mut(|all| {
            if all.last() == Some(&context) {
                all.pop();
            }
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        handle::context(context)?;
        CURRENT.with_borrow_mut(|all| all.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        // SAFETY: as above.
        unsafe { put_if(context, popped) };
        Ok(())
    }

    fn cuCtxSetCurrent(context: usize) {
        device::initialized()?;
        if context != 0 {
            handle::context(context)?;
        }
        CURRENT.with_borrow_mut(|all| {
            all.pop();
            if context != 0 {
                all.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        device::initialized()?;
        // SAFETY: as above.
        unsafe { put(context, current_handle()) }
    }

    fn cuCtxGetDevice(number: *mut c_int) {
        let current = current_of_any_state()?;
        // SAFETY: as above.
        unsafe { put(number, current.device.number) }
    }

    fn cuCtxGetApiVersion(context: usize, version: *mut c_uint) {
        if context != 0 {
            handle::context(context)?;
        }
        // SAFETY: as above.
        unsafe { put(version, 3020) }
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        current()?;
        // SAFETY: as above.
        unsafe { put(flags, 0) }
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current()?;
        // SAFETY: as above.
        unsafe { put_if(least, 0) };
        // SAFETY: as above.
        unsafe { put_if(greatest, 0) };
        Ok(())
    }

    fn cuCtxSynchronize() {
        current()?.link().wait_for_all()
    }

    fn cuCtxSynchronize_v2(context: usize) {
        let its = handle::context(context)?;
        its.device.link.check()?;
        its.device.link.wait_for_all()
    }

    fn cuCtxGetDevice_v2(number: *mut c_int, context: usize) {
        let its = if context == 0 { current()?.device } else { handle::context(context)?.device };
        // SAFETY: as above.
        unsafe { put(number, its.number) }
    }

    fn cuCtxGetId(context: usize, id: *mut u64) {
        let its = if context == 0 { current()?.handle } else { context };
        handle::context(its)?;
        // SAFETY: as above.
        unsafe { put(id, its as u64) }
    }

    fn cuCtxSetFlags(_flags: c_uint) {
        current().map(drop)
    }

    fn cuCtxGetLimit(value: *mut usize, limit: c_int) {
        let told: Told = current()?.link().call(opcode::LIMIT, &encode(&limit))?;
        if told.status != SUCCESS {
            return Err(told.status);
        }
        // SAFETY: as above.
        unsafe { put(value, told.value as usize) }
    }

    fn cuCtxSetLimit(limit: c_int, value: usize) {
        let current = current()?;
        // The driver knows which limits there are.
        let told: Told = current.link().call(opcode::LIMIT, &encode(&limit))?;
        if told.status != SUCCESS {
            return Err(told.status);
        }
        current.link().submit(&Command::SetLimit { limit, value: value as u64 })
    }

    // Preferences: they change no result.
    fn cuCtxGetCacheConfig(config: *mut c_int) {
        current()?;
        // SAFETY: as above.
        unsafe { put(config, 0) }
    }

    fn cuCtxSetCacheConfig(_config: c_int) {
        current().map(drop)
    }

    fn cuCtxGetSharedMemConfig(config: *mut c_int) {
        current()?;
        // SAFETY: as above; banks of four bytes.
        unsafe { put(config, 1) }
    }

    fn cuCtxSetSharedMemConfig(_config: c_int) {
        current().map(drop)
    }

    fn cuCtxResetPersistingL2Cache() {
        current().map(drop)
    }

    fn cuCtxEnablePeerAccess(context: usize, _flags: c_uint) {
        current()?;
        handle::context(context)?;
        Err(PEER_ACCESS_UNSUPPORTED)
    }

    fn cuCtxDisablePeerAccess(context: usize) {
        current()?;
        handle::context(context)?;
        Err(PEER_ACCESS_NOT_ENABLED)
    }

    fn cuProfilerStart() {
        current().map(drop)
    }

    fn cuProfilerStop() {
        current().map(drop)
    }
}
