//! Control groups of hosts, of both versions: the supervisor makes and removes them, a host's init
//! joins them.
//!
//! All groups of one supervisor are below one group in each hierarchy, named by the supervisor's
//! directory. What a killed supervisor left there is found by that name and removed at the next
//! start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::confinement::Measure;
use crate::spec::HostLimits;

/// Period of the processor time limit, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// Depth of groups to which those of a dead supervisor are looked for.
const MOST_DEPTH: u32 = 8;

/// Version of a hierarchy of control groups (cgroups(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A hierarchy in which hosts get groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// Group of all hosts of this supervisor.
    base: PathBuf,
    measures: Vec<Measure>,
}

/// The hierarchies for the hosts of one supervisor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hierarchies {
    found: Vec<Hierarchy>,
    missing: Vec<(Measure, String)>,
}

/// The groups of one host.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostGroups {
    groups: Vec<(Version, PathBuf)>,
    /// `cgroup.procs` of each, with the measures it carries.
    pub procs: Vec<(PathBuf, Vec<Measure>)>,
    /// Measures that cannot be taken, and why.
    pub missing: Vec<(Measure, String)>,
}

const CONTROLLERS: [(&str, Measure); 3] =
    [("memory", Measure::MemoryCgroup), ("cpu", Measure::CpuCgroup), ("pids", Measure::PidsCgroup)];

impl Hierarchies {
    /// Finds the hierarchies in which this process may make groups, and makes the supervisor's own,
    /// called `name`.
    pub(crate) fn find(name: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (mounts, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
        let mut all = Self::default();
        for (controller, measure) in CONTROLLERS {
            match find_controller(&mounts, &own, controller, name) {
                Ok((version, base)) => all.add(version, base, measure),
                Err(why) => all.missing.push((measure, why)),
            }
        }
        all
    }

    fn add(&mut self, version: Version, base: PathBuf, measure: Measure) {
        match self.found.iter_mut().find(|known| known.base == base) {
            Some(known) => known.measures.push(measure),
            None => self.found.push(Hierarchy { version, base, measures: vec![measure] }),
        }
    }

    /// Makes the groups of one host. A group that cannot be made is missing, not an error.
    pub(crate) fn make(&self, host: &str, limits: &HostLimits) -> HostGroups {
        let mut groups = HostGroups { missing: self.missing.clone(), ..HostGroups::default() };
        for hierarchy in &self.found {
            let group = hierarchy.base.join(host);
            let made = make_dir(&group)
                .and_then(|()| set_limits(hierarchy.version, &group, &hierarchy.measures, limits));
            groups.groups.push((hierarchy.version, group.clone()));
            match made {
                Ok(()) => {
                    groups.procs.push((group.join("cgroup.procs"), hierarchy.measures.clone()));
                }
                Err(error) => {
                    let why = format!("{}: {error}", group.display());
                    groups.missing.extend(hierarchy.measures.iter().map(|m| (*m, why.clone())));
                }
            }
        }
        groups
    }

    /// Finds the groups of a dead supervisor, called `name`, wherever they are: it may have been in
    /// other groups than this process.
    pub(crate) fn find_left(name: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut all = Self::default();
        for (version, mount) in mount_points(&mounts) {
            find_groups(&mount, name, MOST_DEPTH, &mut |base| {
                let hierarchy = Hierarchy { version, base, measures: Vec::new() };
                if !all.found.contains(&hierarchy) {
                    all.found.push(hierarchy);
                }
            });
        }
        all
    }

    /// Ends every process in groups of hosts and removes the groups; returns how many there were,
    /// and how many remain.
    pub(crate) fn sweep(&self) -> (usize, usize) {
        let (mut found, mut left) = (0, 0);
        for hierarchy in &self.found {
            for entry in fs::read_dir(&hierarchy.base).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                found += 1;
                let groups = vec![(hierarchy.version, entry.path())];
                let group = HostGroups { groups, ..HostGroups::default() };
                group.kill();
                left += usize::from(!remove_patiently(&group));
            }
        }
        (found, left)
    }

    /// Removes the supervisor's own groups.
    pub(crate) fn remove(&self) {
        for hierarchy in &self.found {
            // A group in use stays, and is found at the next start.
            let _ = fs::remove_dir(&hierarchy.base);
        }
    }
}

