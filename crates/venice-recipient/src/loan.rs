//! Borrowing: a request to the Monitor Node, and its grants.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use venice_control::client::{Access, AgentClient, MonitorClient};
use venice_control::{
    AllocationPlan, ControlError, Grant, NodeRow, RackError, ResourceKind, to_label,
};
use venice_fabric::LinkModel;
use venice_memory::paged::coding::Coding;
use venice_memory::paged::run_block::{PortKind, RunBlockMap};
use venice_ports::random_u64;
use venice_ports::shm::{ShmConnection, fetch_slabs};
use venice_rack::borrower::{Releasing, ReleasingOutput};
use venice_wire::{PortId, SLAB_BYTES};

use crate::error::RecipientError;
use crate::spec::{AllocationSpec, MemorySpec, without_wait};
use crate::waiting::{Told, ignore_wait};

/// The default number of copies of each slab, if the rack has room.
pub const COPIES_BY_DEFAULT: u32 = 2;
/// Most copies of a slab.
pub const MOST_COPIES: u32 = venice_memory::paged::run_block::MAX_COPIES as u32;
/// Time limit of a donor's answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Time limit of a release.
pub(crate) const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// Granted resources, to be kept ([`Leases`](crate::Leases), [`Held`](crate::Held)). Dropping it
/// releases those that nothing keeps, and blocks meanwhile.
#[derive(Debug)]
pub struct Loan {
    /// The rack they came from.
    pub access: Access,
    /// The requested allocation.
    pub spec: AllocationSpec,
    /// The grants of memory.
    pub memory: Vec<Grant>,
    /// The grants of devices.
    pub devices: Vec<Grant>,
    /// With the shm port: the connection to the donor of each grant of memory.
    pub connections: Vec<ShmConnection>,
    /// A time before the first request was sent: the leases began later.
    pub asked: Instant,
    /// Copies of each slab, or of each of its fragments.
    pub copies: u32,
    /// Set if there was no room for two copies, and the caller had not asked for one: the loss of a
    /// donor then loses its data.
    pub shortage: Option<Shortage>,
}

/// Lack of room for two copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shortage {
    /// The nodes that lend memory and cannot be asked for it, each with the reason.
    pub unusable: Vec<String>,
}

/// Allocates what is specified: all of it or none. `told` receives reports on a wait in the queue.
///
/// # Errors
/// [`RecipientError`]: the rack's refusal; [`RecipientError::WaitCancelled`] if `told` cancels the
/// wait.
pub fn allocate(
    access: &Access,
    spec: &AllocationSpec,
    told: &mut Told<'_>,
) -> Result<Loan, RecipientError> {
    let asked = Instant::now();
    let has_choice = |memory: &MemorySpec| memory.coding.is_none() && memory.copies.is_none();
    let has_choice = spec.memory.as_ref().is_some_and(has_choice);
    let (grants, copies, shortage) = runtime()?.block_on(async {
        let mut client = MonitorClient::connect(access).await?;
        let (grants, copies) = match spec.memory.as_ref().map(|memory| (memory, memory.coding)) {
            None => Ok((ask_first(&mut client, spec, None, told).await?, 0)),
            Some((memory, None)) => ask_for_copies(&mut client, spec, memory, told).await,
            Some((memory, Some(coding))) => {
                ask_for_fragments(&mut client, spec, memory, coding, told).await
            }
        }?;
        let shortage = match has_choice && copies < COPIES_BY_DEFAULT {
            // What is granted is not given up because nobody says why it is so little.
            true => Some(shortage(&mut client, spec).await.unwrap_or_default()),
            false => None,
        };
        Ok::<_, RecipientError>((grants, copies, shortage))
    })?;
    let (devices, memory) = grants.into_iter().partition(|it| it.share.device().is_some());
    let (access, spec, connections) = (access.clone(), spec.clone(), Vec::new());
    Ok(Loan { access, spec, memory, devices, connections, asked, copies, shortage })
}

