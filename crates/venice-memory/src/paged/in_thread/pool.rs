//! The pool of handlers that serve faults in the program's threads: a handler and a stack each.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::far::FarError;
use super::super::handler::Handler;
use super::super::page_table::PageNumber;
use super::super::pager::Pager;
use super::super::sys::{self, SysResult};

/// Threads that are served at the same time. Others wait for a free handler, each for as long as a
/// fault takes.
const HANDLERS: usize = 32;
/// Bytes of a stack, used from the top; the lowest page is never touched in order.
const STACK_BYTES: usize = 64 * 1024;

/// A fault to be served by a handler of the pool.
#[derive(Clone, Copy, Debug)]
pub struct FaultRequest {
    pub page: PageNumber,
    pub write: bool,
    /// True if the program advised that it will need the page, and has not touched it.
    pub is_advised: bool,
}

/// The pool. See the module.
pub struct HandlerPool {
    /// A bit for each free handler.
    free: AtomicU64,
    handlers: Box<[UnsafeCell<Handler>]>,
    stacks: usize,
}

// SAFETY: a handler is reached only by the thread that took its bit, one at a time.
unsafe impl Sync for HandlerPool {}

/// Maps the memory of all stacks.
///
/// # Errors
/// The kernel's, when there is no address space.
pub fn map_stacks() -> SysResult<usize> {
    sys::map_private(HANDLERS * STACK_BYTES).map(|stacks| stacks as usize)
}

/// Unmaps the stacks; no thread may be on one of them.
pub fn unmap_stacks(stacks: usize) {
    // SAFETY: mapped by `map_stacks`; that no stack is in use is the caller's promise.
    unsafe { sys::unmap(stacks as *mut _, HANDLERS * STACK_BYTES) };
}

impl HandlerPool {
    /// Makes a pool on `stacks`, all of it free.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn new(pager: &'static Pager, stacks: usize) -> Result<HandlerPool, FarError> {
        let handler = |_| Ok(UnsafeCell::new(Handler::in_thread(pager, pager.far()?)));
        let handlers = (0..HANDLERS).map(handler).collect::<Result<_, FarError>>()?;
        Ok(HandlerPool { free: AtomicU64::new((1 << HANDLERS) - 1), handlers, stacks })
    }

    /// Serves a fault. `false`: the page cannot be placed.
    ///
    /// All signals must be blocked.
    pub fn serve(&self, request: FaultRequest) -> bool {
        let index = self.take();
        let stack_top = self.stacks + (index + 1) * STACK_BYTES;
        let mut call = Call { request, handler: self.handlers[index].get(), is_served: false };
        // SAFETY: the handler and its stack are this thread's alone.
        unsafe { call_on(stack_top, &mut call) };
        self.free.fetch_or(1 << index, Ordering::Release);
        call.is_served
    }

    fn take(&self) -> usize {
        loop {
            let free = self.free.load(Ordering::Relaxed);
            let index = free.trailing_zeros() as usize;
            if index >= HANDLERS {
                sys::yield_now();
                continue;
            }
            let left = free & !(1 << index);
            let taken =
                self.free.compare_exchange_weak(free, left, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return index;
            }
        }
    }
}

/// The arguments that a thread takes to another stack.
struct Call {
    request: FaultRequest,
    handler: *mut Handler,
    is_served: bool,
}

extern "C" fn serve(call: &mut Call) {
    // The caller's stack may be far: it is read while no lock is held.
    let (request, handler) = (call.request, call.handler);
    // SAFETY: the caller has taken the handler.
    let handler = unsafe { &mut *handler };
    call.is_served = handler.serve_in_thread(request.page, request.write, request.is_advised);
}

/// Calls [`serve`] on another stack.
///
/// # Safety
/// No other thread may be on that stack.
unsafe fn call_on(stack_top: usize, call: &mut Call) {
    // SAFETY: the stack is the caller's alone and long enough; the callee preserves r12.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {serve}",
            "mov rsp, r12",
            top = in(reg) stack_top,
            serve = sym serve,
            in("rdi") std::ptr::from_mut(call),
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_bits_fit_one_word() {
        assert!(HANDLERS < u64::BITS as usize);
        let stacks = map_stacks().expect("address space");
        unmap_stacks(stacks);
    }
}
