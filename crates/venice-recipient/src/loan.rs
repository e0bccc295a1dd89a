//! Borrowing: a request to the Monitor Node, and the slabs of its grants.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use venice_control::client::{Access, AgentClient, MonitorClient};
use venice_control::{
    ControlError, Grant, MemoryRequest, PlacementPlan, Policy, Preempt, Queueing, RackError,
    Standing,
};
use venice_fabric::LinkModel;
use venice_memory::paged::coding::Coding;
use venice_memory::paged::run_block::{PortKind, RunBlockMap};
use venice_ports::random_u64;
use venice_ports::shm::{ShmConnection, fetch_slabs};
use venice_wire::{ByteSize, SLAB_BYTES};

use crate::error::RecipientError;
use crate::local_fallback::ReclaimTo;
use crate::pairing::most_slabs;
use crate::waiting::{QueuedRequest, Told, Waiting, ask_in_line, ignore_wait};
use crate::write_behind::WriteBehind;

/// The default number of copies of each slab, if the rack has room.
pub const COPIES_BY_DEFAULT: u32 = 2;
/// Most copies of a slab.
pub const MOST_COPIES: u32 = venice_memory::paged::run_block::MAX_COPIES as u32;
/// Time limit of a donor's answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// An allocation request of a recipient.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Bytes; `None`: [`default_bytes`](Wish::default_bytes).
    pub remote_bytes: Option<u64>,
    /// Bytes to request by default, or the rack's free memory if that is less.
    pub default_bytes: u64,
    /// Copies of each slab, on different donors; `None`: two, or one where the rack has no room for
    /// two ([`Loan::is_short`]).
    pub copies: Option<u32>,
    /// The coding, instead of copies; `None`: none.
    pub coding: Option<Coding>,
    /// The donors to use; empty: any.
    pub donors: Vec<String>,
    /// The node whose relay the recipient sends through; empty: none.
    pub home: String,
    /// The placement policy; `None`: the rack's default.
    pub placement: Option<Policy>,
    /// Bandwidth needed on the paths to the donors for all of it, in bits a second; 0: unstated.
    pub bandwidth_bps: u64,
    /// The queueing options. A wait needs a size in [`remote_bytes`](Wish::remote_bytes).
    pub waiting: Waiting,
    /// The purpose, for the tables.
    pub purpose: String,
    /// Destinations of reclaimed slabs, in order of preference; empty: other donors.
    pub reclaim_to: Vec<ReclaimTo>,
    /// True to lock the local fallback memory: for a server of the kernel's swap, which could be
    /// asked to swap it to itself.
    pub locks_local: bool,
    /// A file on this machine's disk that gets all data too; not for coded memory.
    pub write_behind: Option<WriteBehind>,
}

/// Borrowed grants. They must be kept ([`Leases`](crate::Leases)) and released.
#[derive(Debug)]
pub struct Loan {
    /// The rack they came from.
    pub access: Access,
    /// The request.
    pub wish: Wish,
    /// The grants.
    pub grants: Vec<Grant>,
    /// With the shm port: the connection to each grant's donor.
    pub connections: Vec<ShmConnection>,
    /// A time before the granted request was sent: the leases began later.
    pub asked: Instant,
    /// Copies of each slab, or of each of its fragments.
    pub copies: u32,
    /// True if there was no room for two copies, and the caller had not asked for one: the loss of
    /// a donor then loses its data.
    pub is_short: bool,
}

/// Borrows memory. On an error everything is released.
///
/// # Errors
/// [`RecipientError`]: the rack's refusal, or donors whose memory cannot be mapped here.
pub fn borrow(access: &Access, wish: &Wish, port: PortKind) -> Result<Loan, RecipientError> {
    borrow_in_line(access, wish, port, &mut ignore_wait)
}

