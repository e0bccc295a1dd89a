//! Descriptors of the run's shared files that a program sends to others (`SCM_RIGHTS`).
//!
//! A process of the run gets them as they are. Any other gets the memory behind the file, which stays
//! here from then on: nothing would serve its faults. One that is sent past the C library reads and
//! writes right; a shared mapping of it is refused (`ENODEV`).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use venice_memory::paged::{Pager, sys};

use crate::pager_instance::pager;
use crate::{c, program_memory};

/// Longest control data that are looked at; a message has 253 descriptors at most.
const MOST_CONTROL_BYTES: usize = 2048;
/// Most descriptors replaced in a message.
const MOST_REPLACED: usize = 16;
const HEADER_BYTES: usize = size_of::<ControlHeader>();

/// `struct msghdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message {
    name: *mut c_void,
    name_len: u32,
    parts: *mut c_void,
    part_count: usize,
    control: *mut c_void,
    control_len: usize,
    flags: c_int,
}

/// `struct cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ControlHeader {
    len: usize,
    level: c_int,
    kind: c_int,
}

/// Replaces the C library's function for the program: its own calls do not send descriptors.
///
/// # Safety
/// As for `sendmsg(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(socket: c_int, message: *const Message, flags: c_int) -> isize {
    let send = |message: *const Message| {
        // SAFETY: forwarded to the caller; it stays a point of cancellation.
        unsafe { next()(socket, message, flags) }
    };
    let Some(pager) = pager() else { return send(message) };
    if pager.block().shared_files_device.load(Ordering::Acquire) == 0 {
        return send(message);
    }
    // SAFETY: lengths and addresses. The kernel has the error for a bad pointer.
    let Ok(mut copy) = (unsafe { program_memory::read(message) }) else { return send(message) };
    if copy.control.is_null() || !(HEADER_BYTES..=MOST_CONTROL_BYTES).contains(&copy.control_len) {
        return send(message);
    }
    let mut room = [0usize; MOST_CONTROL_BYTES / 8];
    let control = room.as_mut_ptr().cast::<u8>();
    // SAFETY: the room is zeroed, and long enough.
    let bytes = unsafe { std::slice::from_raw_parts_mut(control, copy.control_len) };
    if program_memory::read_bytes(copy.control as usize, bytes).is_err() {
        return send(message);
    }
    let mut replaced = Replaced::default();
    replaced.replace(pager, socket, bytes);
    if replaced.count == 0 {
        return send(message);
    }
    copy.control = control.cast();
    send(&raw const copy)
}

type Sendmsg = unsafe extern "C" fn(c_int, *const Message, c_int) -> isize;

/// The function of the C library.
fn next() -> Sendmsg {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: the C library has it.
    unsafe { std::mem::transmute::<usize, Sendmsg>(c::next_symbol_once(&NEXT, c"sendmsg")) }
}

/// Descriptors that are sent in place of others; closed when this is dropped.
#[derive(Default)]
struct Replaced {
    fds: [Option<OwnedFd>; MOST_REPLACED],
    count: usize,
}

impl Replaced {
    /// Replaces the shared files among the descriptors in `control` by their memory, unless a
    /// process of the run gets them.
    fn replace(&mut self, pager: &'static Pager, socket: c_int, control: &mut [u8]) {
        const SOL_SOCKET: c_int = 1;
        const SCM_RIGHTS: c_int = 1;
        let mut at = 0;
        while at + HEADER_BYTES <= control.len() {
            // SAFETY: there are as many bytes.
            let header: ControlHeader =
                unsafe { control.as_ptr().add(at).cast::<ControlHeader>().read_unaligned() };
            let end = at.saturating_add(header.len);
            if header.len < HEADER_BYTES || end > control.len() {
                return;
            }
            if (header.level, header.kind) == (SOL_SOCKET, SCM_RIGHTS) {
                let fds = control[at + HEADER_BYTES..end].chunks_exact_mut(4);
                fds.for_each(|fd| self.replace_one(pager, socket, fd));
            }
            at = end.next_multiple_of(8);
        }
    }

    fn replace_one(&mut self, pager: &'static Pager, socket: c_int, bytes: &mut [u8]) {
        let fd = c_int::from_ne_bytes(bytes.try_into().expect("4 bytes"));
        let Some(file) = pager.shared_file(fd).filter(|_| self.count < MOST_REPLACED) else {
            return;
        };
        if c::peer_of(socket).is_some_and(|pid| pager.pages_in_run(pid)) {
            return;
        }
        let structure = pager.hold_structure();
        if let Some(memory) = pager.release_file(file) {
            bytes.copy_from_slice(&memory.as_raw_fd().to_ne_bytes());
            self.fds[self.count] = Some(memory);
            self.count += 1;
        }
        drop(structure);
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        let fds = self.fds.iter_mut().filter_map(Option::take);
        fds.for_each(|fd| sys::close(fd.into_raw_fd()));
    }
}
