//! Control commands to the ublk driver, one at a time.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use super::protocol::{ANY_DEVICE, DeviceInfo, FEATURES, Order, OrderBytes, order, parameters};
use crate::SwapError;

const CONTROL: &str = "/dev/ublk-control";
/// The time the kernel may take to start a device.
const START_WITHIN: Duration = Duration::from_secs(30);

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The control device of the driver.
pub(super) struct Control {
    file: File,
    /// `None` once a command was left unanswered with it: the rest of its state ends with it.
    ring: Option<Ring>,
}

impl Control {
    /// Checks that the driver exists and supports what swapping needs.
    pub(super) fn open() -> Result<Self, SwapError> {
        let file = match OpenOptions::new().read(true).write(true).open(CONTROL) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(SwapError::Missing { what: "ublk", mend: "modprobe ublk_drv" });
            }
            Err(error) => return Err(SwapError::file("open", CONTROL)(error)),
        };
        let ring = ring().map_err(SwapError::file("make a ring (io_uring_setup) for", CONTROL))?;
        let mut control = Self { file, ring: Some(ring) };
        // A driver that is too old does not support this command either.
        if control.features().unwrap_or(0) & FEATURES != FEATURES {
            let what = "ublk device that outlives its server";
            let mend = "Linux 6.13 has them; until then take nbd or fuse";
            return Err(SwapError::Missing { what, mend });
        }
        Ok(control)
    }

    fn features(&mut self) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        self.order_with(Order::Features, ANY_DEVICE, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Makes a device with at most `queues` queues.
    pub(super) fn add(&mut self, queues: u16) -> Result<DeviceInfo, SwapError> {
        let mut info = DeviceInfo::request(queues, std::process::id());
        let added = self.order_with(Order::AddDevice, ANY_DEVICE, &mut info.0);
        added.map_err(SwapError::at("making a ublk device"))?;
        Ok(info)
    }

    /// Sets the length and the parameters of the device.
    pub(super) fn describe(&mut self, device: u32, len_bytes: u64) -> Result<(), SwapError> {
        let described = self.order_with(Order::SetParameters, device, &mut parameters(len_bytes));
        described.map_err(SwapError::at("describing the ublk device"))
    }

    /// Starts the device, once every queue is served.
    pub(super) fn start(&mut self, device: u32) -> Result<(), SwapError> {
        let server = u64::from(std::process::id());
        let bytes = order(device, (0, 0), server);
        let started = self.give(Order::StartDevice, bytes, Some(START_WITHIN));
        started.map_err(SwapError::at("starting the ublk device"))
    }

    /// Stops the device and its queues.
    pub(super) fn stop(&mut self, device: u32) -> Result<(), Errno> {
        self.give(Order::StopDevice, order(device, (0, 0), 0), None)
    }

    /// Frees its number as soon as no process has it open any more.
    pub(super) fn delete(&mut self, device: u32) -> Result<(), Errno> {
        self.give(Order::DeleteDeviceLater, order(device, (0, 0), 0), None)
    }

    /// Returns the process of ours that made a device; `None` for others' devices.
    pub(super) fn server(&mut self, device: u32) -> Result<Option<u32>, Errno> {
        let mut info = DeviceInfo::none();
        self.order_with(Order::DeviceInfo, device, &mut info.0)?;
        Ok(info.server())
    }

    /// Sends a command with a buffer, which the kernel reads or fills.
    fn order_with(&mut self, what: Order, device: u32, buffer: &mut [u8]) -> Result<(), Errno> {
        let place = (buffer.as_mut_ptr() as u64, buffer.len() as u16);
        // Without a time limit: the buffer is the kernel's until this returns.
        self.give(what, order(device, place, 0), None)
    }

    fn give(
        &mut self,
        what: Order,
        bytes: OrderBytes,
        limit: Option<Duration>,
    ) -> Result<(), Errno> {
        let mut ring = self.ring.take().map_or_else(ring, Ok).map_err(errno)?;
        let file = Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, what as u32).cmd(bytes).build();
        // SAFETY: the buffer that the command points to, if it does, outlives it: only commands
        // without one have a limit, all others are waited for, and a ring that could not be is
        // dropped here.
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.expect("one order at a time");
        let result = answer(&mut ring, limit).map_err(errno)?;
        self.ring = Some(ring);
        if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) }
    }
}

fn ring() -> std::io::Result<Ring> {
    IoUring::builder().build(2)
}

fn answer(ring: &mut Ring, limit: Option<Duration>) -> std::io::Result<i32> {
    let time = limit.map(Timespec::from);
    let mut arguments = SubmitArgs::new();
    if let Some(time) = &time {
        arguments = arguments.timespec(time);
    }
    loop {
        match ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if let Some(answer) = ring.completion().next() {
            return Ok(answer.result());
        }
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
