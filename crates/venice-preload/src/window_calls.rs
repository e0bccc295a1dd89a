//! Replacements of the C library's calls that change the address space, where the slabs are mapped
//! into the program itself (`venice run --mode window`).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use venice_memory::paged::sys::{self, Errno, Remap, SysResult, nr};
use venice_memory::paged::{Management, PAGE, Tether, Window, management};

use crate::mappings::{MAP_FIXED, READ_WRITE, answer, int_answer, is_range, set_break};
use crate::{c, mappings, patch};

/// Ends this process with its supervisor, in forked children too.
static TETHER: AtomicPtr<Tether> = AtomicPtr::new(std::ptr::null_mut());
static WINDOW: AtomicPtr<Window> = AtomicPtr::new(std::ptr::null_mut());
/// The C library's own `fork`.
static FORK: AtomicUsize = AtomicUsize::new(0);
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// The window of this process, if it has one.
pub fn window() -> Option<&'static Window> {
    // SAFETY: null, or the argument of `install`, which lives for ever.
    unsafe { WINDOW.load(Ordering::Acquire).as_ref() }.filter(|window| window.is_active())
}

/// The tether of this process to its supervisor, if it has a window or was forked by one that had.
pub fn tether() -> Option<&'static Tether> {
    // SAFETY: null, or the argument of `install`, which lives for ever.
    unsafe { TETHER.load(Ordering::Acquire).as_ref() }
}

/// Places the program's memory in `window` from now on, and keeps the program from closing the
/// descriptors of `tether`.
///
/// # Errors
/// The name of a function that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install(
    window: &'static Window,
    tether: &'static Tether,
) -> Result<(), (&'static str, patch::PatchError)> {
    let calls = mappings::Calls {
        mmap: mmap as *const () as usize,
        munmap: munmap as *const () as usize,
        mremap: mremap as *const () as usize,
        madvise: madvise as *const () as usize,
        brk: brk as *const () as usize,
    };
    // SAFETY: each takes and returns the same as the function that it replaces.
    unsafe {
        mappings::install_calls(&calls)?;
        let mprotect = mprotect as *const () as usize;
        patch::replace(c"mprotect", mprotect).map_err(|e| ("mprotect", e))?;
    }
    TETHER.store(std::ptr::from_ref(tether).cast_mut(), Ordering::Release);
    WINDOW.store(std::ptr::from_ref(window).cast_mut(), Ordering::Release);
    Ok(())
}

extern "C" fn mmap(
    addr: *mut c_void,
    len_bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let flags = flags as u32 as usize;
    let arguments = [
        addr as usize,
        len_bytes,
        protection as usize,
        flags,
        fd as isize as usize,
        offset as usize,
    ];
    // SAFETY: what the program asked for.
    let map = || unsafe { sys::program_syscall(nr::MMAP, arguments) };
    // A reservation that may not be used yet would take slabs for nothing.
    let goes_in = management(flags) == Management::Private && protection == READ_WRITE;
    let is_fixed = flags & MAP_FIXED != 0;
    let outcome = match window().filter(|_| goes_in || is_fixed) {
        None => map(),
        Some(window) => {
            let mut structure = window.hold();
            map().and_then(|addr| {
                structure.release(addr, len_bytes);
                if goes_in && let Err(error) = structure.place(addr, len_bytes) {
                    unmap(addr, len_bytes);
                    return Err(error);
                }
                Ok(addr)
            })
        }
    };
    answer(outcome, usize::MAX) as *mut c_void
}

/// Holds the structure lock during the call: a moving page keeps the protection that was read
/// before.
extern "C" fn mprotect(addr: *mut c_void, len_bytes: usize, protection: c_int) -> c_int {
    let _structure = window().map(Window::hold);
    let arguments = [addr as usize, len_bytes, protection as usize, 0, 0, 0];
    // SAFETY: what the program asked for.
    let outcome = unsafe { sys::program_syscall(nr::MPROTECT, arguments) };
    int_answer(outcome)
}

fn unmap(addr: usize, len_bytes: usize) {
    // SAFETY: just mapped for the program, which does not use it yet.
    let _ = unsafe { sys::program_syscall(nr::MUNMAP, [addr, len_bytes, 0, 0, 0, 0]) };
}