/// The same, where `told` receives reports on a wait in the queue.
///
/// # Errors
/// The errors of [`borrow`]; [`RecipientError::WaitCancelled`] if `told` cancels the wait.
pub fn borrow_in_line(
    access: &Access,
    wish: &Wish,
    port: PortKind,
    told: &mut Told<'_>,
) -> Result<Loan, RecipientError> {
    let runtime = runtime()?;
    let mut asked = Instant::now();
    let mut told = |standing: Option<&Standing>| {
        let goes_on = told(standing);
        // After each report the request is sent again.
        if standing.is_some() {
            asked = Instant::now();
        }
        goes_on
    };
    let (grants, copies) = runtime.block_on(async {
        match wish.coding {
            None => ask_for_all(access, wish, &mut told).await,
            Some(coding) => Ok((ask_for_fragments(access, wish, coding, &mut told).await?, 1)),
        }
    })?;
    let is_short = wish.coding.is_none() && wish.copies.is_none() && copies < COPIES_BY_DEFAULT;
    let (access, wish, connections) = (access.clone(), wish.clone(), Vec::new());
    let mut loan = Loan { access, wish, grants, connections, asked, copies, is_short };
    if port == PortKind::Shm
        && let Err(error) = loan.connect()
    {
        // The leases end by themselves if this does not get through.
        runtime.block_on(release(&loan.access, &loan.grants));
        return Err(error);
    }
    Ok(loan)
}

