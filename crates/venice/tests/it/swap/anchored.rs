//! `venice swap anchor`: a page in a user's own cgroup.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use venice_swap::cgroup::Hierarchy;

use crate::common::{Place, wait_until};
use crate::swap::programs::Donors;

/// A memory cgroup outside of Venice.
struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Group {
        let name = format!("vt-{name}-{}", std::process::id());
        let hierarchy = Hierarchy::find().unwrap();
        if let Hierarchy::V2(mount) = &hierarchy {
            fs::write(mount.join("cgroup.subtree_control"), "+memory").unwrap();
        }
        let folder = hierarchy.mount().join(name);
        fs::create_dir(&folder).unwrap();
        Group(folder)
    }

    /// Bytes of file pages that stay when the kernel reclaims all it can.
    fn kept_bytes(&self) -> u64 {
        // Reclaim gives up at a page that does not leave.
        for (file, what) in [("memory.force_empty", "0"), ("memory.reclaim", "8M")] {
            let _ = fs::write(self.0.join(file), what);
        }
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        // Pages on its LRU lists, known to a device or not; the kernel updates this every two
        // seconds.
        let files = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            ["active_file", "inactive_file"].contains(&name).then(|| bytes.parse::<u64>().unwrap())
        };
        stat.lines().filter_map(files).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Starts `venice swap anchor` and waits until it has the page.
fn anchored(place: &Place, group: &str) -> Child {
    let mut command = place.command(&["swap", "anchor", group]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // Not buffered beyond the line: the rest is read at the end.
    let mut out = BufReader::with_capacity(1, child.stdout.as_mut().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(line.contains("keeps a page"), "{line}{:?}", child.wait_with_output());
    child
}

/// A user's cgroups keep a page until it is released or they are removed.
pub fn groups_keep_a_page() {
    let place = Donors::start(1, "32MiB");
    let (one, other) = (Group::make("one"), Group::make("other"));
    let path = |group: &Group| group.0.to_str().unwrap().to_owned();
    let early = place.venice(&["swap", "anchor", &path(&one)]).expect(1);
    assert!(early.complaint().contains("no swap device is attached"), "{early:?}");
    place.venice(&["swap", "attach", "16MiB", "--port", "shm", "--copies", "1"]).expect(0);

    let mount = Hierarchy::find().unwrap().mount().to_owned();
    for (nonsense, why) in [
        ("no/such/group", "there is no cgroup no/such/group"),
        ("/tmp", "not a memory cgroup"),
        (mount.to_str().unwrap(), "not a memory cgroup"),
    ] {
        let refused = place.venice(&["swap", "anchor", nonsense]).expect(1);
        assert!(refused.complaint().contains(why), "{refused:?}");
    }

    assert_eq!((one.kept_bytes(), other.kept_bytes()), (0, 0));
    let both_keep_a_page = || {
        wait_until("both pages", || (one.kept_bytes(), other.kept_bytes()) == (4096, 4096));
    };
    let first = anchored(&place, &path(&one));
    // By its name, on the same device.
    let second = anchored(&place, one_name(&other.0));
    both_keep_a_page();
    assert_eq!(fs::read_to_string(one.0.join("cgroup.procs")).unwrap(), "");
    // It does not block detaching the device.
    place.venice(&["swap", "detach", "swap0"]).expect(0);
    both_keep_a_page();

    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    let ended = first.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr), (Some(0), Vec::new()));
    wait_until("the page to go", || one.kept_bytes() == 0);
    fs::remove_dir(&other.0).unwrap();
    let ended = second.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stdout).contains("was removed"), "{ended:?}");
    assert_eq!(ended.status.code(), Some(0));
}

fn one_name(folder: &Path) -> &str {
    folder.file_name().unwrap().to_str().unwrap()
}
