//! The C library functions that the shim needs.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// `Dl_info` (`dladdr(3)`).
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

/// `Elf64_Sym` (`elf(5)`).
#[repr(C)]
struct ElfSymbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dladdr1(
        address: *const c_void,
        info: *mut DlInfo,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    fn __errno_location() -> *mut c_int;
    fn getsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut u32,
    ) -> c_int;
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

/// A function or variable of the C library.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Address.
    pub address: usize,
    /// Length, bytes.
    pub len_bytes: usize,
}

/// Finds `name` in the C library itself, not in a library loaded before it.
pub fn libc_symbol(name: &CStr) -> Option<Symbol> {
    const RTLD_LAZY_NOLOAD: c_int = 1 | 4;
    const RTLD_DL_SYMENT: c_int = 1;
    // SAFETY: the library is loaded already, and names are NUL-terminated; `dladdr1` fills in both
    // structures on success.
    unsafe {
        let library = dlopen(c"libc.so.6".as_ptr(), RTLD_LAZY_NOLOAD);
        if library.is_null() {
            return None;
        }
        let address = dlsym(library, name.as_ptr());
        if address.is_null() {
            return None;
        }
        let mut info = std::mem::zeroed::<DlInfo>();
        let mut symbol = std::ptr::null_mut::<c_void>();
        let found = dladdr1(address, &mut info, &mut symbol, RTLD_DL_SYMENT) != 0;
        let known = found && !symbol.is_null();
        let len_bytes = if known { (*symbol.cast::<ElfSymbol>()).size as usize } else { 0 };
        Some(Symbol { address: address as usize, len_bytes })
    }
}

/// Returns the address of `name` in the libraries behind this one; 0: none has it.
pub fn next_symbol(name: &CStr) -> usize {
    const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
    // SAFETY: the name is NUL-terminated.
    unsafe { dlsym(RTLD_NEXT, name.as_ptr()) as usize }
}

/// Does the same as [`next_symbol`], and looks once: `known` has the address from then on.
pub fn next_symbol_once(known: &AtomicUsize, name: &CStr) -> usize {
    match known.load(Ordering::Relaxed) {
        0 => {
            let address = next_symbol(name);
            known.store(address, Ordering::Relaxed);
            address
        }
        address => address,
    }
}

/// Returns the path of the library that `address` is in, as it was loaded. It lives as long as the
/// library.
pub fn file_of(address: *const c_void) -> Option<&'static CStr> {
    // SAFETY: `dladdr` fills in the structure on success, with a NUL-terminated path.
    unsafe {
        let mut info = std::mem::zeroed::<DlInfo>();
        let found = dladdr(address, &mut info) != 0 && !info.file.is_null();
        found.then(|| CStr::from_ptr(info.file))
    }
}

/// Returns the process at the other end of a connected unix socket (`SO_PEERCRED`).
pub fn peer_of(socket: c_int) -> Option<u32> {
    const SOL_SOCKET: c_int = 1;
    const SO_PEERCRED: c_int = 17;
    let (mut peer, mut len) = ([0u32; 3], 12u32);
    // SAFETY: the buffer has the size of a `struct ucred`.
    let result =
        unsafe { getsockopt(socket, SOL_SOCKET, SO_PEERCRED, peer.as_mut_ptr().cast(), &mut len) };
    (result == 0 && peer[0] != 0).then_some(peer[0])
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: i32) {
    // SAFETY: the C library gives every thread of the program one.
    unsafe { *__errno_location() = value };
}

/// Registers three functions to be called around every `fork` of the C library. False if it has no
/// room for them.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // SAFETY: the functions live as long as the process.
    unsafe { pthread_atfork(prepare, parent, child) == 0 }
}
