//! The protocol between the kernel's ublk driver and a server: `linux/ublk_cmd.h`, in this
//! machine's byte order.

use super::queue::{DEPTH, MAX_TRANSFER_BYTES};

/// Bytes of a sector, the kernel's unit.
pub(super) const SECTOR_BYTES: u64 = 512;

/// Commands to `/dev/ublk-control`: `_IOR` and `_IOWR` of `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Order {
    DeviceInfo = 0x8020_7502,
    AddDevice = 0xc020_7504,
    StartDevice = 0xc020_7506,
    StopDevice = 0xc020_7507,
    SetParameters = 0xc020_7508,
    Features = 0x8020_7513,
    DeleteDeviceLater = 0x8020_7514,
}

/// Commands to a device's queue: `_IOWR` of `struct ublksrv_io_cmd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Turn {
    /// Gives the kernel a first slot for a request.
    Fetch = 0xc010_7520,
    /// Answers the request there, and returns the slot.
    CommitAndFetch = 0xc010_7521,
}

/// The device survives the death of its server, so that it can be swapped off.
const USER_RECOVERY: u64 = 1 << 3;
/// The commands are encoded as ioctls.
const IOCTL_ENCODED: u64 = 1 << 6;
/// Requests to a device whose server is dead fail at once and do not wait for another server. Linux
/// 6.13.
const FAIL_WITHOUT_SERVER: u64 = 1 << 9;
/// The features of a device for swapping.
pub(super) const FEATURES: u64 = USER_RECOVERY | IOCTL_ENCODED | FAIL_WITHOUT_SERVER;

/// Any free number.
pub(super) const ANY_DEVICE: u32 = u32::MAX;
/// The prefix of the server's number in the mark of our devices.
const MARK: u64 = 0x7665_6e69;
const NO_QUEUE: u16 = u16::MAX;
const PAGE_SHIFT: u8 = 12;

/// The command area of a 128-byte SQE.
pub(super) type OrderBytes = [u8; 80];

/// Builds `struct ublksrv_ctrl_cmd`: the device, a buffer with its length, and a number.
pub(super) fn order(device: u32, (addr, len): (u64, u16), number: u64) -> OrderBytes {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&device.to_ne_bytes());
    bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&len.to_ne_bytes());
    bytes[8..16].copy_from_slice(&addr.to_ne_bytes());
    bytes[16..24].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// Builds `struct ublksrv_io_cmd`: the slot, the result of its request, and its buffer.
pub(super) fn turn(queue: u16, tag: u16, result: i32, addr: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes[8..16].copy_from_slice(&addr.to_ne_bytes());
    bytes
}

/// `struct ublksrv_ctrl_dev_info`: the requested values, and those the kernel chose.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceInfo(pub [u8; 64]);

impl DeviceInfo {
    pub(super) fn none() -> Self {
        Self([0; 64])
    }

    pub(super) fn request(queues: u16, server: u32) -> Self {
        let mut bytes = [0; 64];
        bytes[0..2].copy_from_slice(&queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&DEPTH.to_ne_bytes());
        bytes[8..12].copy_from_slice(&(MAX_TRANSFER_BYTES as u32).to_ne_bytes());
        bytes[12..16].copy_from_slice(&ANY_DEVICE.to_ne_bytes());
        bytes[24..32].copy_from_slice(&FEATURES.to_ne_bytes());
        // The driver keeps these bytes for the server's own use.
        bytes[32..40].copy_from_slice(&(MARK << 32 | u64::from(server)).to_ne_bytes());
        Self(bytes)
    }

    /// Returns the number of queues, at most that of processors.
    pub(super) fn queues(&self) -> u16 {
        u16::from_ne_bytes([self.0[0], self.0[1]])
    }

    pub(super) fn depth(&self) -> u16 {
        u16::from_ne_bytes([self.0[2], self.0[3]])
    }

    pub(super) fn device(&self) -> u32 {
        u32::from_ne_bytes([12, 13, 14, 15].map(|at| self.0[at]))
    }

    /// Returns the process of ours that made it, even if it is dead; `None` for others' devices.
    pub(super) fn server(&self) -> Option<u32> {
        let mark = u64::from_ne_bytes([32, 33, 34, 35, 36, 37, 38, 39].map(|at| self.0[at]));
        (mark >> 32 == MARK).then_some(mark as u32)
    }
}