/// Allocates what is specified, and connects to its memory. On an error everything is released.
///
/// # Errors
/// [`RecipientError`]: the rack's refusal, or donors whose memory cannot be mapped here.
pub fn borrow(
    access: &Access,
    spec: &AllocationSpec,
    port: PortKind,
) -> Result<Loan, RecipientError> {
    borrow_in_line(access, spec, port, &mut ignore_wait)
}

/// The same, where `told` receives reports on a wait in the queue.
///
/// # Errors
/// The errors of [`borrow`]; [`RecipientError::WaitCancelled`] if `told` cancels the wait.
pub fn borrow_in_line(
    access: &Access,
    spec: &AllocationSpec,
    port: PortKind,
    told: &mut Told<'_>,
) -> Result<Loan, RecipientError> {
    let mut loan = allocate(access, spec, told)?;
    if port.capabilities().mapped {
        loan.connect()?;
    }
    Ok(loan)
}

/// Plans [`allocate`] at this moment: the donors and devices it would get, with reasons. Nothing is
/// granted.
///
/// # Errors
/// [`RecipientError`]: the Monitor Node does not answer, or the request is invalid.
pub fn plan(access: &Access, spec: &AllocationSpec) -> Result<AllocationPlan, RecipientError> {
    runtime()?.block_on(async {
        let mut client = MonitorClient::connect(access).await?;
        let size = match &spec.memory {
            None => None,
            Some(memory) => Some(memory.size(&free_slabs(&mut client, spec).await?, u64::MAX)),
        };
        Ok(client.plan(spec.request(size)?).await?)
    })
}

/// Returns the free bytes of all nodes that are up.
///
/// # Errors
/// [`RecipientError`]: the Monitor Node does not answer.
pub fn free_bytes(access: &Access) -> Result<u64, RecipientError> {
    let nodes = runtime()?.block_on(async {
        let mut client = MonitorClient::connect(access).await?;
        client.nodes().await
    })?;
    Ok(nodes.iter().filter(|node| node.state == "up").map(|node| node.free_bytes).sum())
}

/// Creates a runtime for calls to the control plane from a thread that may block.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, RecipientError> {
    let made = tokio::runtime::Builder::new_current_thread().enable_all().build();
    made.map_err(|source| RecipientError::System { doing: "preparing calls to the rack", source })
}

/// Requests memory with copies, and the devices beside it. Returns the grants and the number of
/// copies.
async fn ask_for_copies(
    client: &mut MonitorClient,
    spec: &AllocationSpec,
    memory: &MemorySpec,
    told: &mut Told<'_>,
) -> Result<(Vec<Grant>, u32), RecipientError> {
    let mut free = Vec::new();
    if memory.remote_bytes.is_none() || memory.copies.is_none() {
        free = free_slabs(client, spec).await?;
    }
    let (bytes, copies) = memory.size(&free, u64::MAX);
    let again = match ask_first(client, spec, Some((bytes, copies)), told).await {
        Ok(grants) => return Ok((grants, copies)),
        // Another recipient was faster.
        Err(RecipientError::Control(ControlError::NoRoom { .. }))
            if copies > 1 && memory.copies.is_none() =>
        {
            (bytes, 1)
        }
        Err(RecipientError::Control(error @ ControlError::NoRoom { .. })) if copies > 1 => {
            return Err(RecipientError::NoRoomForCopies { copies, error });
        }
        Err(error) => match slabs_left(&error).map(|left| memory.size(&free, left)) {
            Some(less) if less != (bytes, copies) => less,
            _ => return Err(error),
        },
    };
    let request = without_wait(spec.request(Some(again))?);
    Ok((client.allocate(request).await?, again.1))
}

