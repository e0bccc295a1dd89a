//! Core dumps of the run's processes by the kernel: the supervisor adds the far pages.
//!
//! The kernel stops the pager before it writes the core, and leaves far pages out. The far slots of
//! a dead process are freed by the supervisor, so it first looks for the core file and completes it
//! ([`venice_memory::dump`]). A core that goes to a program (`|` in `kernel.core_pattern`) stays
//! incomplete, and a remark says so.

use std::fs::{self, File, OpenOptions};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use venice_memory::dump::{self, Completed};
use venice_recipient::Holding;

use super::shared_memory::{RunPages, SharedMemory};
use venice_cli::terminal::remark;

/// Clocks of file systems are behind by up to a tick.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// The place of a process's core dump, should it leave one.
#[derive(Debug)]
pub struct CorePlace {
    since: SystemTime,
    /// Its current directory when it was last looked at.
    directory: Option<PathBuf>,
    /// Its limit of core files then; `None`: not known.
    limit_bytes: Option<u64>,
}

impl CorePlace {
    /// Looks at the process `pid`, which has just attached.
    pub fn of(pid: u32) -> CorePlace {
        let since = SystemTime::now() - CLOCK_SLACK;
        let mut place = CorePlace { since, directory: None, limit_bytes: None };
        place.refresh(pid);
        place
    }

    /// Looks at the process again. A process that ended meanwhile changes nothing.
    pub fn refresh(&mut self, pid: u32) {
        if let Ok(directory) = fs::read_link(format!("/proc/{pid}/cwd")) {
            self.directory = Some(directory);
        }
        if let Ok(limits) = fs::read_to_string(format!("/proc/{pid}/limits")) {
            self.limit_bytes = core_limit(&limits);
        }
    }

    /// Finds the newest core file of `pid` under the names that `pattern` can give it.
    fn find(&self, pid: u32, pattern: &str) -> Option<(PathBuf, File)> {
        let within = Path::new(pattern).parent().unwrap_or(Path::new(""));
        let current = std::env::current_dir().ok();
        let bases = [self.directory.clone(), current].into_iter().flatten();
        // `join` takes an absolute path as it is.
        bases.map(|base| base.join(within)).find_map(|dir| newest_core(&dir, pid, self.since))
    }
}

/// Parses the soft limit of core files in `/proc/PID/limits`.
fn core_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    }
}

fn newest_core(dir: &Path, pid: u32, since: SystemTime) -> Option<(PathBuf, File)> {
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let Ok(facts) = entry.metadata() else { continue };
        if let Ok(modified) = facts.modified()
            && facts.is_file()
            && modified >= since
        {
            files.push((modified, entry.path()));
        }
    }
    files.sort();
    files.into_iter().rev().find_map(|(_, path)| {
        let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        (dump::process_of(&file) == Some(pid)).then_some((path, file))
    })
}

/// Begins to complete the core of the process `pid`, which has ended; its pager's tables had their
/// header at `header`. `None`: it has left no core, or none that can be completed. Its far slots
/// must be held until the thread ends.
pub fn begin(
    (holding, shared): (&Arc<Holding>, &Arc<SharedMemory>),
    pid: u32,
    header: u64,
    pidfd: BorrowedFd<'_>,
    place: &CorePlace,
) -> Option<JoinHandle<()>> {
    let pattern = dump::core_handler();
    let has_dumped = dump::has_dumped_core(pid, pidfd);
    if has_dumped == Some(false) {
        return None;
    }
    if let Some(handler) = pattern.strip_prefix('|') {
        if has_dumped == Some(true) {
            remark(format!(
                "venice: the core of process {pid} went to {} (kernel.core_pattern) and lacks its far \
                 pages, up to {}: with a file as core_pattern `venice run` adds them; of a living \
                 process `venice core` writes a whole core",
                handler.split_whitespace().next().unwrap_or_default(),
                far_pages(holding, pid)
            ));
        }
        return None;
    }
    if place.limit_bytes == Some(0) && has_dumped != Some(true) {
        return None;
    }
    let Some((path, file)) = place.find(pid, &pattern) else {
        if has_dumped == Some(true) {
            remark(format!(
                "venice: process {pid} dumped core, which lacks its far pages, up to {}: no core \
                 file found by kernel.core_pattern {pattern:?} in {}",
                far_pages(holding, pid),
                place.directory.as_deref().unwrap_or(Path::new("its directory")).display()
            ));
        }
        return None;
    };
    let (holding, shared) = (holding.clone(), shared.clone());
    let complete = move || remark(complete((&holding, shared), pid, header, (&path, &file)));
    std::thread::Builder::new().name("venice-core".into()).spawn(complete).ok()
}

/// Far slots that a process holds. A resident page may have one too.
fn far_pages(holding: &Holding, pid: u32) -> usize {
    let block = holding.block();
    let mut processes = block.live_processes();
    let order = std::sync::atomic::Ordering::Relaxed;
    let place = processes.find(|(_, process)| process.pid.load(order) == pid);
    let Some((place, _)) = place else { return 0 };
    block.holders().iter().filter(|word| word.load(order) & 1 << place != 0).count()
}

/// Completes a core file; returns the remark about it.
fn complete(
    (holding, shared): (&Arc<Holding>, Arc<SharedMemory>),
    pid: u32,
    header: u64,
    (path, file): (&Path, &File),
) -> String {
    let path = path.display();
    let completed = RunPages::open(holding, shared)
        .and_then(|mut pages| Ok(dump::complete_core(file, header, &mut pages)?));
    match completed {
        Ok(Completed { added_pages, missing_pages: 0, is_cut_off: false }) => {
            format!(
                "venice: process {pid} dumped core: {path} is whole, with {added_pages} far pages added"
            )
        }
        Ok(Completed { added_pages, missing_pages, is_cut_off }) => {
            let why = if is_cut_off {
                "it ends early (a limited core file size, or a full disk): raise `ulimit -c`"
            } else {
                "they are lost with their donors"
            };
            format!(
                "venice: process {pid} dumped core: {path} lacks {missing_pages} far pages, {added_pages} \
                 were added: {why}"
            )
        }
        Err(why) => {
            let far = far_pages(holding, pid);
            format!(
                "venice: process {pid} dumped core: {path} lacks its far pages, up to {far}: {why:#}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_core_limit_is_parsed() {
        let limits = |soft: &str| {
            format!(
                "Limit  Soft Limit\nMax data size  1  2 bytes\nMax core file size    {soft}  unlimited  bytes\n"
            )
        };
        assert_eq!(core_limit(&limits("0")), Some(0));
        assert_eq!(core_limit(&limits("unlimited")), Some(u64::MAX));
        assert_eq!(core_limit(""), None);
    }

    #[test]
    fn other_files_are_no_core() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("core"), "text").unwrap();
        assert!(newest_core(dir.path(), 1, SystemTime::UNIX_EPOCH).is_none());
    }
}
