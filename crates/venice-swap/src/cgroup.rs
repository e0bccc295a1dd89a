//! A memory cgroup of our own, in either version of the interface.

use std::collections::HashSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

mod placement;

use crate::anchor::Anchor;
use crate::bound::kill_with_starter;
use crate::group_anchor::membership;
use crate::{SwapError, UserProcess, leftovers, require_root};

/// Time for which a lower limit is retried while no memory leaves.
const SHRINK_PATIENCE: Duration = Duration::from_secs(10);
const SHRINK_PAUSE: Duration = Duration::from_millis(10);
/// Looks at a group's members in one turn of its end.
const MOST_LOOKS: usize = 1000;
/// A remainder below this fraction of a group's limit counts as full.
const NEARLY: u64 = 32;

/// The mount of the memory controller, and the version of its interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    /// The legacy hierarchy of the memory controller.
    V1(PathBuf),
    /// The unified hierarchy.
    V2(PathBuf),
}

impl Hierarchy {
    /// Finds the memory controller among this system's mounts; `None` if none has it.
    #[must_use]
    pub fn find() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        Self::parse(&mounts, |mount| {
            fs::read_to_string(mount.join("cgroup.controllers"))
                .is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
        })
    }

    /// Parses `/proc/self/mounts`; `v2_has_memory` returns whether a unified hierarchy has the
    /// memory controller (on a hybrid system it is bound to the legacy one).
    fn parse(mounts: &str, v2_has_memory: impl Fn(&Path) -> bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let mount = PathBuf::from(fields.next()?);
            let kind = fields.next()?;
            let options = fields.next()?;
            match kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => {
                    Some(Self::V1(mount))
                }
                "cgroup2" if v2_has_memory(&mount) => Some(Self::V2(mount)),
                _ => None,
            }
        })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn mount(&self) -> &Path {
        let (Self::V1(mount) | Self::V2(mount)) = self;
        mount
    }

    /// Returns `v1` or `v2`, for reports.
    #[must_use]
    pub fn version(&self) -> &'static str {
        match self {
            Self::V1(_) => "v1",
            Self::V2(_) => "v2",
        }
    }
}

/// A memory cgroup that limits the resident memory of its members and swaps the rest. Dropping it
/// kills its members and removes it.
#[derive(Debug)]
pub struct MemoryCgroup {
    folder: PathBuf,
    hierarchy: Hierarchy,
    anchor: Option<Arc<Anchor>>,
}

impl MemoryCgroup {
    /// Creates a group `venice-NAME-PID` whose members keep at most `limit_bytes` resident and have
    /// at most `swap_bytes` on swap; `None`: no limit on swap.
    ///
    /// # Errors
    /// Without root, without a memory controller, or if the kernel refuses a limit.
    pub fn create(
        name: &str,
        limit_bytes: u64,
        swap_bytes: Option<u64>,
    ) -> Result<Self, SwapError> {
        require_root()?;
        let hierarchy = Hierarchy::find().ok_or_else(SwapError::no_memory_cgroup)?;
        Self::clear_leftovers(name);
        let parent = hierarchy.mount().to_owned();
        Self::create_in(&parent, hierarchy, name, (limit_bytes, swap_bytes))
    }

    /// Creates a group for `process` like [`MemoryCgroup::create`], where the limits that the process
    /// has go on applying, and moves the process into it.
    ///
    /// # Errors
    /// The errors of [`MemoryCgroup::create`]; [`SwapError::LimitLeft`]; [`SwapError::ForeignProcess`]
    /// if the process ends meanwhile.
    pub fn create_for(
        process: &UserProcess,
        name: &str,
        limit_bytes: u64,
        swap_bytes: u64,
    ) -> Result<Self, SwapError> {
        require_root()?;
        let hierarchy = Hierarchy::find().ok_or_else(SwapError::no_memory_cgroup)?;
        let path = format!("/proc/{}/cgroup", process.pid());
        let groups = fs::read_to_string(&path).map_err(SwapError::file("read", &path))?;
        let own = membership(&groups, &hierarchy).ok_or_else(SwapError::no_memory_cgroup)?;
        let own_folder = hierarchy.mount().join(own.trim_start_matches('/'));
        let parent = placement::parent(&hierarchy, own)?;
        let limits = (limit_bytes, Some(swap_bytes));
        let group = Self::create_in(&parent, hierarchy, name, limits)?;
        group.admit(process, &own_folder)?;
        Ok(group)
    }

