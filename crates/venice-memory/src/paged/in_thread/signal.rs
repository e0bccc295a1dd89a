//! The handler of `SIGBUS`, and the program's own action for that signal.
//!
//! A signal that is no fault of the pager's goes to the program's own action as if this handler
//! were not there: the program's handler is jumped to with the stack, the return address and the
//! registers that the kernel made, so that it may unwind or jump out of it as usual. `SIGBUS`
//! itself is never blocked meanwhile: a thread that touches a far page with it blocked is killed.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::super::pager::Pager;
use super::super::spin::Spin;
use super::super::sys::{self, Errno, SysResult, nr};

/// The signal's number.
pub const SIGBUS: c_int = 7;
/// The signal's bit in a mask.
pub const SIGBUS_BIT: u64 = 1 << (SIGBUS - 1);

const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
/// `si_code` of a page that is unavailable.
const BUS_ADRERR: c_int = 2;

/// Most pagers of one process that serve in its threads.
const PAGERS: usize = 64;

/// `struct kernel_sigaction` (`rt_sigaction(2)`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// The function, `SIG_DFL` or `SIG_IGN`.
    pub handler: usize,
    /// `SA_` bits.
    pub flags: u64,
    /// The address that the handler returns to.
    pub restorer: usize,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

/// The program's own action for `SIGBUS`.
struct ProgramAction {
    /// Held while the action changes.
    changing: Spin<()>,
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

static PROGRAM: ProgramAction = ProgramAction {
    changing: Spin::new(()),
    handler: AtomicUsize::new(SIG_DFL),
    flags: AtomicU64::new(0),
    mask: AtomicU64::new(0),
};

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static SERVING: [Serving; PAGERS] = [const { Serving::none() }; PAGERS];

/// A pager, and the number of threads that use the reference to it.
struct Serving {
    pager: AtomicPtr<Pager>,
    users: AtomicU32,
}

impl Serving {
    const fn none() -> Serving {
        Serving { pager: AtomicPtr::new(std::ptr::null_mut()), users: AtomicU32::new(0) }
    }

