//! Replacements of the C library's calls that change the address space.
//!
//! Each makes the same system call, and keeps the pager's table in step. They run on the program's
//! threads, on the program's stacks, which may be far themselves: nothing here holds anything that
//! the fault handler needs.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use venice_memory::paged::sys::{self, Errno, Remap, SysResult, nr};
use venice_memory::paged::{
    Hint, Locking, Management, PAGE, PageSize, Pager, Structure, management,
};

use crate::pager_instance::pager;
use crate::{c, locks, patch};

pub const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_POPULATE: usize = 0x8000;
const MAP_LOCKED: usize = 0x2000;
const PROT_NONE: c_int = 0;
pub const READ_WRITE: c_int = 1 | 2;
const MREMAP_FIXED: usize = 2;
const POSIX_MADV_DONTNEED: usize = 4;

/// The C library's own record of the program break (`__curbrk`).
static CURRENT_BREAK: AtomicUsize = AtomicUsize::new(0);

/// Installs the functions of this file.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    let calls = Calls {
        mmap: mmap as *const () as usize,
        munmap: munmap as *const () as usize,
        mremap: mremap as *const () as usize,
        madvise: madvise as *const () as usize,
        brk: brk as *const () as usize,
    };
    // SAFETY: each takes and returns the same as the function that it replaces.
    unsafe {
        install_calls(&calls)?;
        let posix_madvise = posix_madvise as *const () as usize;
        patch::replace(c"posix_madvise", posix_madvise).map_err(|e| ("posix_madvise", e))
    }
}

/// The addresses of functions that replace the C library's.
pub struct Calls {
    /// `mmap(2)`
    pub mmap: usize,
    /// `munmap(2)`
    pub munmap: usize,
    /// `mremap(2)`
    pub mremap: usize,
    /// `madvise(2)`
    pub madvise: usize,
    /// `brk(2)`
    pub brk: usize,
}

/// Installs `calls`.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// Each must take and return the same as the function that it replaces, and no other thread may be
/// running.
pub unsafe fn install_calls(calls: &Calls) -> Result<(), (&'static str, patch::PatchError)> {
    let missing = ("__curbrk", patch::PatchError::Missing);
    let current_break = c::libc_symbol(c"__curbrk").ok_or(missing)?;
    CURRENT_BREAK.store(current_break.address, Ordering::Relaxed);
    // SAFETY: forwarded to the caller.
    unsafe {
        patch::replace(c"mmap", calls.mmap).map_err(|e| ("mmap", e))?;
        patch::replace(c"munmap", calls.munmap).map_err(|e| ("munmap", e))?;
        patch::replace(c"mremap", calls.mremap).map_err(|e| ("mremap", e))?;
        patch::replace(c"madvise", calls.madvise).map_err(|e| ("madvise", e))?;
        patch::replace(c"brk", calls.brk).map_err(|e| ("brk", e))
    }
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
    let arguments = |flags| {
        [
            addr as usize,
            len_bytes,
            protection as usize,
            flags,
            fd as isize as usize,
            offset as usize,
        ]
    };
    if let Some(mapped) = map_file(addr as usize, len_bytes, protection as usize, flags, fd, offset)
    {
        return answer(mapped, usize::MAX) as *mut c_void;
    }
    let kind = management(flags);
    let manage = kind == Management::Private;
    let fixed = flags & MAP_FIXED != 0;
    let locking = pager().and_then(Pager::locks_future);
    let is_populated = !manage && locking == Some(Locking::Populated);
    let flags = if is_populated { flags | MAP_LOCKED } else { flags };
    // Memory that is locked as it is mapped stays the kernel's.
    let is_shared = kind == Management::Shared && locking.is_none();
    let pager = pager().filter(|_| manage || is_shared || fixed || locking.is_some());
    if let Some(pager) = pager.filter(|_| is_shared) {
        let (addr, protection) = (addr as usize, protection as usize);
        let mapped = pager.hold_structure().map_shared(addr, len_bytes, protection, flags);
        if let Some(mapped) = mapped {
            return answer(mapped, usize::MAX) as *mut c_void;
        }
    }
    let outcome = match pager {
        // SAFETY: what the program asked for.
        None => unsafe { sys::program_syscall(nr::MMAP, arguments(flags)) },
        Some(pager) => {
            let mut structure = pager.hold_structure();
            // Populating would bring everything in before the pager can enforce the budget.
            let flags = if manage { flags & !MAP_POPULATE } else { flags };
            // SAFETY: as above.
            let map = || unsafe { sys::program_syscall(nr::MMAP, arguments(flags)) };
            let mapped =
                if fixed { structure.replace(addr as usize, len_bytes, map) } else { map() };
            if let Ok(addr) = mapped
                && manage
            {
                match protection {
                    READ_WRITE => structure.adopt_usable(addr, len_bytes),
                    _ => structure.adopt(addr, len_bytes),
                }
            }
            drop(structure);
            match mapped {
                Ok(addr) if locking.is_some() && !is_populated && protection != PROT_NONE => {
                    lock_or_unmap(pager, addr, len_bytes)
                }
                _ => mapped,
            }
        }
    };
    answer(outcome, usize::MAX) as *mut c_void
}

