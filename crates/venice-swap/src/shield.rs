//! Protection of the server from waiting for the memory that the kernel frees through it.
//!
//! The kernel writes pages out to get free memory, and waits for this process to take them. If this
//! process then had to wait for free memory, both would wait for ever. Therefore:
//! - all its memory is resident and locked, that of later threads too: no page fault, no swapping
//!   of the swapper ([`Shield::raise`]);
//! - its queues allocate nothing while they serve, and allocations of the kernel on their behalf
//!   never start I/O ([`IoFlusher`]: `PR_SET_IO_FLUSHER` of prctl(2));
//! - a queue that needs some memory, because it answers over a socket, may use the kernel's reserve
//!   for real-time threads ([`reach_the_reserve`]);
//! - the server is charged to a memory cgroup without a limit, and the out-of-memory killer spares
//!   it.

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
/// The time a killed server may take to leave the group.
const DYING_PATIENCE: Duration = Duration::from_secs(1);
const DYING_POLL: Duration = Duration::from_millis(10);
/// The lowest score: the process is never chosen.
const NEVER_KILLED: &str = "-1000";

/// Protection of this process; it lasts as long as the process.
#[derive(Debug)]
pub struct Shield {
    group: Option<PathBuf>,
    gaps: Vec<&'static str>,
}

impl Shield {
    /// Locks all memory, leaves any limited cgroup, excludes the process from the out-of-memory
    /// killer, and checks whether threads may be flagged.
    ///
    /// # Errors
    /// Without root, or if memory cannot be locked or a limit cannot be left: a server that can
    /// itself be swapped out is not started. Steps that need CAP_SYS_RESOURCE or CAP_SYS_NICE are
    /// listed in [`Shield::gaps`] if they are refused. Containers often lack CAP_SYS_RESOURCE,
    /// which is not needed while memory cgroups keep the machine from running out as a whole.
    pub fn raise() -> Result<Self, SwapError> {
        require_root()?;
        let group = leave_limits()?;
        // Root needs no higher limit, but a container may lack that right.
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

    /// Returns the steps refused for lack of a capability, in words.
    #[must_use]
    pub fn gaps(&self) -> &[&'static str] {
        &self.gaps
    }

    /// Returns the cgroup of the server, if there is one.
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

/// Removes the cgroup of the swap servers, unless it contains another one than `dead_pid`, which
/// was killed and could not remove it.
pub(crate) fn remove_group_after(dead_pid: u32) {
    let Some(group) = Hierarchy::find().map(|it| it.mount().join(GROUP)) else { return };
    let deadline = Instant::now() + DYING_PATIENCE;
    // The kernel refuses while any process is in it, even an exiting one.
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

/// Joins a memory cgroup without a limit, so that the limit under which this process was started
/// does not apply.
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

/// Lets the thread use the kernel's last memory: half of the reserve (`vm.min_free_kbytes`) is for
/// real-time threads. The thread then has precedence over all others, so it must sleep whenever it
/// waits. Returns false if that is refused, which is among the [`Shield::gaps`].
pub(crate) fn reach_the_reserve() -> bool {
    sys::schedule_in_real_time().is_ok()
}

/// True if this process's threads may use the reserve; tested by a thread that ends.
fn may_reach_the_reserve() -> bool {
    let tried = std::thread::Builder::new().spawn(reach_the_reserve);
    tried.is_ok_and(|thread| thread.join().is_ok_and(|may| may))
}

/// While it lives, memory that the kernel allocates for this thread, and for threads it starts
/// meanwhile (for their whole life), is found without I/O.
#[derive(Debug)]
pub struct IoFlusher {
    is_flagged: bool,
}

impl IoFlusher {
    /// Sets the flag. Does nothing without CAP_SYS_RESOURCE: see [`Shield::gaps`].
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
