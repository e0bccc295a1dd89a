//! Orders to the ublk driver, one at a time.

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
/// How long the kernel may take to start a device.
const START_WITHIN: Duration = Duration::from_secs(30);

/// The driver's ear.
pub(super) struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// Finds out whether the driver is there, and can do what swapping needs.
    pub(super) fn open() -> Result<Self, SwapError> {
        let file = match OpenOptions::new().read(true).write(true).open(CONTROL) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(SwapError::Missing { what: "ublk", mend: "modprobe ublk_drv" });
            }
            Err(error) => return Err(SwapError::file("open", CONTROL)(error)),
        };
        let ring = IoUring::builder().build(2);
        let ring = ring.map_err(SwapError::file("make a ring (io_uring_setup) for", CONTROL))?;
        let mut control = Self { file, ring };
        // A driver that is too old does not know this order either.
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

    /// Makes a device with at most so many queues.
    pub(super) fn add(&mut self, queues: u16) -> Result<DeviceInfo, SwapError> {
        let mut info = DeviceInfo::wish(queues);
        let added = self.order_with(Order::AddDevice, ANY_DEVICE, &mut info.0);
        added.map_err(SwapError::at("making a ublk device"))?;
        Ok(info)
    }

    /// Tells how long the device is and what it takes.
    pub(super) fn describe(&mut self, device: u32, len_bytes: u64) -> Result<(), SwapError> {
        let described = self.order_with(Order::SetParameters, device, &mut parameters(len_bytes));
        described.map_err(SwapError::at("describing the ublk device"))
    }

    /// Has the kernel show the device, once every queue is served.
    pub(super) fn start(&mut self, device: u32) -> Result<(), SwapError> {
        let server = u64::from(std::process::id());
        let bytes = order(device, (0, 0), server);
        let started = self.give(Order::StartDevice, bytes, Some(START_WITHIN));
        started.map_err(SwapError::at("starting the ublk device"))
    }

    /// Has the kernel take the device away and the queues end.
    pub(super) fn stop(&mut self, device: u32) -> Result<(), Errno> {
        self.give(Order::StopDevice, order(device, (0, 0), 0), None)
    }

    /// Frees its number, once nobody has it open.
    pub(super) fn delete(&mut self, device: u32) -> Result<(), Errno> {
        self.give(Order::DeleteDevice, order(device, (0, 0), 0), None)
    }

    /// Gives an order with a buffer, which the kernel reads or fills.
    fn order_with(&mut self, what: Order, device: u32, buffer: &mut [u8]) -> Result<(), Errno> {
        let place = (buffer.as_mut_ptr() as u64, buffer.len() as u16);
        // Without a limit: the buffer is the kernel's until this returns.
        self.give(what, order(device, place, 0), None)
    }

    fn give(
        &mut self,
        what: Order,
        bytes: OrderBytes,
        limit: Option<Duration>,
    ) -> Result<(), Errno> {
        let file = Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, what as u32).cmd(bytes).build();
        let entry = entry.user_data(what as u64);
        // SAFETY: the buffer that the order points to, if it does, outlives it: only orders without one
        // have a limit, and all others are waited for.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("one order at a time");
        let time = limit.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(time) = &time {
            arguments = arguments.timespec(time);
        }
        loop {
            match self.ring.submitter().submit_with_args(1, &arguments) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
            // One that came too late may lie before it.
            let answer = self.ring.completion().find(|answer| answer.user_data() == what as u64);
            if let Some(answer) = answer {
                let result = answer.result();
                return if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }
}
