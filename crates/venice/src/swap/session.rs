//! A run's swap device and memory cgroup, in the process of root's that has both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use venice_cli::terminal::remark;
use venice_recipient::runs::budget;
use venice_swap::cgroup::{Hierarchy, MemoryCgroup};
use venice_swap::{GroupAnchor, SwapError, UserProcess};
use venice_wire::ByteSize;

use super::attach::{attach, attach_until};
use super::plan::{Plan, process_name};
use super::server::RUN_GROUP;
use super::{Status, detach, status};
use crate::rack::RunDir;

/// File in the folder of a device: the path of the cgroup that ends with its session.
const GROUP_FILE: &str = "group";
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// Checks that this process can swap and limit programs.
///
/// # Errors
/// [`SwapError::NotRoot`], or without memory cgroups.
pub fn require_swap() -> Result<(), SwapError> {
    venice_swap::require_root()?;
    Hierarchy::find().map(drop).ok_or_else(SwapError::no_memory_cgroup)
}

/// A run's device and cgroup. Dropping it kills the processes in the cgroup, and detaches the device; if
/// that fails, the device detaches itself as soon as possible.
pub struct Session {
    dir: RunDir,
    /// Status of the device at the start.
    attached: Status,
    group: Option<MemoryCgroup>,
    _anchor: Option<GroupAnchor>,
    is_closed: bool,
}

/// The state of a run's cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupState {
    /// Limit of resident memory in bytes, if the kernel reports it.
    pub limit_bytes: Option<u64>,
    /// Peak charge in bytes, if the kernel reports it.
    pub peak_bytes: Option<u64>,
    /// Resident anonymous memory, in bytes.
    pub anonymous_bytes: u64,
    /// Major faults so far.
    pub major_faults: u64,
    /// Times that the kernel has killed a process for memory.
    pub killed_for_memory: u64,
    /// True if a process was killed, none is left, and the device was full.
    pub has_outgrown_swap: bool,
    /// Its processes.
    pub members: Vec<u32>,
}

impl Session {
    /// Attaches the device of `plan`. A signal during a wait in the queue ends this process.
    pub fn open_here(dir: RunDir, plan: &Plan) -> anyhow::Result<Session> {
        let attached = attach(&dir, plan)?;
        Ok(Session { dir, attached, group: None, _anchor: None, is_closed: false })
    }

    /// Attaches the device of `plan`, unless `is_over` becomes true meanwhile.
    pub fn open(dir: RunDir, plan: &Plan, is_over: &dyn Fn() -> bool) -> anyhow::Result<Session> {
        let attached = attach_until(&dir, plan, is_over)?;
        Ok(Session { dir, attached, group: None, _anchor: None, is_closed: false })
    }

    /// Returns the status of the device at its start.
    pub fn attached(&self) -> &Status {
        &self.attached
    }

    /// Makes the cgroup, for programs that this process starts.
    pub fn limit_to(&mut self, local_bytes: u64) -> anyhow::Result<()> {
        let swap_bytes = Some(self.attached.size_bytes);
        let mut group = MemoryCgroup::create(RUN_GROUP, local_bytes, swap_bytes)?;
        group.anchor_on(&self.attached.device)?;
        self.group = Some(group);
        Ok(())
    }

    /// Makes the cgroup for a user's process, and moves the process into it. Once.
    pub fn admit(&mut self, process: &UserProcess, local_bytes: u64) -> anyhow::Result<()> {
        anyhow::ensure!(self.group.is_none(), "a session is for one program");
        let swap_bytes = self.attached.size_bytes;
        let group = MemoryCgroup::create_for(process, RUN_GROUP, local_bytes, swap_bytes)?;
        // The server reads it if this process is killed.
        let path = self.folder().join(GROUP_FILE);
        let written = fs::write(&path, group.folder().as_os_str().as_encoded_bytes());
        written.with_context(|| format!("writing {}", path.display()))?;
        self._anchor = Some(GroupAnchor::lay(group.folder(), &self.attached.device)?);
        self.group = Some(group);
        Ok(())
    }

    /// Returns a command that starts `program` in the cgroup.
    pub fn command(&self, program: &Path) -> anyhow::Result<Command> {
        Ok(self.group.as_ref().context(NO_PROGRAM)?.command(program))
    }

    /// Returns the status of the device.
    pub fn device(&self) -> Status {
        status(&self.dir, &self.attached.name).unwrap_or_else(|| self.attached.clone())
    }

    /// Returns the state of the cgroup.
    pub fn group(&self) -> GroupState {
        let Some(group) = &self.group else { return GroupState::default() };
        let killed_for_memory = group.killed_for_memory();
        let members = group.member_ids();
        let has_outgrown_swap = killed_for_memory > 0 && members.is_empty() && {
            // What the device has got in all tells whether it was full.
            group.wait_written(WRITE_PATIENCE);
            group.has_outgrown_swap(self.device().written_bytes)
        };
        GroupState {
            limit_bytes: group.limit_bytes(),
            peak_bytes: group.peak_bytes(),
            anonymous_bytes: group.anonymous_bytes(),
            major_faults: group.major_faults(),
            killed_for_memory,
            has_outgrown_swap,
            members,
        }
    }

    /// Changes the limit. Checks far memory first: the kernel kills a program whose pages have nowhere
    /// to go.
    ///
    /// # Errors
    /// The reason of a refusal, for users.
    pub fn limit(&self, local_bytes: u64) -> Result<(), String> {
        budget::check(local_bytes).map_err(|error| error.to_string())??;
        let group = self.group.as_ref().ok_or(NO_PROGRAM)?;
        let device = self.device();
        let excess = group.anonymous_bytes().saturating_sub(local_bytes);
        let free = device.size_bytes.saturating_sub(device.used_bytes);
        if excess > free {
            return Err(format!(
                "{} would have to be evicted, and of its swap device {} is free: use a larger --local, \
                 or run it with a larger --remote",
                ByteSize(excess),
                ByteSize(free)
            ));
        }
        let changed = group.change_limit(local_bytes, Some(self.attached.size_bytes));
        changed.map_err(|error| format!("{:#}", anyhow::Error::from(error)))
    }

    /// Kills the processes in the cgroup, removes it, and detaches the device.
    pub fn close(&mut self) -> anyhow::Result<()> {
        self.is_closed = true;
        drop(self.group.take());
        detach(&self.dir, &self.attached.name).map(drop)
    }

    fn folder(&self) -> PathBuf {
        self.dir.process_dir(&process_name(&self.attached.name))
    }
}

const NO_PROGRAM: &str = "it has no program yet";

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_closed
            && let Err(error) = self.close()
        {
            remark(later(&error));
        }
    }
}

/// Reports a device that was not detached at the end of its run.
pub fn later(why: impl std::fmt::Display) -> String {
    format!("venice: {why:#}; it detaches as soon as it can")
}

/// Removes the cgroup of a session that was killed, by the folder of its device.
pub fn clear_group(folder: &Path) {
    if let Ok(path) = fs::read_to_string(folder.join(GROUP_FILE)) {
        MemoryCgroup::clear(Path::new(&path));
    }
}