    fn create_in(
        parent: &Path,
        hierarchy: Hierarchy,
        name: &str,
        (limit_bytes, swap_bytes): (u64, Option<u64>),
    ) -> Result<Self, SwapError> {
        if let Hierarchy::V2(mount) = &hierarchy
            && mount == parent
        {
            // Fails if an ancestor holds processes; then setting the limit below fails and reports
            // it.
            let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
        }
        let folder = parent.join(format!("{}{}", prefix(name), std::process::id()));
        fs::create_dir(&folder).map_err(SwapError::file("make", &folder))?;
        let group = Self { folder, hierarchy, anchor: None };
        group.set_limits(limit_bytes, swap_bytes)?;
        Ok(group)
    }

    /// Moves `process` into the group; it is in the group `before`.
    fn admit(&self, process: &UserProcess, before: &Path) -> Result<(), SwapError> {
        let members = self.members_file();
        let number = process.pid().as_raw_nonzero().to_string();
        fs::write(&members, number).map_err(SwapError::file("move a process to", &members))?;
        if process.is_alive() {
            return Ok(());
        }
        // Another process may have got its number.
        for pid in self.member_ids() {
            let _ = fs::write(before.join("cgroup.procs"), pid.to_string());
        }
        Err(SwapError::ForeignProcess { why: "it has ended" })
    }

    /// Removes the group of another process that has ended, with all processes in it.
    pub fn clear(folder: &Path) {
        if let Some(hierarchy) = Hierarchy::find().filter(|_| folder.is_dir()) {
            drop(Self { folder: folder.to_owned(), hierarchy, anchor: None });
        }
    }

    /// Returns its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes the groups called `name` whose makers are dead, with all processes in them.
    pub fn clear_leftovers(name: &str) {
        let Some(hierarchy) = Hierarchy::find() else { return };
        for folder in leftovers::of_dead_processes(hierarchy.mount(), &prefix(name)) {
            // Dropped at once: this kills the members and removes the group.
            drop(Self { folder, hierarchy: hierarchy.clone(), anchor: None });
        }
    }

    /// Makes programs started from now on keep a page of `device`, to which they swap, in the
    /// group. Without it the kernel may kill a program that uses all its memory at once, whatever
    /// room there is on swap.
    ///
    /// # Errors
    /// If the device cannot be opened.
    pub fn anchor_on(&mut self, device: &Path) -> Result<(), SwapError> {
        self.anchor = Some(Arc::new(Anchor::on(device)?));
        Ok(())
    }

    /// Changes the limits. The kernel moves the excess out first, and the call takes that long.
    ///
    /// # Errors
    /// If the kernel refuses, or no more memory leaves for ten seconds.
    pub fn change_limit(&self, limit_bytes: u64, swap_bytes: Option<u64>) -> Result<(), SwapError> {
        let grows = self.limit_bytes().is_some_and(|now| limit_bytes > now);
        if let (Hierarchy::V1(_), true) = (&self.hierarchy, grows) {
            // The combined limit must not fall below the other.
            self.set_both(limit_bytes, swap_bytes)?;
        }
        let (mut least, mut patience_ends) = (u64::MAX, Instant::now() + SHRINK_PATIENCE);
        loop {
            match self.set_limits(limit_bytes, swap_bytes) {
                Err(error) if error.is_busy() && Instant::now() < patience_ends => {}
                settled => return settled,
            }
            // The legacy interface gives up as soon as one page does not leave at once: one being
            // written, for example.
            let now = self.anonymous_bytes();
            if now < least {
                (least, patience_ends) = (now, Instant::now() + SHRINK_PATIENCE);
            }
            std::thread::sleep(SHRINK_PAUSE);
        }
    }

    fn set_limits(&self, limit_bytes: u64, swap_bytes: Option<u64>) -> Result<(), SwapError> {
        self.set(self.limit_file(), limit_bytes)?;
        self.set_both(limit_bytes, swap_bytes)
    }

    /// Sets the second limit: in the legacy interface the combined one, otherwise that of swap.
    fn set_both(&self, limit_bytes: u64, swap_bytes: Option<u64>) -> Result<(), SwapError> {
        let Some(swap_bytes) = swap_bytes else { return Ok(()) };
        match self.hierarchy {
            Hierarchy::V1(_) => {
                self.set("memory.memsw.limit_in_bytes", limit_bytes.saturating_add(swap_bytes))
            }
            Hierarchy::V2(_) => self.set("memory.swap.max", swap_bytes),
        }
    }

