//! Panics of the shim: `venice run` prints the broken invariant, whatever thread it broke in.
//!
//! The standard library counts panics in thread-local storage before it calls the hook. The pager's
//! threads have none ([`venice_memory::paged`], `thread`), and a thread that the program made by a
//! bare `clone` may have none either: a panic would end in a second fault, and nothing would be
//! printed. A shared library finds its thread-local variables by `__tls_get_addr`; the shim has one
//! of its own, and its variables, all of them the standard library's, lie in static memory.

use std::cell::UnsafeCell;
use std::panic::PanicHookInfo;

use venice_memory::paged::sys;

/// Blocks of variables. Threads share them by their ids: nothing in the shim but a panic uses one.
const BLOCKS: usize = 16;
/// Room for the variables of one block, in bytes.
const BLOCK_BYTES: usize = 256;

#[repr(C, align(64))]
struct Block(UnsafeCell<[u8; BLOCK_BYTES]>);

// SAFETY: the standard library's variables in it are plain words; threads that share a block end
// the process.
unsafe impl Sync for Block {}

static VARIABLES: [Block; BLOCKS] = [const { Block(UnsafeCell::new([0; BLOCK_BYTES])) }; BLOCKS];

/// `tls_index` of the x86-64 ABI: the module, and the offset in its variables.
#[repr(C)]
struct TlsIndex {
    module: usize,
    offset: usize,
}

std::arch::global_asm!(
    ".globl __tls_get_addr",
    ".hidden __tls_get_addr",
    ".type __tls_get_addr, @function",
    "__tls_get_addr:",
    "jmp {find}",
    ".size __tls_get_addr, . - __tls_get_addr",
    find = sym find_variable,
);

/// Returns the address of a thread-local variable of the shim for the calling thread.
extern "C" fn find_variable(index: &TlsIndex) -> *mut u8 {
    let block = &VARIABLES[sys::gettid() as usize % BLOCKS];
    // SAFETY: `prepare` has checked that all variables fit into a block.
    unsafe { block.0.get().cast::<u8>().add(index.offset) }
}

/// Makes panics reported. To be called before anything that may panic.
///
/// # Errors
/// The shim's thread-local variables do not fit: it was built wrongly.
pub fn prepare() -> Result<(), String> {
    let (image, len_bytes) = variables().ok_or("the shim has no program headers")?;
    if len_bytes > BLOCK_BYTES {
        return Err(format!("{len_bytes} bytes of thread-local variables in the shim"));
    }
    for block in &VARIABLES {
        // SAFETY: there is one thread; the image is shorter than the block.
        unsafe {
            std::ptr::copy_nonoverlapping(image.as_ptr(), block.0.get().cast::<u8>(), image.len());
        }
    }
    std::panic::set_hook(Box::new(report));
    Ok(())
}

/// Ends the process with the message of `panic`. It is the panic of the pager, or of a call of the
/// program that the shim replaces.
fn report(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    let place = panic.location().expect("panics have a location");
    let thread = sys::gettid();
    sys::die_with(format_args!(
        "internal error, thread {thread}, {place}: {text}: please report this bug of Venice"
    ))
}

/// `Elf64_Ehdr` (`elf(5)`), up to the number of program headers.
#[repr(C)]
struct ElfHeader {
    before: [u8; 32],
    headers_offset: u64,
    between: [u8; 16],
    header_count: u16,
}

/// `Elf64_Phdr` (`elf(5)`).
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    alignment: u64,
}

unsafe extern "C" {
    /// The start of the shim in memory, defined by the linker.
    static __ehdr_start: ElfHeader;
}

fn headers() -> impl Iterator<Item = &'static ProgramHeader> {
    // SAFETY: the header and the table that it points to are mapped with the shim.
    let headers = unsafe {
        let start = &raw const __ehdr_start;
        let table = start.cast::<u8>().add((*start).headers_offset as usize);
        std::slice::from_raw_parts(table.cast::<ProgramHeader>(), (*start).header_count.into())
    };
    headers.iter()
}

/// Returns the initial values of the shim's thread-local variables, and the length of all in bytes.
fn variables() -> Option<(&'static [u8], usize)> {
    const PT_TLS: u32 = 7;
    let tls = headers().find(|header| header.kind == PT_TLS)?;
    // SAFETY: the segment is mapped with the shim, and never changed.
    let image = unsafe {
        let image = (&raw const __ehdr_start).cast::<u8>().add(tls.address as usize);
        std::slice::from_raw_parts(image, tls.file_bytes as usize)
    };
    Some((image, tls.memory_bytes as usize))
}

/// The addresses of the shim's code.
pub fn code() -> std::ops::Range<usize> {
    const PT_LOAD: u32 = 1;
    const EXECUTABLE: u32 = 1;
    let base = &raw const __ehdr_start as usize;
    let code = headers().find(|it| it.kind == PT_LOAD && it.flags & EXECUTABLE != 0);
    code.map_or(0..0, |it| {
        base + it.address as usize..base + (it.address + it.memory_bytes) as usize
    })
}