/// Returns where [`borrow`] would find memory at this moment, with reasons. Nothing is granted.
///
/// # Errors
/// [`RecipientError`]: the Monitor Node does not answer, or the request is invalid.
pub fn plan(access: &Access, wish: &Wish) -> Result<PlacementPlan, RecipientError> {
    runtime()?.block_on(async {
        let mut client = MonitorClient::connect(access).await?;
        let free = free_slabs(&mut client, wish).await?;
        let (bytes, copies) = match wish.coding {
            None => wish.plan(&free, u64::MAX),
            Some(coding) => {
                (wish.fragment_slabs(&free, coding) * SLAB_BYTES, coding.fragments() as u32)
            }
        };
        let queueing = wish.waiting.queueing();
        let request = MemoryRequest { queueing, ..request(wish, bytes, copies)? };
        Ok(client.plan_memory(request).await?)
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

/// Requests memory with copies. Returns the grants and the number of copies.
async fn ask_for_all(
    access: &Access,
    wish: &Wish,
    told: &mut Told<'_>,
) -> Result<(Vec<Grant>, u32), RecipientError> {
    let mut client = MonitorClient::connect(access).await?;
    let mut free = Vec::new();
    if wish.remote_bytes.is_none() || wish.copies.is_none() {
        free = free_slabs(&mut client, wish).await?;
    }
    let (bytes, copies) = wish.plan(&free, u64::MAX);
    match ask_first(&mut client, wish, (bytes, copies), told).await {
        // Another recipient was faster.
        Err(RecipientError::Control(ControlError::NoRoom { .. }))
            if copies > 1 && wish.copies.is_none() =>
        {
            Ok((ask(&mut client, wish, bytes, 1).await?, 1))
        }
        Err(RecipientError::Control(error @ ControlError::NoRoom { .. })) if copies > 1 => {
            Err(RecipientError::NoRoomForCopies { copies, error })
        }
        Err(error) => {
            let left = slabs_left(&error).map(|left| wish.plan(&free, left));
            match left.filter(|less| *less != (bytes, copies)) {
                Some((bytes, copies)) => Ok((ask(&mut client, wish, bytes, copies).await?, copies)),
                None => Err(error),
            }
        }
        granted => Ok((granted?, copies)),
    }
}

/// Requests coded memory: for each slab a share of every fragment.
async fn ask_for_fragments(
    access: &Access,
    wish: &Wish,
    coding: Coding,
    told: &mut Told<'_>,
) -> Result<Vec<Grant>, RecipientError> {
    let mut client = MonitorClient::connect(access).await?;
    let free = free_slabs(&mut client, wish).await?;
    let (shares, found) = (coding.fragments(), free.iter().filter(|&&free| free > 0).count());
    if found < shares {
        return Err(RecipientError::TooFewNodes { coding, shares, found });
    }
    let slabs = wish.fragment_slabs(&free, coding);
    let at_most = |most| wish.slabs_at_most(coding, most);
    let bytes = |slabs: u64| slabs.saturating_mul(SLAB_BYTES);
    match ask_first(&mut client, wish, (bytes(slabs), shares as u32), told).await {
        Err(RecipientError::Control(error @ ControlError::NoRoom { .. })) => {
            Err(RecipientError::NoRoomForFragments { coding, error })
        }
        Err(error) => {
            let left = slabs_left(&error).map(|left| at_most(left / shares as u64).min(slabs));
            match left.filter(|less| *less != slabs) {
                Some(less) => ask(&mut client, wish, bytes(less), shares as u32).await,
                None => Err(error),
            }
        }
        granted => granted,
    }
}

/// Returns the rest of the user's quota, in slabs, if the error says that it was too small.
fn slabs_left(error: &RecipientError) -> Option<u64> {
    match error {
        RecipientError::Control(ControlError::Rack(RackError::OverQuota {
            used_bytes,
            quota_bytes,
            ..
        })) => Some(quota_bytes.saturating_sub(*used_bytes) / SLAB_BYTES),
        _ => None,
    }
}

impl Wish {
    /// Returns the slabs of each fragment to request, given the donors' free slabs.
    fn fragment_slabs(&self, free: &[u64], coding: Coding) -> u64 {
        self.slabs_at_most(coding, most_slabs(free, coding.fragments() as u64))
    }

    /// The same, given the most slabs that fit.
    fn slabs_at_most(&self, coding: Coding, most: u64) -> u64 {
        let slab_bytes = coding.data() as u64 * SLAB_BYTES;
        let wanted = self.remote_bytes.unwrap_or(self.default_bytes).max(1).div_ceil(slab_bytes);
        if self.remote_bytes.is_none() && most > 0 { wanted.min(most) } else { wanted }
    }

    /// Returns the link bandwidth for `bytes` of it, in bits a second: each fragment brings a part,
    /// and a replacement of a lost donor its own.
    fn share_bps(&self, bytes: u64) -> u64 {
        let whole = self.remote_bytes.unwrap_or(self.default_bytes).max(1);
        let share = u128::from(self.bandwidth_bps) * u128::from(bytes.min(whole));
        u64::try_from(share.div_ceil(u128::from(whole))).unwrap_or(self.bandwidth_bps)
    }

    /// Returns the bytes to request, and the copies, given the donors' free slabs and the rest of
    /// the user's quota in slabs. Unstated values are made to fit, if possible.
    fn plan(&self, free: &[u64], slabs_left: u64) -> (u64, u32) {
        let wanted = self.remote_bytes.unwrap_or(self.default_bytes).max(1);
        let most =
            |copies: u32| most_slabs(free, copies.into()).min(slabs_left / u64::from(copies));
        let copies = self.copies.unwrap_or_else(|| {
            let fits = most(COPIES_BY_DEFAULT) >= wanted.div_ceil(SLAB_BYTES);
            if fits { COPIES_BY_DEFAULT } else { 1 }
        });
        let bytes = match most(copies.max(1)) * SLAB_BYTES {
            most if self.remote_bytes.is_none() && most > 0 => wanted.min(most),
            _ => wanted,
        };
        (bytes, copies)
    }
}

/// Returns the slabs of each usable node: the free ones, or all if the request may wait.
async fn free_slabs(client: &mut MonitorClient, wish: &Wish) -> Result<Vec<u64>, RecipientError> {
    let nodes = client.nodes().await?;
    let usable = nodes.iter().filter(|node| {
        node.state == "up"
            && !node.draining
            && (wish.donors.is_empty() || wish.donors.contains(&node.name))
    });
    let may_wait = !wish.waiting.at_most.is_zero();
    let bytes = usable.map(|node| if may_wait { node.lent_bytes } else { node.free_bytes });
    Ok(bytes.map(|bytes| bytes / SLAB_BYTES).collect())
}

/// Sends the first request of a wish, which may wait in the queue.
async fn ask_first(
    client: &mut MonitorClient,
    wish: &Wish,
    (bytes, copies): (u64, u32),
    told: &mut Told<'_>,
) -> Result<Vec<Grant>, RecipientError> {
    let queueing = wish.waiting.queueing();
    let request = MemoryRequest { queueing, ..request(wish, bytes, copies)? };
    if queueing.wait_ms == 0 {
        return Ok(client.request_memory(request).await?);
    }
    ask_in_line(client, QueuedRequest::Memory(request), told).await
}

/// Sends a request to the Monitor Node, which does not wait.
pub(crate) async fn ask(
    client: &mut MonitorClient,
    wish: &Wish,
    bytes: u64,
    copies: u32,
) -> Result<Vec<Grant>, RecipientError> {
    Ok(client.request_memory(request(wish, bytes, copies)?).await?)
}

fn request(wish: &Wish, bytes: u64, copies: u32) -> Result<MemoryRequest, RecipientError> {
    Ok(MemoryRequest {
        client_id: u128::from(random_word()?) << 64 | u128::from(random_word()?),
        recipient: recipient_name(),
        bytes: ByteSize(bytes),
        copies,
        donors: wish.donors.clone(),
        home: wish.home.clone(),
        placement: wish.placement,
        bandwidth_bps: wish.share_bps(bytes),
        purpose: wish.purpose.clone(),
        queueing: Queueing { wait_ms: 0, preempt: Preempt::No, ..wish.waiting.queueing() },
    })
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
    format!("{}/{}", host_name(), std::process::id())
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
        self.grants.iter().map(slabs_of).sum::<usize>() / self.shares()
    }

    /// Returns the donors that have a part of each slab.
    pub fn shares(&self) -> usize {
        self.wish.coding.map_or(self.copies.max(1) as usize, Coding::fragments)
    }

    /// Creates a run block for it.
    ///
    /// # Errors
    /// [`RecipientError::Block`].
    pub fn run_block(&self, port: PortKind) -> Result<(OwnedFd, RunBlockMap), RecipientError> {
        let slabs = self.slab_count();
        Ok(match self.wish.coding {
            None if self.wish.write_behind.is_some() => {
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

    fn connect(&mut self) -> Result<(), RecipientError> {
        for grant in &self.grants {
            self.connections.push(fetch(grant)?);
        }
        Ok(())
    }
}

/// Releases grants: at the Monitor Node, or if it is gone or cannot, at the donors. What does not
/// get through ends with its lease.
pub(crate) async fn release(access: &Access, grants: &[Grant]) {
    let leases: Vec<_> = grants.iter().map(|grant| (grant.id, grant.key)).collect();
    let at_monitor = async { MonitorClient::connect(access).await?.release(&leases).await };
    let left = at_monitor.await.unwrap_or_else(|_| grants.iter().map(|grant| grant.id).collect());
    for grant in grants.iter().filter(|grant| left.contains(&grant.id)) {
        if let Ok(mut agent) = agent_of(access, grant).await {
            let _ = agent.give_back(&[(grant.id, grant.key)]).await;
        }
    }
}

/// Connects to a grant's donor.
pub(crate) async fn agent_of(access: &Access, grant: &Grant) -> Result<AgentClient, ControlError> {
    AgentClient::connect(&access.login, &grant.donor, &grant.control_addr, ANSWER_WITHIN).await
}

/// Fetches a grant's slabs, to be mapped.
pub(crate) fn fetch(grant: &Grant) -> Result<ShmConnection, RecipientError> {
    let socket = Path::new(&grant.shm_socket);
    let fetched = fetch_slabs(socket, grant.id, grant.key, slabs_of(grant));
    fetched.map_err(|source| RecipientError::NotMapped { donor: grant.donor.clone(), source })
}

pub(crate) fn slabs_of(grant: &Grant) -> usize {
    (grant.bytes / SLAB_BYTES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unstated_size_fits_rack_and_quota() {
        let slabs = |wish: &Wish, free: &[u64], left| {
            let (bytes, copies) = wish.plan(free, left);
            (bytes / SLAB_BYTES, copies)
        };
        let default = Wish { default_bytes: 4 * SLAB_BYTES, ..Wish::default() };
        assert_eq!(slabs(&default, &[9, 9], u64::MAX), (4, 2));
        assert_eq!(slabs(&default, &[9, 9], 8), (4, 2));
        assert_eq!(slabs(&default, &[9, 9], 7), (4, 1));
        assert_eq!(slabs(&default, &[9, 9], 3), (3, 1));
        assert_eq!(slabs(&default, &[2, 0], u64::MAX), (2, 1));
        // Nothing fits: the rack's refusal is wanted.
        assert_eq!(slabs(&default, &[9, 9], 0), (4, 1));
        let said = Wish { remote_bytes: Some(4 * SLAB_BYTES), ..Wish::default() };
        assert_eq!(slabs(&said, &[9, 9], 7), (4, 1));
        assert_eq!(slabs(&said, &[9, 9], 3), (4, 1));
        let both = Wish { copies: Some(2), ..said };
        assert_eq!(slabs(&both, &[], 3), (4, 2));
        let copies = Wish { copies: Some(2), ..default };
        assert_eq!(slabs(&copies, &[9, 9], 5), (2, 2));
    }
}
