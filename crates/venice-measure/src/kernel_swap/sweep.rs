//! Removal of the remains of benchmarks that were killed: programs, files and swap devices.
//!
//! Programs and their files go first, then the devices that hold their pages, from the kernel's end
//! to the memory's. Names contain the owner ([`scratch`]).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use ::venice_swap::cgroup::MemoryCgroup;
use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

use super::swap_area::LABEL;
use super::zram;
use crate::child::run_tool;
use crate::progress::note;
use crate::scratch::{FOLDER, FUSE, MEMORY_FOLDER, RAM_DISK, SWAP_FILE, ZRAM, left_in};

/// Default folder of swap files.
const SWAP_DIR: &str = "/var/tmp";
/// Names of the benchmarks' cgroups.
const GROUPS: [&str; 3] = ["memory", "bench", "demo"];

/// Removes the remains of dead benchmarks, in `swap_dir` too, and prints them. Only the first call
/// of a process does so.
pub fn sweep(swap_dir: Option<&Path>) {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| {
        let usual = Path::new(SWAP_DIR);
        let named = swap_dir.filter(|folder| *folder != usual);
        let swept = sweep_now(&[Some(usual), named].into_iter().flatten().collect::<Vec<_>>());
        if !swept.is_empty() {
            note(&format!("removed the remains of a killed benchmark: {}", swept.join(", ")));
        }
    });
}

/// Removal of one kind of remains.
type Away = fn(&Path) -> Result<()>;

fn sweep_now(swap_dirs: &[&Path]) -> Vec<String> {
    for group in GROUPS {
        MemoryCgroup::clear_leftovers(group);
    }
    let (temp, memory) = (std::env::temp_dir(), Path::new(MEMORY_FOLDER));
    // Folders come before the devices that may hold pages of their files.
    let mut kinds: Vec<(&Path, &str, Away)> =
        vec![(&temp, FOLDER, remove_folder), (memory, FOLDER, remove_folder)];
    kinds.extend(swap_dirs.iter().map(|folder| (*folder, SWAP_FILE, remove_swap_file as Away)));
    kinds.extend([
        (memory, ZRAM, remove_zram as Away),
        (&temp, RAM_DISK, remove_ram_disk),
        (&temp, FUSE, remove_fuse),
    ]);
    let mut swept = Vec::new();
    for (parent, kind, away) in kinds {
        for path in left_in(parent, kind) {
            match away(&path) {
                Ok(()) => swept.push(path.display().to_string()),
                Err(error) => note(&format!("venice: {} stays: {error:#}", path.display())),
            }
        }
    }
    swept
}

fn remove_folder(path: &Path) -> Result<()> {
    Ok(fs::remove_dir_all(path)?)
}

fn remove_swap_file(path: &Path) -> Result<()> {
    switch_off(path)?;
    Ok(fs::remove_file(path)?)
}

fn remove_ram_disk(folder: &Path) -> Result<()> {
    free_loop_devices(folder)?;
    if is_mounted(folder) {
        unmount(folder, UnmountFlags::NOFOLLOW).context("cannot unmount it")?;
    }
    Ok(fs::remove_dir_all(folder)?)
}

/// Unmounts and removes a FUSE folder; its server ends with its mount.
fn remove_fuse(folder: &Path) -> Result<()> {
    free_loop_devices(folder)?;
    let point = folder.join("mount");
    if is_mounted(&point) {
        run_tool("fusermount3", &["-u", &point.to_string_lossy()])?;
    }
    Ok(fs::remove_dir_all(folder)?)
}

/// Removes the device named in the file at `path`, unless another user has it by now.
fn remove_zram(path: &Path) -> Result<()> {
    let number = path.to_string_lossy().rsplit('-').next().unwrap_or_default().to_owned();
    let device = PathBuf::from(format!("/dev/zram{number}"));
    if has_our_label(&device) {
        switch_off(&device)?;
        zram::release(number.parse().context("the note names no device")?)?;
    }
    Ok(fs::remove_file(path)?)
}