/// Removes the groups, whose processes were killed just now; false if some process is still there
/// after a second.
fn remove_patiently(group: &HostGroups) -> bool {
    (0..50).any(|_| {
        group.remove() || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            false
        }
    })
}

impl HostGroups {
    /// Kills every process in the groups.
    pub(crate) fn kill(&self) {
        for (version, group) in &self.groups {
            match version {
                // Since Linux 5.14.
                Version::V2 if fs::write(group.join("cgroup.kill"), "1").is_ok() => {}
                Version::V1 | Version::V2 => kill_each(group),
            }
        }
    }

    /// Removes the groups; true once none is left. A group is removed only when no process is in it.
    pub(crate) fn remove(&self) -> bool {
        self.groups.iter().fold(true, |all, (_, group)| {
            let gone = match fs::remove_dir(group) {
                Ok(()) => true,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            all && gone
        })
    }

    /// Returns how many processes of the host were killed because it outgrew its memory.
    pub(crate) fn memory_kills(&self) -> u64 {
        let of_group = |(version, group): &(Version, PathBuf)| {
            let file = match version {
                Version::V1 => "memory.oom_control",
                Version::V2 => "memory.events",
            };
            let text = fs::read_to_string(group.join(file)).unwrap_or_default();
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        };
        self.groups.iter().filter_map(of_group).max().unwrap_or(0)
    }
}

/// Finds the groups called `name` below a group, down to a depth.
fn find_groups(group: &Path, name: &str, depth: u32, found: &mut impl FnMut(PathBuf)) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match entry.file_name() == name {
            true => found(entry.path()),
            false if depth > 0 => find_groups(&entry.path(), name, depth - 1, found),
            false => {}
        }
    }
}

/// Returns the places at which hierarchies of groups are mounted.
fn mount_points(mounts: &str) -> Vec<(Version, PathBuf)> {
    let point = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let version = match after.split(' ').next()? {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        Some((version, PathBuf::from(before.split(' ').nth(4)?)))
    };
    mounts.lines().filter_map(point).collect()
}

