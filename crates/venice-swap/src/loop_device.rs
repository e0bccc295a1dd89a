//! A loop device with direct I/O over a file.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::{SwapError, sys};

/// Other processes look for free loop devices too.
const TRIES: usize = 64;

/// A loop device. It is detached from its file when this value is dropped and swapping to it has
/// ended.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    device: File,
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `file` to a free loop device, which is then the only one to have it open.
    pub(crate) fn over(file: File, name: &str) -> Result<Self, SwapError> {
        const CONTROL: &str = "/dev/loop-control";
        let control = match OpenOptions::new().read(true).write(true).open(CONTROL) {
            Ok(control) => control,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let what = "loop devices (/dev/loop-control)";
                return Err(SwapError::Missing { what, mend: "modprobe loop" });
            }
            Err(error) => return Err(SwapError::file("open", CONTROL)(error)),
        };
        for _ in 0..TRIES {
            let number =
                sys::loop_free(&control).map_err(SwapError::at("looking for a loop device"))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let opened = OpenOptions::new().read(true).write(true).open(&path);
            let device = opened.map_err(SwapError::file("open", &path))?;
            match sys::loop_configure(&device, &file, name) {
                Ok(()) => return Ok(Self { device, path }.tuned(number)),
                Err(Errno::BUSY) => {}
                Err(source) => {
                    let step = "laying the FUSE file under a loop device";
                    return Err(SwapError::System { step, source });
                }
            }
        }
        Err(SwapError::System { step: "looking for a loop device", source: Errno::BUSY })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Declares the device as non-rotational: the kernel then reads ahead by neighbourhood in the
    /// program, not on the device.
    fn tuned(self, number: u32) -> Self {
        // If it is refused the device still works.
        let _ = std::fs::write(format!("/sys/block/loop{number}/queue/rotational"), "0");
        self
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Marks it for detachment at the last close, which is ours unless it is swapped to.
        let _ = sys::loop_clear(&self.device);
    }
}