/// Requests coded memory, for each slab a share of every fragment, and the devices beside it.
async fn ask_for_fragments(
    client: &mut MonitorClient,
    spec: &AllocationSpec,
    memory: &MemorySpec,
    coding: Coding,
    told: &mut Told<'_>,
) -> Result<(Vec<Grant>, u32), RecipientError> {
    let free = free_slabs(client, spec).await?;
    let (shares, found) = (coding.fragments(), free.iter().filter(|&&free| free > 0).count());
    if found < shares {
        return Err(RecipientError::TooFewNodes { coding, shares, found });
    }
    let size = memory.size(&free, u64::MAX);
    let less = match ask_first(client, spec, Some(size), told).await {
        Ok(grants) => return Ok((grants, 1)),
        Err(RecipientError::Control(error @ ControlError::NoRoom { .. })) => {
            return Err(RecipientError::NoRoomForFragments { coding, error });
        }
        Err(error) => match slabs_left(&error).map(|left| memory.size(&free, left)) {
            Some(less) if less.0 < size.0 => less,
            _ => return Err(error),
        },
    };
    let request = without_wait(spec.request(Some(less))?);
    Ok((client.allocate(request).await?, 1))
}

/// Returns the rest of the user's quota of memory, in slabs, if the error says that it was too
/// small.
fn slabs_left(error: &RecipientError) -> Option<u64> {
    match error {
        RecipientError::Control(ControlError::Rack(RackError::OverQuota(over)))
            if over.kind == ResourceKind::Memory =>
        {
            Some(over.quota.saturating_sub(over.used) / SLAB_BYTES)
        }
        _ => None,
    }
}

/// Returns the slabs of each usable node: the free ones, or all if the request may wait.
async fn free_slabs(
    client: &mut MonitorClient,
    spec: &AllocationSpec,
) -> Result<Vec<u64>, RecipientError> {
    let nodes = client.nodes().await?;
    let usable = nodes.iter().filter(|node| {
        node.state == "up"
            && !node.draining
            && (spec.donors.is_empty() || spec.donors.contains(&node.name))
    });
    let may_wait = !spec.waiting.at_most.is_zero();
    let bytes = usable.map(|node| if may_wait { node.lent_bytes } else { node.free_bytes });
    Ok(bytes.map(|bytes| bytes / SLAB_BYTES).collect())
}

/// Finds out which lenders could not be asked.
async fn shortage(
    client: &mut MonitorClient,
    spec: &AllocationSpec,
) -> Result<Shortage, RecipientError> {
    let nodes = client.nodes().await?;
    let reason = |node: &NodeRow| {
        let NodeRow { name, control_addr, .. } = node;
        match node.state.as_str() {
            "unreachable" => Some(format!("{name} cannot be reached at {control_addr}")),
            "down" => Some(format!("{name} is down")),
            _ => None,
        }
    };
    let may_use = |name: &String| spec.donors.is_empty() || spec.donors.contains(name);
    let lenders = nodes.iter().filter(|node| node.lent_bytes > 0 && may_use(&node.name));
    Ok(Shortage { unusable: lenders.filter_map(reason).collect() })
}

/// Sends the first request, which may wait in the queue.
async fn ask_first(
    client: &mut MonitorClient,
    spec: &AllocationSpec,
    memory: Option<(u64, u32)>,
    told: &mut Told<'_>,
) -> Result<Vec<Grant>, RecipientError> {
    let request = spec.request(memory)?;
    if request.queueing.wait_ms == 0 {
        return Ok(client.allocate(request).await?);
    }
    client.allocate_in_line(request, told).await?.ok_or(RecipientError::WaitCancelled)
}

/// Draws a secret random number.
pub(crate) fn random_word() -> Result<u64, RecipientError> {
    random_u64().map_err(|errno| RecipientError::System {
        doing: "drawing a random number",
        source: errno.into(),
    })
}

/// Returns the name of this recipient, in words for users.
pub(crate) fn recipient_name() -> String {
    to_label(&format!("{}/{}", host_name(), std::process::id()))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_string(),
        name => name.to_string(),
    }
}

impl Loan {
    /// Returns the usable slabs: each counts once, whatever its copies or fragments.
    pub fn slab_count(&self) -> usize {
        self.memory.iter().map(slabs_of).sum::<usize>() / self.shares()
    }