fn processes(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Kills every process of a group until none is left, for a bounded number of rounds: a process can
/// fork while the list is read.
fn kill_each(group: &Path) {
    for _ in 0..16 {
        let ids = processes(group);
        if ids.is_empty() {
            return;
        }
        for id in ids.into_iter().filter_map(Pid::from_raw) {
            let Ok(pidfd) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            // The number may have changed hands between list and descriptor.
            if processes(group).contains(&id.as_raw_nonzero().get()) {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn set_limits(
    version: Version,
    group: &Path,
    measures: &[Measure],
    limits: &HostLimits,
) -> io::Result<()> {
    let quota_us = u64::from(limits.cpu_percent.max(1)) * CPU_PERIOD_US / 100;
    // Init is one more process than the host is allowed.
    let processes = limits.processes.saturating_add(1).to_string();
    let memory = limits.memory_bytes.to_string();
    let set = |file: &str, text: &str| {
        fs::write(group.join(file), text)
            .map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))
    };
    for measure in measures {
        match (version, measure) {
            (Version::V1, Measure::MemoryCgroup) => {
                set("memory.limit_in_bytes", &memory)?;
                // Absent without swap accounting.
                let _ = set("memory.memsw.limit_in_bytes", &memory);
            }
            (Version::V2, Measure::MemoryCgroup) => {
                set("memory.max", &memory)?;
                let _ = set("memory.swap.max", "0");
                let _ = set("memory.oom.group", "1");
            }
            (Version::V1, Measure::CpuCgroup) => {
                set("cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
                set("cpu.cfs_quota_us", &quota_us.to_string())?;
            }
            (Version::V2, Measure::CpuCgroup) => {
                set("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"))?;
            }
            (_, Measure::PidsCgroup) => set("pids.max", &processes)?,
            _ => {}
        }
    }
    Ok(())
}

/// Finds the hierarchy of a controller and makes the supervisor's group in it.
fn find_controller(
    mounts: &str,
    own: &str,
    controller: &str,
    name: &str,
) -> Result<(Version, PathBuf), String> {
    if let Some(group) = own_group(mounts, own, Some(controller)) {
        let base = group.join(name);
        return match make_dir(&base) {
            Ok(()) => Ok((Version::V1, base)),
            Err(error) => Err(format!("{}: {error}", base.display())),
        };
    }
    let group = own_group(mounts, own, None).ok_or("no hierarchy of control groups")?;
    // A group with processes passes no controller on: then the parent's, which is the usual place
    // of a service under a unit with Delegate=yes.
    let parent = group.parent().map(Path::to_path_buf);
    let mut reasons = Vec::new();
    for place in [Some(group), parent].into_iter().flatten() {
        match pass_controller_on(&place, controller, name) {
            Ok(base) => return Ok((Version::V2, base)),
            Err(error) => reasons.push(format!("{}: {error}", place.display())),
        }
    }
    Err(reasons.join("; "))
}

fn pass_controller_on(place: &Path, controller: &str, name: &str) -> io::Result<PathBuf> {
    let offered = fs::read_to_string(place.join("cgroup.controllers"))?;
    if !offered.split_whitespace().any(|offer| offer == controller) {
        return Err(io::Error::other(format!("no controller {controller}")));
    }
    let base = place.join(name);
    fs::write(place.join("cgroup.subtree_control"), format!("+{controller}"))?;
    make_dir(&base)?;
    fs::write(base.join("cgroup.subtree_control"), format!("+{controller}"))?;
    Ok(base)
}

/// Returns the directory of this process's group: of a controller of version 1, or of version 2.
fn own_group(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match controller {
            Some(controller) => controllers.split(',').any(|one| one == controller),
            None => controllers.is_empty(),
        };
        is_it.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = after.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1)?);
        let is_it = match controller {
            Some(controller) => {
                kind == "cgroup" && options.split(',').any(|option| option == controller)
            }
            None => kind == "cgroup2",
        };
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        is_it.then(|| Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 20 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:22 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
27 25 0:23 /box /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
28 25 0:24 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const OWN: &str = "4:memory:/box/job\n1:cpu,cpuacct:/\n0::/user.slice/agent\n";

    #[test]
    fn finds_own_groups() {
        let group = |controller| own_group(MOUNTS, OWN, controller);
        assert_eq!(group(Some("memory")), Some("/sys/fs/cgroup/memory/job".into()));
        assert_eq!(group(Some("cpu")), Some("/sys/fs/cgroup/cpu".into()));
        assert_eq!(group(Some("pids")), None);
        assert_eq!(group(None), Some("/sys/fs/cgroup/unified/user.slice/agent".into()));
        assert_eq!(own_group("nonsense", "more\n::", Some("cpu")), None);
    }

    /// A directory that looks like a group of version 2, as far as files go.
    fn unified(controllers: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
        dir
    }

    #[test]
    fn unified_groups_get_limits() {
        let dir = unified("cpu memory pids");
        let own = "0::/\n";
        let mounts = format!("28 25 0:24 / {} rw - cgroup2 cgroup2 rw\n", dir.path().display());
        let mut all = Hierarchies::default();
        for (controller, measure) in CONTROLLERS {
            let (version, base) = find_controller(&mounts, own, controller, "hosts").unwrap();
            all.add(version, base, measure);
        }
        assert_eq!(all.found.len(), 1);
        let limits = HostLimits { memory_bytes: 4096, cpu_percent: 50, ..HostLimits::default() };
        let groups = all.make("7", &limits);
        assert_eq!(groups.missing, []);
        let read = |file: &str| fs::read_to_string(dir.path().join("hosts/7").join(file)).unwrap();
        assert_eq!((read("memory.max"), read("cpu.max")), ("4096".into(), "50000 100000".into()));
        assert_eq!(read("pids.max"), "65");
        assert_eq!(read("memory.swap.max"), "0");
    }

    #[test]
    fn absent_controller_is_named() {
        let dir = unified("cpu");
        let mounts = format!("28 25 0:24 / {} rw - cgroup2 cgroup2 rw\n", dir.path().display());
        let why = find_controller(&mounts, "0::/\n", "memory", "hosts").unwrap_err();
        assert!(why.contains("no controller memory"), "{why}");
    }
}