/// Detaches loop devices from files in `folder`.
fn free_loop_devices(folder: &Path) -> Result<()> {
    for entry in fs::read_dir("/sys/block").context("cannot list the block devices")?.flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(file.trim_end()).starts_with(folder) {
            let device = Path::new("/dev").join(entry.file_name());
            switch_off(&device)?;
            run_tool("losetup", &["--detach", &device.to_string_lossy()])?;
        }
    }
    Ok(())
}

fn switch_off(path: &Path) -> Result<()> {
    if ::venice_swap::used_bytes(path).is_some() {
        run_tool("swapoff", &[&path.to_string_lossy()])?;
    }
    Ok(())
}

/// True if it has a swap header with the benchmarks' label.
fn has_our_label(device: &Path) -> bool {
    const LABEL_AT: u64 = 1052;
    let mut label = [0; LABEL.len()];
    let read = fs::File::open(device).and_then(|file| file.read_exact_at(&mut label, LABEL_AT));
    read.is_ok() && label == LABEL.as_bytes()
}

fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == point))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::kernel_swap::SwapDevice;
    use crate::kernel_swap::ram_disk::RamDiskSwap;
    use crate::kernel_swap::swap_file::SwapFile;
    use crate::kernel_swap::zram::ZramSwap;
    use crate::scratch::{folder, folder_in, name};

    /// Folder of the killed process's swap file; set in its process alone.
    const SWAP_DIR: &str = "VENICE_BENCH_TEST_SWAP_DIR";

    fn make_all_there_is_and_wait(swap_dir: &Path) {
        let _folders =
            [folder(FOLDER).unwrap(), folder_in(MEMORY_FOLDER.as_ref(), FOLDER).unwrap()];
        let _disk = RamDiskSwap::create(8 << 20).unwrap();
        // Some machines do not support these.
        let _file = SwapFile::create(swap_dir, 8 << 20);
        let _zram = ZramSwap::create(8 << 20);
        let group = MemoryCgroup::create("demo", 8 << 20, None).unwrap();
        println!("made: {}", name("*"));
        group.command(Path::new("/bin/sleep")).arg("1000").status().unwrap();
    }

    #[test]
    fn only_killed_benchmark_is_swept() {
        let test = "only_killed_benchmark_is_swept";
        if let Some(swap_dir) = std::env::var_os(SWAP_DIR) {
            return make_all_there_is_and_wait(swap_dir.as_ref());
        }
        let own = match RamDiskSwap::create(8 << 20) {
            Ok(own) => own,
            Err(lacks) => return eprintln!("SKIPPED: {test}: {lacks:#}"),
        };
        let swap_dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", &format!("kernel_swap::sweep::tests::{test}"), "--nocapture"])
            .env(SWAP_DIR, swap_dir.path())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let made =
            lines.find_map(|line| line.unwrap().split_once("made: ").map(|it| it.1.to_owned()));
        let made = made.expect("the benchmark made nothing");
        let (_, owner) = made.split_once("*-").unwrap();
        let left = || {
            let places = [std::env::temp_dir(), MEMORY_FOLDER.into(), swap_dir.path().into()];
            let entries = places.iter().flat_map(|place| fs::read_dir(place).unwrap().flatten());
            let of_it = entries
                .map(|entry| entry.path())
                .filter(|path| path.to_string_lossy().contains(owner));
            of_it.collect::<Vec<_>>()
        };
        let before = left();
        assert!(before.len() >= 3, "{before:?}");
        sweep_now(&[swap_dir.path()]);
        assert_eq!(left(), before, "the set-up of a living benchmark was removed");

        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(left(), before);
        let swept = sweep_now(&[swap_dir.path()]);
        assert_eq!(left(), Vec::<PathBuf>::new());
        assert!(before.iter().all(|path| swept.contains(&path.display().to_string())), "{swept:?}");
        let is_of_it = |entry: std::io::Result<fs::DirEntry>| {
            let file = entry.unwrap().path().join("loop/backing_file");
            fs::read_to_string(file).is_ok_and(|file| file.contains(owner))
        };
        assert!(!fs::read_dir("/sys/block").unwrap().any(is_of_it));
        assert!(::venice_swap::used_bytes(own.path()).is_some());
    }
}
