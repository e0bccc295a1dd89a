//! Replacement of the C library's `syscall(2)`: a number that has a replacement under its own name
//! comes to that one. All others go to the kernel as before.

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use venice_memory::paged::rlimits::Limits;
use venice_memory::paged::sys::{Errno, nr};

use crate::{c, descriptors, limits, locks, mappings, namespaces, patch, seccomp, shared_files};

/// Numbers above have no replacement.
const NUMBERS: usize = 512;

static IS_REPLACED: [u8; NUMBERS] = {
    let mut table = [0; NUMBERS];
    let replaced = [
        nr::CLOSE,
        nr::DUP2,
        nr::DUP3,
        nr::CLOSE_RANGE,
        nr::MLOCK,
        nr::MLOCK2,
        nr::MUNLOCK,
        nr::MLOCKALL,
        nr::MUNLOCKALL,
        nr::PRCTL,
        nr::SECCOMP,
        nr::UNSHARE,
        nr::SETNS,
        nr::GETRLIMIT,
        nr::SETRLIMIT,
        nr::PRLIMIT64,
        nr::MEMFD_CREATE,
        nr::MMAP,
        nr::MUNMAP,
        nr::MREMAP,
        nr::MPROTECT,
        nr::MADVISE,
        nr::BRK,
    ];
    let mut at = 0;
    while at < replaced.len() {
        table[replaced[at]] = 1;
        at += 1;
    }
    table
};

/// A function of the C library, which differs by the mode: its first instruction jumps to the
/// function that replaces it, if one does.
struct OfLibrary {
    number: usize,
    name: &'static CStr,
    address: AtomicUsize,
}

impl OfLibrary {
    const fn new(number: usize, name: &'static CStr) -> OfLibrary {
        OfLibrary { number, name, address: AtomicUsize::new(0) }
    }
}

/// Allocators call them by number (tcmalloc), so that their own `mmap` is none of these.
static OF_LIBRARY: [OfLibrary; 6] = [
    OfLibrary::new(nr::MMAP, c"mmap"),
    OfLibrary::new(nr::MUNMAP, c"munmap"),
    OfLibrary::new(nr::MREMAP, c"mremap"),
    OfLibrary::new(nr::MPROTECT, c"mprotect"),
    OfLibrary::new(nr::MADVISE, c"madvise"),
    OfLibrary::new(nr::BRK, c"brk"),
];

// It keeps to what the C library's does instruction by instruction: a call that makes a process may
// return twice, or on another stack.
std::arch::global_asm!(
    ".globl venice_syscall",
    ".hidden venice_syscall",
    ".type venice_syscall, @function",
    "venice_syscall:",
    "cmp rdi, {numbers}",
    "jae 2f",
    "lea rax, [rip + {is_replaced}]",
    "cmp byte ptr [rax + rdi], 0",
    "jne {replaced}",
    "2:",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, [rsp + 8]",
    "syscall",
    ".globl venice_syscall_site",
    ".hidden venice_syscall_site",
    "venice_syscall_site:",
    "cmp rax, -4095",
    "jae 3f",
    "ret",
    "3:",
    "mov rdi, rax",
    "jmp {fail}",
    ".size venice_syscall, . - venice_syscall",
    numbers = const NUMBERS,
    is_replaced = sym IS_REPLACED,
    replaced = sym replaced,
    fail = sym fail,
);

unsafe extern "C" {
    fn venice_syscall();
    fn venice_syscall_site();
}

/// Installs the function of this file.
///
/// # Errors
/// Its name, and the reason why it could not be replaced.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    for function in &OF_LIBRARY {
        let missing = ("syscall", patch::PatchError::Missing);
        let symbol = c::libc_symbol(function.name).ok_or(missing)?;
        function.address.store(symbol.address, Ordering::Relaxed);
    }
    // SAFETY: it takes and returns the same as the function that it replaces.
    unsafe {
        patch::replace(c"syscall", venice_syscall as *const () as usize).map_err(|e| ("syscall", e))
    }
}

/// The address that the kernel sees when the program calls it by `syscall(2)`.
pub fn site() -> usize {
    venice_syscall_site as *const () as usize
}

extern "C" fn fail(result: isize) -> isize {
    c::set_errno(-result as i32);
    -1
}

extern "C" fn replaced(
    number: usize,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let pointer = first as *mut c_void;
    let result = match number {
        nr::CLOSE => descriptors::close(first as c_int),
        nr::DUP2 => descriptors::dup2(first as c_int, second as c_int),
        nr::DUP3 => descriptors::dup3(first as c_int, second as c_int, third as c_int),
        nr::CLOSE_RANGE => {
            descriptors::close_range(first as c_uint, second as c_uint, third as c_int)
        }
        nr::UNSHARE => namespaces::unshare(first as c_int),
        nr::SETNS => namespaces::setns(first as c_int, second as c_int),
        nr::MLOCK => locks::mlock(pointer, second),
        nr::MLOCK2 => locks::mlock2(pointer, second, third as c_uint),
        nr::MUNLOCK => locks::munlock(pointer, second),
        nr::MLOCKALL => locks::mlockall(first as c_int),
        nr::MUNLOCKALL => locks::munlockall(),
        nr::GETRLIMIT => limits::getrlimit(first as c_int, second as *mut Limits),
        nr::SETRLIMIT => limits::setrlimit(first as c_int, second as *const Limits),
        nr::PRLIMIT64 => {
            let (new, old) = (third as *const Limits, fourth as *mut Limits);
            limits::prlimit(first as c_int, second as c_int, new, old)
        }
        nr::MEMFD_CREATE => shared_files::memfd_create(pointer.cast(), second as c_uint),
        nr::PRCTL => seccomp::prctl(first as c_int, second, third, fourth, fifth),
        nr::SECCOMP => return seccomp::seccomp(first, second, third) as c_long,
        _ => return by_library(number, [first, second, third, fourth, fifth, sixth]) as c_long,
    };
    c_long::from(result)
}

/// Calls the C library's function, with as many of the arguments as it takes.
fn by_library(number: usize, arguments: [usize; 6]) -> isize {
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
    let function = OF_LIBRARY.iter().find(|it| it.number == number);
    let Some(function) = function else { return fail(-(Errno::ENOSYS.0 as isize)) };
    let address = function.address.load(Ordering::Relaxed);
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: found by `install`. A C function takes the arguments that it has from the registers
    // that all six are in; the program vouches for them.
    let result = unsafe {
        let function = std::mem::transmute::<usize, Function>(address);
        function(first, second, third, fourth, fifth, sixth)
    };
    match number {
        nr::MMAP | nr::MREMAP => result,
        // The kernel returns the break that there is then, and no error.
        nr::BRK => mappings::current_break() as isize,
        _ => (result as c_int) as isize,
    }
}