    fn serve(&self, address: usize, write: bool) -> bool {
        if self.pager.load(Ordering::Relaxed).is_null() {
            return false;
        }
        self.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: `end` clears the pointer and waits for these threads before the pager goes.
        let pager = unsafe { self.pager.load(Ordering::SeqCst).as_ref() };
        let is_served = pager.is_some_and(|pager| pager.serve_in_thread(address, write));
        self.users.fetch_sub(1, Ordering::SeqCst);
        is_served
    }
}

/// Begins to serve the faults of threads in the memory of `pager`. `false`: there are too many
/// pagers.
///
/// # Errors
/// The kernel's.
pub fn begin(pager: &'static Pager) -> SysResult<bool> {
    let pager = std::ptr::from_ref(pager).cast_mut();
    let none = std::ptr::null_mut();
    let is_free = |serving: &&Serving| {
        serving.pager.compare_exchange(none, pager, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    if SERVING.iter().find(is_free).is_none() {
        return Ok(false);
    }
    if !IS_INSTALLED.swap(true, Ordering::SeqCst) {
        let before = set_action(SIGBUS, None)?;
        PROGRAM.set(&before);
        install(before.flags)?;
    }
    unblock();
    Ok(true)
}

/// Ends the service of `pager`. No thread refers to it when this returns.
pub fn end(pager: &Pager) {
    let is_it = |serving: &&Serving| std::ptr::eq(serving.pager.load(Ordering::Relaxed), pager);
    if let Some(serving) = SERVING.iter().find(is_it) {
        serving.pager.store(std::ptr::null_mut(), Ordering::SeqCst);
        while serving.users.load(Ordering::SeqCst) != 0 {
            sys::yield_now();
        }
    }
}

/// Resets the lock in the child of a fork: a thread that the child lacks may have been changing the
/// program's action.
///
/// # Safety
/// The caller is the child's only thread.
pub unsafe fn take_over_in_child() {
    // SAFETY: forwarded to the caller.
    unsafe { PROGRAM.changing.forget_holder(()) };
}

/// Unblocks the signal in the calling thread, and in those it starts.
pub fn unblock() {
    const SIG_UNBLOCK: usize = 1;
    let mask = SIGBUS_BIT;
    // SAFETY: the kernel reads eight bytes.
    let _ = unsafe {
        sys::syscall(nr::RT_SIGPROCMASK, [SIG_UNBLOCK, &raw const mask as usize, 0, 8, 0, 0])
    };
}

/// Calls `rt_sigaction(2)`. Returns the former action.
///
/// # Errors
/// `EINVAL` for a number that is no signal, or cannot be caught.
pub fn set_action(signal: c_int, action: Option<&Action>) -> SysResult<Action> {
    let mut before = Action::default();
    let new = action.map(|action| Action {
        flags: action.flags | SA_RESTORER,
        restorer: restore as *const () as usize,
        ..*action
    });
    let new = new.as_ref().map_or(0, |new| std::ptr::from_ref(new) as usize);
    let arguments = [signal as usize, new, &raw mut before as usize, 8, 0, 0];
    // SAFETY: both structures are laid out as the kernel's.
    unsafe { sys::syscall(nr::RT_SIGACTION, arguments)? };
    Ok(before)
}

/// Does the same as [`set_action`] for the program's own action on `SIGBUS`.
///
/// # Errors
/// The kernel's.
pub fn set_program_action(action: Option<&Action>) -> SysResult<Action> {
    let before = PROGRAM.get();
    if let Some(action) = action {
        PROGRAM.set(action);
        install(action.flags)?;
    }
    Ok(before)
}

impl ProgramAction {
    fn get(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
            restorer: 0,
        }
    }

    fn set(&self, action: &Action) {
        let mask = sys::block_signals();
        {
            let _changing = self.changing.hold();
            self.flags.store(action.flags & !SA_RESTORER, Ordering::Relaxed);
            self.mask.store(action.mask, Ordering::Relaxed);
            self.handler.store(action.handler, Ordering::Release);
        }
        sys::set_signal_mask(mask);
    }
}

/// Installs [`entry`], with the stack and the restarts that the program's action asks for.
fn install(program_flags: u64) -> SysResult<()> {
    let flags = SA_SIGINFO | program_flags & SA_ONSTACK | program_flags & SA_RESTART;
    let ours = Action { handler: entry as *const () as usize, flags, restorer: 0, mask: !0 };
    set_action(SIGBUS, Some(&ours)).map(drop)
}

/// The return address of a handler. Unwinders recognise these very bytes.
#[unsafe(naked)]
extern "C" fn restore() {
    std::arch::naked_asm!("mov rax, 15", "syscall")
}

/// The signal handler: returns to where the signal came, or continues as the program's own handler.
#[unsafe(naked)]
extern "C" fn entry(signal: c_int, info: *const SigInfo, context: *const Context) {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {decide}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        decide = sym decide,
    )
}

/// `siginfo_t`, the fields that are read.
#[repr(C)]
struct SigInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    address: usize,
}

/// `ucontext_t` (x86-64).
#[repr(C)]
struct Context {
    flags: u64,
    link: usize,
    stack: [usize; 3],
    registers: [u64; 23],
    fpstate: usize,
    reserved: [u64; 8],
    mask: u64,
}

const REG_ERR: usize = 19;
/// Bit of the page fault's error code: the access was a write.
const WAS_WRITE: u64 = 2;

/// Serves the fault and returns 0, or returns the program's handler, which is to continue.
extern "C" fn decide(signal: c_int, info: &SigInfo, context: &Context) -> usize {
    let (address, code) = (info.address, info.code);
    let write = context.registers[REG_ERR] & WAS_WRITE != 0;
    if code == BUS_ADRERR && SERVING.iter().any(|serving| serving.serve(address, write)) {
        return 0;
    }
    let program = PROGRAM.get();
    let was_sent = code <= 0;
    match program.handler {
        SIG_IGN if was_sent => 0,
        SIG_DFL | SIG_IGN => {
            die_of(signal, was_sent);
            0
        }
        handler => {
            if program.flags & SA_RESETHAND != 0 {
                PROGRAM.set(&Action { handler: SIG_DFL, ..program });
            }
            sys::set_signal_mask((context.mask | program.mask) & !SIGBUS_BIT);
            handler
        }
    }
}

/// Ends the process with the signal as its cause, as the kernel does for an unhandled signal: the
/// access is tried again under the default action.
fn die_of(signal: c_int, was_sent: bool) {
    let _ = set_action(signal, Some(&Action::default()));
    if was_sent {
        let arguments = [sys::getpid() as usize, sys::gettid() as usize, signal as usize, 0, 0, 0];
        // SAFETY: touches no memory.
        let _: Result<_, Errno> = unsafe { sys::syscall(nr::TGKILL, arguments) };
    }
}