    /// Returns the donors that have a part of each slab.
    pub fn shares(&self) -> usize {
        self.coding().map_or(self.copies.max(1) as usize, Coding::fragments)
    }

    /// Returns the coding of its memory.
    pub fn coding(&self) -> Option<Coding> {
        self.spec.memory.as_ref().and_then(|memory| memory.coding)
    }

    /// Creates a run block for it.
    ///
    /// # Errors
    /// [`RecipientError::Block`].
    pub fn run_block(&self, port: PortKind) -> Result<(OwnedFd, RunBlockMap), RecipientError> {
        let slabs = self.slab_count();
        let memory = self.spec.memory.as_ref();
        Ok(match self.coding() {
            None if memory.is_some_and(|memory| memory.write_behind.is_some()) => {
                RunBlockMap::create_write_behind(port, slabs, self.copies as usize)?
            }
            None => RunBlockMap::create(port, slabs, self.copies as usize)?,
            Some(coding) => RunBlockMap::create_coded(port, slabs, coding)?,
        })
    }

    /// Returns the link to emulate, as reported by the donors; the slowest where they differ.
    pub fn link(&self) -> Option<LinkModel> {
        let links = self.connections.iter().filter_map(|connection| connection.link);
        links.max_by_key(|link| link.round_trip_ns(64, 4160))
    }

    /// Takes all grants out of it, memory first.
    pub(crate) fn take_grants(&mut self) -> Vec<Grant> {
        let mut grants = std::mem::take(&mut self.memory);
        grants.append(&mut self.devices);
        grants
    }

    fn connect(&mut self) -> Result<(), RecipientError> {
        for grant in &self.memory {
            self.connections.push(fetch(grant)?);
        }
        Ok(())
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        release_now(&self.access.clone(), &self.take_grants());
    }
}

/// Releases grants from a thread that may block.
pub(crate) fn release_now(access: &Access, grants: &[Grant]) {
    if grants.is_empty() {
        return;
    }
    // What does not get through ends with its lease.
    if let Ok(runtime) = runtime() {
        let _ = runtime.block_on(async {
            tokio::time::timeout(RELEASE_WITHIN, release(access, grants)).await
        });
    }
}

/// Releases grants: at the Monitor Node, or if it is gone or cannot, at the donors. What does not
/// get through ends with its lease.
pub(crate) async fn release(access: &Access, grants: &[Grant]) {
    let mut releasing = Releasing::new(grants.to_vec());
    while let Some(output) = releasing.poll_output() {
        match output {
            ReleasingOutput::AtMonitor(grants) => {
                let leases: Vec<_> = grants.iter().map(|grant| (grant.id, grant.key)).collect();
                let released =
                    async { MonitorClient::connect(access).await?.release(&leases).await };
                releasing.handle_released(released.await.ok().as_deref());
            }
            ReleasingOutput::AtDonor(grant) => {
                if let Ok(mut agent) = agent_of(access, &grant).await {
                    let _ = agent.give_back(&[(grant.id, grant.key)]).await;
                }
            }
        }
    }
}

/// Connects to a grant's donor.
pub(crate) async fn agent_of(access: &Access, grant: &Grant) -> Result<AgentClient, ControlError> {
    AgentClient::connect(&access.login, &grant.donor, &grant.control_addr, ANSWER_WITHIN).await
}

/// Fetches a grant's slabs, to be mapped.
pub(crate) fn fetch(grant: &Grant) -> Result<ShmConnection, RecipientError> {
    let socket = Path::new(grant.address(PortId::Shm));
    if socket.as_os_str().is_empty() {
        return Err(RecipientError::NoShmSocket(grant.donor.clone()));
    }
    let fetched = fetch_slabs(socket, grant.id, grant.key, slabs_of(grant));
    fetched.map_err(|source| RecipientError::NotMapped { donor: grant.donor.clone(), source })
}

pub(crate) fn slabs_of(grant: &Grant) -> usize {
    grant.share.slabs() as usize
}
