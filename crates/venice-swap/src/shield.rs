//! What keeps the server from waiting for the memory that the kernel frees through it.
//!
//! The kernel writes pages out to get free memory, and waits for this process to take them. If this
//! process then had to wait for free memory, both would wait for ever. So
//! - all its memory is resident and locked, that of threads to come too: no page fault, no swapping
//!   of the swapper ([`Shield::raise`]);
//! - its queues allocate nothing once they serve, and what the kernel allocates on their behalf
//!   never starts I/O ([`IoFlusher`]: `PR_SET_IO_FLUSHER` of prctl(2));
//! - where it cannot do without some, as one that answers over a socket, it may have of what the kernel
//!   keeps for threads in real time ([`reach_the_reserve`]);
//! - it is charged to a memory cgroup without a limit, and the out-of-memory killer passes it by.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, setrlimit};

use crate::cgroup::Hierarchy;
use crate::{SwapError, require_root, sys};

/// The cgroup of all swap servers of a machine.
const GROUP: &str = "venice-swap";
/// How long a server that was killed may take to leave it.
const DYING_PATIENCE: Duration = Duration::from_secs(1);
const DYING_POLL: Duration = Duration::from_millis(10);
/// The least a process can have: it is never chosen.
const NEVER_KILLED: &str = "-1000";

/// Protection of this process; it lasts as long as the process.
#[derive(Debug)]
pub struct Shield {
    group: Option<PathBuf>,
    gaps: Vec<&'static str>,
}

impl Shield {
    /// Locks all memory, leaves any limited cgroup, tells the out-of-memory killer, and looks
    /// whether threads may be flagged.
    ///
    /// # Errors
    /// Without root, or when memory cannot be locked or a limit not be left: a server that is
    /// swapped out itself is not started. What needs CAP_SYS_RESOURCE, which containers often lack
    /// and which is not needed while memory cgroups keep the machine from running out as a whole,
    /// is among the [`Shield::gaps`] where it is refused, as is what needs CAP_SYS_NICE.
    pub fn raise() -> Result<Self, SwapError> {
        require_root()?;
        let group = leave_limits()?;
        // Root needs no limit raised, but a container may have taken that right away.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
            .map_err(SwapError::at("locking the memory of the swap server"))?;
        let mut gaps = Vec::new();
        if fs::write("/proc/self/oom_score_adj", NEVER_KILLED).is_err() {
            gaps.push(
                "the out-of-memory killer may choose its server (oom_score_adj: CAP_SYS_RESOURCE)",
            );
        }
        if !IoFlusher::begin()?.is_flagged {
            gaps.push(
                "the kernel may start I/O for its server's own memory (PR_SET_IO_FLUSHER: \
                 CAP_SYS_RESOURCE)",
            );
        }
        if !may_reach_the_reserve() {
            gaps.push(
                "by nbd its server may wait for memory that others wait for it to free (SCHED_RR: \
                 CAP_SYS_NICE)",
            );
        }
        Ok(Self { group, gaps })
    }

    /// What was refused for want of a capability, in words.
    #[must_use]
    pub fn gaps(&self) -> &[&'static str] {
        &self.gaps
    }

    /// The cgroup of the server, if there are any.
    #[must_use]
    pub fn group(&self) -> Option<&Path> {
        self.group.as_deref()
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        let Some(group) = &self.group else { return };
        if let Some(above) = group.parent() {
            let _ = fs::write(above.join("cgroup.procs"), "0");
        }
        // Fails while another server is in it.
        let _ = fs::remove_dir(group);
    }
}

/// Takes the cgroup of the swap servers away, unless one is in it other than `dead_pid`, which was
/// killed and had no time for it.
pub(crate) fn remove_group_after(dead_pid: u32) {
    let Some(group) = Hierarchy::find().map(|it| it.mount().join(GROUP)) else { return };
    let deadline = Instant::now() + DYING_PATIENCE;
    // The kernel refuses while anybody is in it, if only on the way out.
    while fs::remove_dir(&group).is_err() && !has_others(&group, dead_pid) {
        if !group.exists() || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(DYING_POLL);
    }
}

fn has_others(group: &Path, pid: u32) -> bool {
    let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    members.lines().any(|member| member != pid.to_string())
}

/// Joins a memory cgroup without a limit, so that whoever's limit this process was started under
/// does not hold it back.
fn leave_limits() -> Result<Option<PathBuf>, SwapError> {
    let Some(Hierarchy::V1(mount) | Hierarchy::V2(mount)) = Hierarchy::find() else {
        return Ok(None);
    };
    let group = mount.join(GROUP);
    match fs::create_dir(&group) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(SwapError::file("make", group)(error));
        }
        _ => {}
    }
    let members = group.join("cgroup.procs");
    fs::write(&members, "0").map_err(SwapError::file("join", members))?;
    Ok(Some(group))
}

/// The thread may have of the last memory that others are refused: the kernel keeps half of its reserve
/// (`vm.min_free_kbytes`) for threads in real time. It goes before all others then, so it has to sleep
/// whenever it waits. `false`: it may not, which is among the [`Shield::gaps`].
pub(crate) fn reach_the_reserve() -> bool {
    sys::schedule_in_real_time().is_ok()
}

/// Whether this process's threads may, tried by one that ends.
fn may_reach_the_reserve() -> bool {
    let tried = std::thread::Builder::new().spawn(reach_the_reserve);
    tried.is_ok_and(|thread| thread.join().is_ok_and(|may| may))
}

/// While it lives, memory the kernel allocates for this thread, and for threads it starts
/// meanwhile (for as long as they run), is found without I/O.
#[derive(Debug)]
pub struct IoFlusher {
    is_flagged: bool,
}

impl IoFlusher {
    /// Without CAP_SYS_RESOURCE it does nothing: see [`Shield::gaps`].
    ///
    /// # Errors
    /// On a kernel before 5.6.
    pub fn begin() -> Result<Self, SwapError> {
        match configure_io_flusher_behavior(true) {
            Ok(()) => Ok(Self { is_flagged: true }),
            Err(Errno::PERM) => Ok(Self { is_flagged: false }),
            Err(source) => {
                let step = "flagging the swap server's threads (PR_SET_IO_FLUSHER)";
                Err(SwapError::System { step, source })
            }
        }
    }
}

impl Drop for IoFlusher {
    fn drop(&mut self) {
        if self.is_flagged {
            let _ = configure_io_flusher_behavior(false);
        }
    }
}
