//! A program on a network interface that hands every frame to one AF_XDP socket.

use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver's receive path.
    Native,
    /// After it, on a socket buffer.
    Generic,
}

// Of <linux/bpf.h> and <linux/if_link.h>.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_OF_XSKS: u32 = 17;
const PROGRAM_FOR_XDP: u32 = 6;
const ATTACH_TO_XDP: u32 = 37;
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;
/// Frames may be longer than a page.
const FLAG_LONG_FRAMES: u32 = 1 << 5;
const REDIRECT_MAP: u32 = 51;
const PASS: u32 = 2;

/// Attached until dropped.
pub struct Redirect {
    _link: OwnedFd,
}

impl Redirect {
    /// Everything that comes to queue 0 of the interface goes to the socket.
    pub fn new(interface: u32, socket: BorrowedFd, mode: Mode) -> Self {
        let map = bpf("map", MAP_CREATE, &[MAP_OF_XSKS, 4, 4, 1]);
        let (key, value) = (0u32, socket.as_raw_fd());
        let [key_low, key_high] = halves(&raw const key);
        let [value_low, value_high] = halves(&raw const value);
        let entry = [map, 0, key_low, key_high, value_low, value_high, 0, 0];
        bpf("socket into map", MAP_UPDATE, &entry);

        let program = [
            instruction(0x18, 1, 1, map), // r1 = the map, in two instructions
            instruction(0, 0, 0, 0),
            instruction(0xb7, 2, 0, 0),    // r2 = its entry 0
            instruction(0xb7, 3, 0, PASS), // r3 = what to do if there is none
            instruction(0x85, 0, 0, REDIRECT_MAP),
            instruction(0x95, 0, 0, 0), // return r0
        ];
        let [text_low, text_high] = halves(program.as_ptr());
        let [licence_low, licence_high] = halves(c"Dual MIT/GPL".as_ptr());
        let len = program.len() as u32;
        let load = [PROGRAM_FOR_XDP, len, text_low, text_high, licence_low, licence_high]
            .into_iter()
            .chain([0; 5]) // no log
            .chain([FLAG_LONG_FRAMES])
            .collect::<Vec<_>>();
        let program = bpf("program", PROG_LOAD, &load);

        let flag = if mode == Mode::Native { FLAG_NATIVE } else { FLAG_GENERIC };
        let link = bpf("attach", LINK_CREATE, &[program, interface, ATTACH_TO_XDP, flag]);
        // SAFETY: fresh from the kernel, and nobody else's. The link keeps program and map alive.
        let [_, _, link] =
            [map, program, link].map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) });
        Self { _link: link }
    }
}

fn instruction(code: u8, to: u8, from: u8, immediate: u32) -> u64 {
    u64::from(code) | u64::from(from << 4 | to) << 8 | u64::from(immediate) << 32
}

fn halves<T>(pointer: *const T) -> [u32; 2] {
    let address = pointer as u64;
    [address as u32, (address >> 32) as u32]
}

/// What the kernel returns: a descriptor, or nothing of interest.
fn bpf(what: &str, command: libc::c_int, attributes: &[u32]) -> u32 {
    // Aligned as the kernel's union is, and zero where nothing is said.
    let mut union = [0u64; 16];
    for (at, pair) in attributes.chunks(2).enumerate() {
        let high = pair.get(1).copied().unwrap_or(0);
        union[at] = u64::from(pair[0]) | u64::from(high) << 32;
    }
    // SAFETY: the kernel reads the union, and what it points to lives until the call is over.
    let returned =
        unsafe { libc::syscall(libc::SYS_bpf, command, union.as_ptr(), size_of_val(&union)) };
    u32::try_from(returned).unwrap_or_else(|_| panic!("bpf, {what}: {}", Error::last_os_error()))
}