extern "C" fn munmap(addr: *mut c_void, len_bytes: usize) -> c_int {
    let addr = addr as usize;
    // SAFETY: what the program asked for.
    let unmap = || unsafe { sys::program_syscall(nr::MUNMAP, [addr, len_bytes, 0, 0, 0, 0]) };
    let outcome = match window().filter(|_| is_range(addr, len_bytes)) {
        None => unmap(),
        Some(window) => {
            let mut structure = window.hold();
            unmap().inspect(|_| structure.release(addr, len_bytes))
        }
    };
    int_answer(outcome)
}

/// Variadic in C; its fifth argument comes in the same register.
extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new_addr: *mut c_void,
) -> *mut c_void {
    let (old, flags, new_addr) = (old as usize, flags as usize, new_addr as usize);
    let remap = Remap { old, old_len, new_len, flags, new_addr };
    let outcome = match window().filter(|_| is_range(old, old_len)) {
        Some(window) => window.hold().relocate(remap),
        // SAFETY: what the program asked for.
        None => unsafe { remap.call() },
    };
    answer(outcome, usize::MAX) as *mut c_void
}

extern "C" fn madvise(addr: *mut c_void, len_bytes: usize, advice: c_int) -> c_int {
    let (addr, advice) = (addr as usize, advice as usize);
    if let Some(window) = window().filter(|_| is_range(addr, len_bytes)) {
        let mut structure = window.hold();
        if structure.touches(addr, len_bytes)
            && let Some(outcome) = advise(|| structure.discard(addr, len_bytes), advice)
        {
            return int_answer(outcome.map(|()| 0));
        }
    }
    // SAFETY: what the program asked for.
    let outcome = unsafe { sys::madvise(addr, len_bytes, advice) };
    int_answer(outcome.map(|()| 0))
}

/// Applies advice on memory in the window; `None`: it is passed to the kernel.
fn advise(discard: impl FnOnce() -> SysResult<()>, advice: usize) -> Option<SysResult<()>> {
    match advice {
        sys::MADV_DONTNEED | sys::MADV_FREE | sys::MADV_DONTNEED_LOCKED => Some(discard()),
        // The kernel could do nothing for such memory.
        sys::MADV_HUGEPAGE | sys::MADV_COLLAPSE | sys::MADV_COLD | sys::MADV_PAGEOUT => {
            Some(Ok(()))
        }
        _ => None,
    }
}

extern "C" fn brk(addr: *mut c_void) -> c_int {
    let wanted = addr as usize;
    // SAFETY: the kernel returns the current break.
    let ask = |addr| unsafe { sys::program_syscall(nr::BRK, [addr, 0, 0, 0, 0, 0]) }.unwrap_or(0);
    let now = match window() {
        Some(window) => move_break(window, wanted, ask),
        None => ask(wanted),
    };
    set_break(now);
    if now < wanted { int_answer(Err(Errno::ENOMEM)) } else { 0 }
}

fn move_break(window: &'static Window, wanted: usize, ask: impl Fn(usize) -> usize) -> usize {
    let mut structure = window.hold();
    let was = ask(0);
    let now = ask(wanted);
    let (before, after) = (was.next_multiple_of(PAGE), now.next_multiple_of(PAGE));
    if after < before {
        structure.release(after, before - after);
    } else if after > before && structure.place(before, after - before).is_err() {
        return ask(was);
    }
    now
}

/// Finds the C library's `fork`, before it is called.
pub fn find_fork() {
    if let Some(symbol) = c::libc_symbol(c"fork") {
        FORK.store(symbol.address, Ordering::Relaxed);
    }
}

/// Replaces the C library's `fork`: refuses the fork where the child could not get a copy of the
/// parent's memory at that moment.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> c_int {
    let window = window();
    if window.is_some_and(|window| !window.begin_fork()) {
        if !IS_REPORTED.swap(true, Ordering::Relaxed) {
            let text = "venice: a program of several threads may not fork in --mode window \
                        (ENOSYS): use --mode paged\n";
            let _ = sys::write(2, text.as_bytes());
        }
        const ENOSYS: Errno = Errno(38);
        return int_answer(Err(ENOSYS));
    }
    if FORK.load(Ordering::Relaxed) == 0 {
        // A library that was loaded before this one forks already.
        find_fork();
    }
    let address = FORK.load(Ordering::Relaxed);
    assert!(address != 0, "the C library has a fork");
    // SAFETY: the C library's `fork`, which takes nothing and returns a number.
    let fork: extern "C" fn() -> c_int = unsafe { std::mem::transmute(address) };
    let child = fork();
    if child != 0
        && let Some(window) = window
    {
        window.end_fork();
    }
    child
}