/// Builds `struct ublk_params`, up to `struct ublk_param_discard`: a non-rotational device of whole
/// pages without a cache of its own, which takes discards.
pub(super) fn parameters(len_bytes: u64) -> [u8; 60] {
    const BASIC: u32 = 1;
    const DISCARD: u32 = 2;
    let mut bytes = [0; 60];
    let mut put = |at: usize, number: &[u8]| bytes[at..at + number.len()].copy_from_slice(number);
    put(0, &60u32.to_ne_bytes());
    put(4, &(BASIC | DISCARD).to_ne_bytes());
    // Logical and physical blocks, the best and the least length.
    put(12, &[PAGE_SHIFT; 4]);
    put(16, &((MAX_TRANSFER_BYTES as u64 / SECTOR_BYTES) as u32).to_ne_bytes());
    put(24, &(len_bytes / SECTOR_BYTES).to_ne_bytes());
    // From here on: discards.
    put(44, &(1u32 << PAGE_SHIFT).to_ne_bytes());
    put(48, &(u32::MAX >> PAGE_SHIFT << (PAGE_SHIFT - 9)).to_ne_bytes());
    put(56, &1u16.to_ne_bytes());
    bytes
}

/// `struct ublksrv_io_desc`: a request, as the kernel has written it to its slot.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Request {
    operation_and_flags: u32,
    sectors: u32,
    first_sector: u64,
    _addr: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
    /// All earlier writes are stored when they are answered.
    Flush,
    Discard,
    Unknown,
}

impl Request {
    pub(super) fn call(&self) -> Call {
        match self.operation_and_flags & 0xff {
            0 => Call::Read,
            1 => Call::Write,
            2 => Call::Flush,
            3 => Call::Discard,
            _ => Call::Unknown,
        }
    }

    /// Returns the offset of its bytes; far beyond any device if it overflows.
    pub(super) fn offset(&self) -> u64 {
        self.first_sector.saturating_mul(SECTOR_BYTES)
    }

    pub(super) fn len_bytes(&self) -> u64 {
        u64::from(self.sectors) * SECTOR_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with offsets in `linux/ublk_cmd.h` of Linux 6.18.
    #[test]
    fn layout_matches_kernel_header() {
        let bytes = order(7, (0x1122_3344_5566, 64), 99);
        assert_eq!(bytes[0..8], [7, 0, 0, 0, 0xff, 0xff, 64, 0]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566u64.to_ne_bytes());
        assert_eq!(bytes[16..24], 99u64.to_ne_bytes());
        assert!(bytes[24..].iter().all(|byte| *byte == 0));

        let bytes = turn(1, 2, -5, 77);
        assert_eq!(bytes[..8], [1, 0, 2, 0, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[8..], 77u64.to_ne_bytes());

        let info = DeviceInfo::request(3, 77);
        assert_eq!((info.queues(), info.depth(), info.device()), (3, DEPTH, ANY_DEVICE));
        assert_eq!(info.0[24..32], 0x248u64.to_ne_bytes());
        assert_eq!((info.server(), DeviceInfo::none().server()), (Some(77), None));

        let bytes = parameters(1 << 30);
        assert_eq!(bytes[..8], [60, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0, 0, 0, 0, 12, 12, 12, 12]);
        assert_eq!(bytes[24..32], (1u64 << 21).to_ne_bytes());
        assert_eq!(bytes[40..48], [0, 0, 0, 0, 0, 16, 0, 0]);
        assert_eq!(bytes[56..], [1, 0, 0, 0]);
    }

    #[test]
    fn requests_are_parsed() {
        let of = |operation_and_flags, sectors, first_sector| Request {
            operation_and_flags,
            sectors,
            first_sector,
            _addr: 0,
        };
        let write = of(0x0100_0001, 16, 8);
        assert_eq!((write.call(), write.offset(), write.len_bytes()), (Call::Write, 4096, 8192));
        assert_eq!(of(3, 8, 0).call(), Call::Discard);
        assert_eq!(of(5, 8, 0).call(), Call::Unknown);
        assert_eq!(of(0, 1, u64::MAX).offset(), u64::MAX);
    }
}