/// Maps a shared file of the run. `None`: it is none, or cannot be served; the kernel refuses to
/// map such a file shared.
fn map_file(
    addr: usize,
    len_bytes: usize,
    protection: usize,
    flags: usize,
    fd: c_int,
    offset: i64,
) -> Option<SysResult<usize>> {
    let pager = pager().filter(|_| flags & MAP_ANONYMOUS == 0)?;
    let file = (pager.shared_file(fd)?, offset as usize);
    let mapped = pager.hold_structure().map_file(addr, len_bytes, protection, flags, file)?;
    Some(mapped.and_then(|addr| match pager.locks_future() {
        Some(_) if protection != PROT_NONE as usize => lock_or_unmap(pager, addr, len_bytes),
        _ => {
            if flags & MAP_LOCKED != 0 {
                // A failure of this is no failure of `mmap(2)`.
                let _ = pager.lock_range(addr, len_bytes, Locking::Populated);
            }
            Ok(addr)
        }
    }))
}

/// Locks a fresh mapping, or takes it back.
fn lock_or_unmap(pager: &'static Pager, addr: usize, len_bytes: usize) -> SysResult<usize> {
    locks::lock_new(pager, addr, len_bytes).inspect_err(|_| {
        let mut structure = pager.hold_structure();
        // SAFETY: just mapped for the program, which does not use it yet.
        let unmap = || unsafe { sys::program_syscall(nr::MUNMAP, [addr, len_bytes, 0, 0, 0, 0]) };
        let _ = structure.replace(addr, len_bytes, unmap);
    })?;
    Ok(addr)
}

