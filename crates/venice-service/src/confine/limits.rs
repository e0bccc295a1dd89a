//! Resource limits.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::host::own_descriptors;
use crate::spec::HostLimits;

/// Sets the resource limits of this process, which its children inherit. `has_memory_cgroup`: if no
/// control group bounds its memory, a limit of each process does.
pub(crate) fn set_limits(limits: &HostLimits, has_memory_cgroup: bool) -> std::io::Result<()> {
    limit(Resource::Core, 0)?;
    let open_files = limits.open_files.saturating_add(own_descriptors(limits));
    limit(Resource::Nofile, open_files.into())?;
    limit(Resource::Nproc, limits.processes.into())?;
    limit(Resource::Fsize, limits.scratch_bytes.max(limits.cache_bytes).max(1 << 20))?;
    limit(Resource::Msgqueue, 0)?;
    limit(Resource::Rtprio, 0)?;
    limit(Resource::Nice, 0)?;
    if !has_memory_cgroup {
        limit(Resource::Data, limits.memory_bytes)?;
    }
    Ok(())
}

/// Lowers a limit, never raises one.
fn limit(resource: Resource, most: u64) -> std::io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}
