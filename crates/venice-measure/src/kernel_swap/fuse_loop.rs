//! Swap to memory behind a network block server, a FUSE file and a loop device: the path of a
//! kernel without nbd or ublk to remote memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::loop_device::LoopDevice;
use super::swap_area::SwapArea;
use super::{SwapDevice, locked_servers};
use crate::child::{ChildGuard, find_program, run_tool};
use crate::interrupt::wait_until;
use crate::scratch;

/// The whole chain in use as swap. Dropping it takes it down in order.
#[derive(Debug)]
pub struct FuseLoopSwap {
    // The fields drop in this order, from the kernel's end to the server's.
    _area: SwapArea,
    device: LoopDevice,
    mount: FuseMount,
}

impl FuseLoopSwap {
    /// Sets the chain up.
    ///
    /// # Errors
    /// Without root, or when nbdkit, nbdfuse, FUSE or loop devices are missing.
    pub fn create(len_bytes: u64) -> Result<Self> {
        venice_swap::require_root()?;
        let mount = FuseMount::serve(len_bytes)?;
        let device = LoopDevice::attach(&mount.file(), true)?;
        let area = SwapArea::switch_on(&device.path)?;
        Ok(Self { _area: area, device, mount })
    }

    /// Returns the processes that serve the pages, for accounting.
    pub fn server_pids(&self) -> Vec<u32> {
        self.mount.server.pids_of_group()
    }
}

impl SwapDevice for FuseLoopSwap {
    fn path(&self) -> &Path {
        &self.device.path
    }
}

#[derive(Debug)]
struct FuseMount {
    mounted: bool,
    server: ChildGuard,
    folder: TempDir,
}

impl FuseMount {
    fn serve(len_bytes: u64) -> Result<Self> {
        let nbdfuse = find_program("nbdfuse").context("apt-get install libnbd-bin")?;
        let nbdkit = find_program("nbdkit").context("apt-get install nbdkit")?;
        find_program("fusermount3").context("apt-get install fuse3")?;
        if !Path::new("/dev/fuse").exists() {
            bail!("this kernel offers no FUSE (/dev/fuse is missing)");
        }
        let folder = scratch::folder(scratch::FUSE)?;
        let point = folder.path().join("mount");
        std::fs::create_dir(&point)?;
        let mut command = Command::new(nbdfuse);
        command.arg(point.join("memory")).arg("--command").arg(nbdkit).args([
            "-s",
            "--swap",
            "--exit-with-parent",
            "memory",
            &len_bytes.to_string(),
        ]);
        locked_servers::lock(&mut command, folder.path())?;
        // A server killed with this process would leave the kernel with unreadable pages.
        let server = ChildGuard::spawn_to_stay("nbdfuse", command, &folder.path().join("log"))?;
        let mut mount = Self { mounted: false, server, folder };
        let file = mount.file();
        wait_until("the FUSE file of nbdfuse", Duration::from_secs(10), || {
            mount.server.ensure_alive()?;
            Ok(std::fs::metadata(&file).is_ok_and(|meta| meta.len() == len_bytes).then_some(()))
        })?;
        mount.mounted = true;
        locked_servers::check(&mount.server.pids_of_group())?;
        Ok(mount)
    }

    fn point(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    fn file(&self) -> PathBuf {
        self.point().join("memory")
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.mounted {
            let point = self.point();
            if let Err(error) = run_tool("fusermount3", &["-u", &point.to_string_lossy()]) {
                eprintln!("venice: {error:#}");
            }
        }
        self.server.stop();
    }
}