    fn set(&self, file: &str, bytes: u64) -> Result<(), SwapError> {
        let path = self.folder.join(file);
        fs::write(&path, bytes.to_string()).map_err(SwapError::file("set the limit", path))
    }

    fn limit_file(&self) -> &'static str {
        match self.hierarchy {
            Hierarchy::V1(_) => "memory.limit_in_bytes",
            Hierarchy::V2(_) => "memory.max",
        }
    }

    /// Returns the limit of resident memory in bytes, if the kernel reports it.
    #[must_use]
    pub fn limit_bytes(&self) -> Option<u64> {
        self.number(self.limit_file())
    }

    /// Returns the resident anonymous memory of its members, in bytes.
    #[must_use]
    pub fn anonymous_bytes(&self) -> u64 {
        let field = match self.hierarchy {
            Hierarchy::V1(_) => "rss",
            Hierarchy::V2(_) => "anon",
        };
        self.stat(field).unwrap_or(0)
    }

    /// Returns the major faults of its members so far.
    #[must_use]
    pub fn major_faults(&self) -> u64 {
        self.stat("pgmajfault").unwrap_or(0)
    }

    fn stat(&self, field: &str) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let mut words = text.lines().filter_map(|line| line.split_once(' '));
        words.find(|(name, _)| *name == field)?.1.trim().parse().ok()
    }

    /// Returns the file to which a process writes its id to join.
    #[must_use]
    pub fn members_file(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Returns a command that starts `program` in the group. It is killed when the thread that
    /// starts it ends, because its memory has no keeper then.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        // Opened here: between fork and exec nothing may be allocated.
        let members = fs::OpenOptions::new().write(true).open(self.members_file());
        let anchor = self.anchor.clone();
        let join = move || {
            let members = members.as_ref().map_err(|error| error.kind())?;
            rustix::io::write(members, b"0")?;
            anchor.as_ref().map_or(Ok(()), |anchor| anchor.lay())
        };
        // SAFETY: between fork and exec the closure makes system calls: it neither allocates nor
        // locks.
        unsafe { command.pre_exec(join) };
        kill_with_starter(&mut command);
        command
    }

    /// Returns the version of the cgroup interface in use, `v1` or `v2`.
    #[must_use]
    pub fn version(&self) -> &'static str {
        self.hierarchy.version()
    }

    /// Returns the peak charge of the group in bytes, if the kernel reports it.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = match self.hierarchy {
            Hierarchy::V1(_) => "memory.max_usage_in_bytes",
            Hierarchy::V2(_) => "memory.peak",
        };
        self.number(file)
    }

    /// Returns how often the kernel killed a member because even swap was full, if it reports that.
    #[must_use]
    pub fn killed_for_memory(&self) -> u64 {
        let file = match self.hierarchy {
            Hierarchy::V1(_) => "memory.oom_control",
            Hierarchy::V2(_) => "memory.events",
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// True if its members have, at some time, used all their swap, if the kernel reports that.
    /// `written_bytes` have been written to it so far.
    #[must_use]
    pub fn has_outgrown_swap(&self, written_bytes: u64) -> bool {
        let was_full = |peak_file: &str, limit_file: &str| {
            let bytes = self.number(peak_file).zip(self.number(limit_file));
            bytes.is_some_and(|(peak, limit)| is_full(peak, limit))
        };
        match self.hierarchy {
            Hierarchy::V1(_) => {
                let read = |file| self.number(file).unwrap_or(0);
                let peak = read("memory.memsw.max_usage_in_bytes");
                let combined = read("memory.memsw.limit_in_bytes");
                has_filled_swap(peak, combined, read("memory.limit_in_bytes"), written_bytes)
            }
            Hierarchy::V2(_) => {
                let text = fs::read_to_string(self.folder.join("memory.swap.events"));
                let text = text.unwrap_or_default();
                let happened = |event: &str| {
                    let count = text.lines().find_map(|line| line.strip_prefix(event));
                    count.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0) > 0
                };
                // On a full device the kernel does not even try, and no event is counted.
                ["max ", "fail "].into_iter().any(happened)
                    || was_full("memory.swap.peak", "memory.swap.max")
            }
        }
    }

    /// Waits until nothing of the group is being written, at most for `patience`.
    pub fn wait_written(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.is_being_written() && Instant::now() < end {
            std::thread::sleep(SHRINK_PAUSE);
        }
    }

    /// The unified hierarchy has another name for it, and no need of it.
    fn is_being_written(&self) -> bool {
        let text = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let bytes = text.lines().find_map(|line| line.strip_prefix("writeback "));
        bytes.is_some_and(|bytes| bytes != "0")
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    /// True if any process is in it.
    #[must_use]
    pub fn has_members(&self) -> bool {
        !self.members().is_empty()
    }

    /// Returns the process ids of its members.
    #[must_use]
    pub fn member_ids(&self) -> Vec<u32> {
        self.members().iter().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()).collect()
    }

    fn remove(&self) -> Result<(), SwapError> {
        // Killed members need a moment to leave.
        for _ in 0..500 {
            self.kill_members();
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return Ok(()),
            }
        }
        Err(SwapError::GroupBusy { group: self.folder.clone() })
    }

    /// Kills all members: at once where the kernel can (`cgroup.kill`, Linux 5.14). Elsewhere a member
    /// may fork between the look and the kill: the list is read again until it has no new one.
    fn kill_members(&self) {
        let is_unified = matches!(self.hierarchy, Hierarchy::V2(_));
        if is_unified && fs::write(self.folder.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        let mut killed = HashSet::new();
        for _ in 0..MOST_LOOKS {
            let new: Vec<Pid> =
                self.members().into_iter().filter(|pid| killed.insert(*pid)).collect();
            if new.is_empty() {
                return;
            }
            for pid in new {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.members_file()).unwrap_or_default();
        text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
    }
}

fn prefix(name: &str) -> String {
    format!("venice-{name}-")
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("venice: {error}");
        }
    }
}

