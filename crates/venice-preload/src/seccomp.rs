//! Replacement of the calls that install filters of system calls (`seccomp(2)`, `prctl(2)`).
//!
//! A filter is for the program's calls. It would judge the pager's too: in the calling thread, where
//! each `mmap` is followed by calls of the shim, and with `SECCOMP_FILTER_FLAG_TSYNC` in the pager's
//! own threads. So a few instructions are put before it. They allow what is called from the shim's
//! code, except what the program itself has asked the shim for.

use std::ffi::c_int;

use venice_memory::paged::sys::{self, Errno, SysResult, nr};

use crate::mappings::{answer, int_answer};
use crate::pager_instance::pager;
use crate::{panics, patch, program_memory, raw_calls};

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_MODE_FILTER: usize = 2;
const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;
/// Most instructions of a filter (`BPF_MAXINSNS`).
const MOST: usize = 4096;
/// Loads a value (`BPF_LD | BPF_IMM`).
const LOAD_VALUE: u16 = 0x00;

/// `struct sock_filter`: an instruction of classic BPF.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// Installs the functions of this file.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    // SAFETY: it takes and returns the same as the function that it replaces.
    unsafe { patch::replace(c"prctl", prctl as *const () as usize).map_err(|e| ("prctl", e)) }
}

/// True if the program's threads serve their own faults: that takes more calls than the strict mode
/// allows. The kernel's error without that mode is `EINVAL`.
fn serves_own_faults() -> bool {
    pager().is_some_and(|pager| pager.block().faults_in_thread())
}

/// Variadic in C; its arguments come in the same registers.
pub extern "C" fn prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    let call = |third| {
        let arguments = [option as usize, second, third, fourth, fifth, 0];
        // SAFETY: what the program asked for.
        unsafe { sys::program_syscall(nr::PRCTL, arguments) }
    };
    let outcome = match (option, second) {
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER) => with_exemption(third, call),
        (PR_SET_SECCOMP, SECCOMP_MODE_STRICT) if serves_own_faults() => Err(Errno::EINVAL),
        _ => call(third),
    };
    int_answer(outcome)
}

/// `seccomp(2)`, which the C library has no function for.
pub fn seccomp(operation: usize, flags: usize, argument: usize) -> isize {
    let call = |argument| {
        // SAFETY: what the program asked for.
        unsafe { sys::program_syscall(nr::SECCOMP, [operation, flags, argument, 0, 0, 0]) }
    };
    let outcome = match operation as u32 as usize {
        SECCOMP_SET_MODE_FILTER => with_exemption(argument, call),
        SECCOMP_SET_MODE_STRICT if serves_own_faults() => Err(Errno::EINVAL),
        _ => call(argument),
    };
    answer(outcome, usize::MAX) as isize
}

/// Calls `install` with a filter that exempts the shim, in place of the program's at `address`.
fn with_exemption(address: usize, install: impl Fn(usize) -> SysResult<usize>) -> SysResult<usize> {
    // SAFETY: a length and an address.
    let program = unsafe { program_memory::read(address as *const Program)? };
    let mut filter = exemption();
    let len = usize::from(program.len);
    if len == 0 || len + filter.len() > MOST || program.filter.is_null() {
        return install(address);
    }
    let own = filter.len();
    filter.resize(own + len, step(LOAD_VALUE, 0));
    // SAFETY: instructions are numbers.
    let bytes = unsafe {
        let start = filter[own..].as_mut_ptr().cast();
        std::slice::from_raw_parts_mut(start, len * size_of::<Instruction>())
    };
    program_memory::read_bytes(program.filter as usize, bytes)?;
    let exempting = Program { len: filter.len() as u16, filter: filter.as_ptr() };
    install(&raw const exempting as usize)
}

/// An instruction that goes on with the next one.
fn step(code: u16, value: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, value }
}

/// Returns instructions that allow a call of the shim's own, and else go on with what follows.
fn exemption() -> Vec<Instruction> {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const ALLOW: u32 = 0x7fff_0000; // SECCOMP_RET_ALLOW
    // Offsets in `struct seccomp_data` of both halves of the instruction pointer.
    const POINTER: [u32; 2] = [8, 12];
    let unless = |code, value, skipped| Instruction { code, if_true: 0, if_false: skipped, value };
    let when = |code, value, skipped| Instruction { code, if_true: skipped, if_false: 0, value };
    let [program_call, program_syscall] =
        [sys::program_call_site(), raw_calls::site()].map(|site| site as u32);
    let mut all = Vec::with_capacity(MOST);
    for part in halves(panics::code()) {
        all.extend([
            step(LOAD, POINTER[1]),
            unless(IF_EQUAL, (part.start >> 32) as u32, 6),
            step(LOAD, POINTER[0]),
            unless(IF_AT_LEAST, part.start as u32, 4),
            when(IF_AT_LEAST, part.end as u32, 3),
            when(IF_EQUAL, program_call, 2),
            when(IF_EQUAL, program_syscall, 1),
            step(RETURN, ALLOW),
        ]);
    }
    // A filter begins with zero in the register.
    all.push(step(LOAD_VALUE, 0));
    all
}

/// Splits addresses into ranges in which the upper half is constant; the end of each is in it too.
fn halves(code: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
    const HALF: usize = 1 << 32;
    let border = (code.start / HALF + 1) * HALF;
    let parts = if code.end < border {
        [code.start..code.end, 0..0]
    } else {
        [code.start..border - 1, border..code.end]
    };
    parts.into_iter().filter(|part| !part.is_empty())
}
