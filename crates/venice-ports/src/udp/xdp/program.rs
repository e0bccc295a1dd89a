//! The program at the interface: it decides which datagrams go to the AF_XDP socket, and which to
//! the kernel.
//!
//! It has some thirty instructions of eBPF (RFC 9669), written by hand.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, BorrowedFd};

use venice_wire::SEAL_OVERHEAD_BYTES;

use super::headers::{HEADER_BYTES, UDP_BYTES};

/// Longest UDP length accepted: above the longest sealed frame.
const LONGEST_BYTES: u16 = 8 << 10;
/// Layout of `struct xdp_md` for the program.
const PACKET_AT: i16 = 0;
const PACKET_END_AT: i16 = 4;
const QUEUE_AT: i16 = 16;
const REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
const MAP_BY_FD: u8 = 1;
const NOT_WHOLE: u16 = 0x3fff;

/// Passes IPv4 datagrams for `to` to the sockets in `sockets`, by receive queue: those too short
/// for a train, and those sent by AF_XDP, which carry no UDP checksum and are never trains. All
/// else goes to the kernel: other ports and protocols, neighbour discovery, fragments, trains,
/// queues without a socket.
pub(super) fn program(to: SocketAddrV4, is_sealed: bool, sockets: BorrowedFd<'_>) -> Vec<u64> {
    let seal_bytes = if is_sealed { SEAL_OVERHEAD_BYTES } else { 0 };
    // The kernel passes two datagrams as one packet (`UDP_SEGMENT` over a virtual wire), and no
    // field of it marks that.
    let shortest_train_bytes = UDP_BYTES + 2 * (venice_wire::HEADER_BYTES + seal_bytes);
    let address = u32::from_ne_bytes(to.ip().octets());
    let mut code = Assembler::default();
    code.push(load(Width::Word, 2, 1, PACKET_AT));
    code.push(load(Width::Word, 3, 1, PACKET_END_AT));
    code.push(instruction(0xbf, 4, 2, 0, 0)); // r4 = r2
    code.push(instruction(0x07, 4, 0, 0, HEADER_BYTES as i32)); // r4 += the headers
    code.pass_if(instruction(0x2d, 4, 3, 0, 0)); // if r4 > r3
    code.pass_unless(Width::Half, 12, 0x0800u16.to_be().into());
    code.pass_unless(Width::Byte, 14, 0x45);
    code.pass_unless(Width::Byte, 23, 17);
    code.pass_unless(Width::Half, 36, to.port().to_be().into());
    code.pass_unless(Width::Word, 30, address);
    code.push(load(Width::Half, 4, 2, 20));
    code.push(instruction(0x57, 4, 0, 0, NOT_WHOLE.to_be().into())); // r4 &= fragments
    code.pass_if(instruction(0x55, 4, 0, 0, 0)); // if r4 != 0
    code.push(load(Width::Half, 4, 2, 38));
    code.push(instruction(0xdc, 4, 0, 0, 16)); // r4 = its length, in the processor's byte order
    code.push(instruction(0xa5, 4, 0, 6, shortest_train_bytes as i32)); // if it is less: on
    code.pass_unless(Width::Half, 40, 0);
    code.push(load(Width::Half, 4, 2, 38));
    code.push(instruction(0xdc, 4, 0, 0, 16));
    code.pass_if(instruction(0x25, 4, 0, 0, LONGEST_BYTES.into())); // if r4 > it
    code.push(load(Width::Word, 2, 1, QUEUE_AT));
    code.push(instruction(0x18, 1, MAP_BY_FD, 0, sockets.as_raw_fd())); // r1 = the map
    code.push(0); // the second half of it
    code.push(instruction(0xb7, 3, 0, 0, XDP_PASS)); // for a queue without a socket
    code.push(instruction(0x85, 0, 0, 0, REDIRECT_MAP));
    code.push(instruction(0x95, 0, 0, 0, 0)); // exit
    code.finish()
}

#[derive(Clone, Copy)]
enum Width {
    Word = 0x61,
    Half = 0x69,
    Byte = 0x71,
}

#[derive(Default)]
struct Assembler {
    code: Vec<u64>,
    /// Jumps to the end, where the packet is passed to the kernel.
    to_end: Vec<usize>,
}

impl Assembler {
    fn push(&mut self, instruction: u64) {
        self.code.push(instruction);
    }

    fn pass_if(&mut self, jump: u64) {
        self.to_end.push(self.code.len());
        self.code.push(jump);
    }

    /// Passes the packet to the kernel unless `expected` lies at `at`.
    fn pass_unless(&mut self, width: Width, at: i16, expected: u32) {
        self.push(load(width, 4, 2, at));
        // By a register: an immediate would be sign-extended.
        self.push(instruction(0xb4, 5, 0, 0, expected as i32)); // w5 = it
        self.pass_if(instruction(0x5d, 4, 5, 0, 0)); // if r4 != r5
    }

    fn finish(mut self) -> Vec<u64> {
        let end = self.code.len();
        for at in self.to_end {
            self.code[at] |= ((end - at - 1) as u64) << 16;
        }
        self.code.push(instruction(0xb7, 0, 0, 0, XDP_PASS));
        self.code.push(instruction(0x95, 0, 0, 0, 0));
        self.code
    }
}

fn load(width: Width, to: u8, from: u8, at: i16) -> u64 {
    instruction(width as u8, to, from, at, 0)
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(code)
        | u64::from(from << 4 | to) << 8
        | u64::from(offset as u16) << 16
        | u64::from(immediate as u32) << 32
}