/// True if a swap device was full, by the peak and the limit of the combined charge, the limit of
/// memory, and what has been written to the device.
fn has_filled_swap(peak: u64, combined_limit: u64, limit: u64, written_bytes: u64) -> bool {
    let swap_bytes = combined_limit.saturating_sub(limit);
    // A page that is in memory and on the device is charged once: so are all that are being written.
    is_full(peak, combined_limit) || peak >= swap_bytes && is_full(written_bytes, swap_bytes)
}

/// True for nearly all: the first page of a device is not used for swapping.
fn is_full(bytes: u64, limit: u64) -> bool {
    bytes > limit - limit / NEARLY
}

#[cfg(test)]
mod tests {
    use super::*;
    const LEGACY: &str = "\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
";
    const UNIFIED: &str = "\
proc /proc proc rw 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0
";

    #[test]
    fn hybrid_system_uses_legacy_hierarchy() {
        let found = Hierarchy::parse(LEGACY, |_| false);
        assert_eq!(found, Some(Hierarchy::V1("/sys/fs/cgroup/memory".into())));
    }

    #[test]
    fn unified_system_is_found() {
        let found = Hierarchy::parse(UNIFIED, |mount| mount == Path::new("/sys/fs/cgroup"));
        assert_eq!(found, Some(Hierarchy::V2("/sys/fs/cgroup".into())));
    }

    #[test]
    fn similarly_named_controller_is_ignored() {
        let mounts = "cgroup /a cgroup rw,name=memory_like 0 0\n";
        assert_eq!(Hierarchy::parse(mounts, |_| false), None);
        assert_eq!(Hierarchy::parse(UNIFIED, |_| false), None);
        assert_eq!(Hierarchy::parse("broken line\n", |_| true), None);
    }

    #[test]
    fn pages_being_written_count_once() {
        // As the kernel of a busy machine reported it, with all but 31 pages of the device taken.
        let (peak, combined, limit) = (21084 << 10, 24 << 20, 8 << 20);
        assert!(has_filled_swap(peak, combined, limit, 4064 << 12));
        assert!(!has_filled_swap(peak, combined, limit, 13 << 20));
        assert!(has_filled_swap(24232 << 10, combined, limit, 0));
        assert!(!has_filled_swap(9 << 20, combined, limit, 32 << 20));
    }

    #[test]
    fn command_joins_cgroup() {
        let group = match MemoryCgroup::create("unit-test", 64 << 20, Some(64 << 20)) {
            Ok(group) => group,
            Err(error @ (SwapError::NotRoot | SwapError::Missing { .. })) => {
                return println!("SKIPPED: command_joins_cgroup: {error}");
            }
            Err(error) => panic!("{error:?}"),
        };
        let output =
            group.command(Path::new("/bin/cat")).arg("/proc/self/cgroup").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let name = format!("venice-unit-test-{}", std::process::id());
        assert!(text.contains(&name), "{text}");
        assert!(group.peak_bytes().is_none_or(|peak| peak > 0) && group.killed_for_memory() == 0);
        let folder = group.members_file().parent().unwrap().to_owned();
        drop(group);
        assert!(!folder.exists());
    }
}
