//! CPU scheduling shares of a rack's daemons.

use std::path::{Path, PathBuf};

use super::Finding;

const WHAT: &str = "processor shares";
const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";
const CGROUPS: &str = "/sys/fs/cgroup";

/// Rows about processors.
pub fn examine() -> Vec<Finding> {
    let is_on = std::fs::read_to_string(AUTOGROUP).is_ok_and(|text| text.trim() == "1");
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let has_weight = |path: &Path| Path::new(CGROUPS).join(path).join("cpu.weight").exists();
    vec![shares(is_on, has_share_of_its_own(&cgroups, has_weight))]
}

/// Checks for autogroup scheduling. Linux 6.18 has let a donor's threads wait over ten seconds
/// behind a busy program of another session, with both on one processor. A process in a cgroup with
/// its own CPU weight is exempt from sharing by session (sched(7), "The autogroup feature").
fn shares(by_session: bool, in_cgroup: bool) -> Finding {
    match (by_session, in_cgroup) {
        (false, _) => Finding::ok(WHAT, "not by session"),
        (true, true) => Finding::ok(WHAT, "by cgroup"),
        (true, false) => Finding::warn(
            WHAT,
            "by session: daemons started from here may wait for seconds behind a busy program, \
             and be suspected dead",
            "`sysctl kernel.sched_autogroup_enabled=0`, or run the daemons as systemd services",
        ),
    }
}

/// True if `/proc/self/cgroup` names a cgroup below the root with its own CPU share.
fn has_share_of_its_own(cgroups: &str, has_weight: impl Fn(&Path) -> bool) -> bool {
    cgroups.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        let below_root = PathBuf::from(path.trim_start_matches('/'));
        if controllers.is_empty() {
            // Version 2: the nearest ancestor that has the controller.
            let named = below_root.ancestors().filter(|path| !path.as_os_str().is_empty());
            return named.into_iter().any(&has_weight);
        }
        controllers.split(',').any(|name| name == "cpu") && !below_root.as_os_str().is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn cgroup_weight_exempts_from_autogroup() {
        let slice = |path: &Path| path == Path::new("user.slice");
        let nowhere = |_: &Path| false;
        assert!(has_share_of_its_own("0::/user.slice/session.scope\n", slice));
        assert!(!has_share_of_its_own("0::/user.slice/session.scope\n", nowhere));
        assert!(!has_share_of_its_own("0::/\n", |_| true), "the root has no share");
        assert!(has_share_of_its_own("4:cpu,cpuacct:/docker/7\n3:memory:/\n", nowhere));
        assert!(!has_share_of_its_own("4:cpu,cpuacct:/\n3:memory:/a\n1:cpuset:/a\n", nowhere));
        assert!(!has_share_of_its_own("", nowhere));
        assert_eq!(shares(true, false).state, State::Warn);
        assert_eq!(shares(true, true).state, State::Ok);
        assert_eq!(shares(false, false).state, State::Ok);
    }
}