extern "C" fn munmap(addr: *mut c_void, len_bytes: usize) -> c_int {
    let addr = addr as usize;
    // SAFETY: what the program asked for.
    let unmap = || unsafe { sys::program_syscall(nr::MUNMAP, [addr, len_bytes, 0, 0, 0, 0]) };
    let outcome = match pager() {
        Some(pager) if is_range(addr, len_bytes) => {
            let mut structure = pager.hold_structure();
            if !structure.touches(addr, len_bytes) {
                pager.look_before_unmapping(len_bytes);
            }
            structure.replace(addr, len_bytes, unmap)
        }
        _ => unmap(),
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
    // SAFETY: what the program asked for.
    let call = || unsafe { remap.call() };
    let outcome = match pager() {
        Some(pager) if is_range(old, old_len.max(1)) => {
            let mut structure = pager.hold_structure();
            if structure.touches(old, old_len) {
                structure.relocate(remap)
            } else if structure.touches_shared(old, old_len) {
                structure.relocate_shared(remap)
            } else if flags & MREMAP_FIXED != 0 {
                structure.replace(new_addr, new_len, call)
            } else {
                call()
            }
        }
        _ => call(),
    };
    answer(outcome, usize::MAX) as *mut c_void
}

extern "C" fn madvise(addr: *mut c_void, len_bytes: usize, advice: c_int) -> c_int {
    let (addr, advice) = (addr as usize, advice as usize);
    int_answer(advise(addr, len_bytes, advice).map(|()| 0))
}

/// Replaces the C library's, which does not call its `madvise`. Errors are returned.
extern "C" fn posix_madvise(addr: *mut c_void, len_bytes: usize, advice: c_int) -> c_int {
    let (addr, advice) = (addr as usize, advice as usize);
    if advice == POSIX_MADV_DONTNEED {
        // Unlike the kernel's advice of this number it keeps the contents, and the C library's does
        // nothing: so it returns no error either.
        if let Some(pager) = pager().filter(|_| is_range(addr, len_bytes))
            && pager.hold_structure().touches(addr, len_bytes)
        {
            let _ = pager.apply_hint(addr, len_bytes, Hint::Cold);
        }
        return 0;
    }
    advise(addr, len_bytes, advice).map_or_else(|Errno(number)| number, |()| 0)
}

fn advise(addr: usize, len_bytes: usize, advice: usize) -> SysResult<()> {
    let mut outcome = None;
    if let Some(pager) = pager()
        && is_range(addr, len_bytes)
    {
        let mut structure = pager.hold_structure();
        if structure.touches(addr, len_bytes) {
            if let Some(hint) = Hint::of(advice) {
                drop(structure);
                return pager.apply_hint(addr, len_bytes, hint);
            }
            let is_to_populate =
                matches!(advice, sys::MADV_POPULATE_READ | sys::MADV_POPULATE_WRITE);
            if is_to_populate && pager.block().faults_in_thread() {
                drop(structure);
                return pager.populate_as_advised(addr, len_bytes, advice);
            }
            outcome = advise_managed(pager, &mut structure, addr, len_bytes, advice);
        } else if structure.touches_shared(addr, len_bytes) {
            outcome = advise_shared(&mut structure, addr, len_bytes, advice);
        }
    }
    // SAFETY: what the program asked for.
    outcome.unwrap_or_else(|| unsafe { sys::program_madvise(addr, len_bytes, advice) })
}

/// Applies advice on managed memory that is more than a hint; `None`: it is passed to the kernel.
fn advise_managed(
    pager: &Pager,
    structure: &mut Structure,
    addr: usize,
    len_bytes: usize,
    advice: usize,
) -> Option<SysResult<()>> {
    match advice {
        sys::MADV_DONTNEED | sys::MADV_FREE => {
            Some(structure.discard(addr, len_bytes, sys::MADV_DONTNEED))
        }
        sys::MADV_DONTNEED_LOCKED => Some(structure.discard(addr, len_bytes, advice)),
        // The kernel's own large pages are not paged.
        sys::MADV_HUGEPAGE => {
            let size = pager.block().advised_page_size();
            if size != PageSize::Small {
                structure.set_page_size(addr, len_bytes, size);
            }
            Some(Ok(()))
        }
        sys::MADV_NOHUGEPAGE => {
            structure.set_page_size(addr, len_bytes, PageSize::Small);
            None
        }
        sys::MADV_COLLAPSE => Some(Ok(())),
        sys::MADV_DONTFORK | sys::MADV_DOFORK => {
            Some(structure.advise_on_fork(addr, len_bytes, advice))
        }
        sys::MADV_WIPEONFORK | sys::MADV_GUARD_INSTALL => {
            structure.release_to_kernel(addr, len_bytes);
            None
        }
        _ => None,
    }
}

/// Applies advice on memory that the run's shared pager serves; `None`: it is passed to the kernel.
/// `MADV_DONTNEED` there drops no contents.
fn advise_shared(
    structure: &mut Structure,
    addr: usize,
    len_bytes: usize,
    advice: usize,
) -> Option<SysResult<()>> {
    match advice {
        sys::MADV_REMOVE => structure.remove_shared(addr, len_bytes).then_some(Ok(())),
        // The kernel's own large pages are not paged.
        sys::MADV_HUGEPAGE | sys::MADV_COLLAPSE => Some(Ok(())),
        sys::MADV_DONTFORK | sys::MADV_DOFORK => {
            Some(structure.advise_shared_on_fork(addr, len_bytes, advice))
        }
        _ => None,
    }
}

extern "C" fn brk(addr: *mut c_void) -> c_int {
    let wanted = addr as usize;
    // SAFETY: the kernel returns the current break.
    let ask = |addr| unsafe { sys::program_syscall(nr::BRK, [addr, 0, 0, 0, 0, 0]) }.unwrap_or(0);
    let now = match pager() {
        Some(pager) => move_break(pager, wanted, ask),
        None => ask(wanted),
    };
    set_break(now);
    if now < wanted { int_answer(Err(Errno::ENOMEM)) } else { 0 }
}

fn move_break(pager: &'static Pager, wanted: usize, ask: impl Fn(usize) -> usize) -> usize {
    let mut structure = pager.hold_structure();
    let before = ask(0).next_multiple_of(PAGE);
    let after = wanted.next_multiple_of(PAGE);
    if wanted != 0 && after < before {
        let moved = structure.replace(after, before - after, || Ok(ask(wanted)));
        return moved.unwrap_or(0);
    }
    let was = ask(0);
    let now = ask(wanted);
    let end = now.next_multiple_of(PAGE);
    if end > before {
        structure.adopt(before, end - before);
        drop(structure);
        if locks::lock_new(pager, before, end - before).is_err() {
            return move_break(pager, was, ask);
        }
    }
    now
}

/// Returns the break by the C library's variable.
pub fn current_break() -> usize {
    // SAFETY: the variable's address was found when the shim started.
    unsafe { *(CURRENT_BREAK.load(Ordering::Relaxed) as *const usize) }
}

/// Sets the break in the C library's variable.
pub fn set_break(now: usize) {
    // SAFETY: the variable's address was found when the shim started.
    unsafe { *(CURRENT_BREAK.load(Ordering::Relaxed) as *mut usize) = now };
}

/// True for whole pages within the address space. The kernel refuses anything else.
pub fn is_range(addr: usize, len_bytes: usize) -> bool {
    const USER_END: usize = 1 << 47;
    addr.is_multiple_of(PAGE) && len_bytes > 0 && addr.saturating_add(len_bytes) <= USER_END
}

/// Returns the value, or `failure` after setting `errno`, as the C library does.
pub fn answer(outcome: SysResult<usize>, failure: usize) -> usize {
    outcome.unwrap_or_else(|Errno(number)| {
        c::set_errno(number);
        failure
    })
}

/// Returns the value, or -1 after setting `errno`, as the C library's functions of `int` do.
pub fn int_answer(outcome: SysResult<usize>) -> c_int {
    answer(outcome, usize::MAX) as c_int
}
