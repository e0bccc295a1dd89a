//! Borrowing: a request to the Monitor Node, and the slabs of what it grants.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use venice_control::client::{AgentClient, MonitorClient};
use venice_control::{Grant, MemoryRequest};
use venice_fabric::LinkModel;
use venice_memory::paged::run_block::{PortKind, RunBlockError, RunBlockMap};
use venice_ports::random_u64;
use venice_ports::shm::{ShmConnection, fetch_slabs};
use venice_wire::{ByteSize, SLAB_BYTES};

use crate::error::RecipientError;

/// How long a donor may take to answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// What is to be borrowed.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Bytes; `None`: [`default_bytes`](Wish::default_bytes).
    pub remote_bytes: Option<u64>,
    /// What to ask for otherwise, or what the rack has free if that is less.
    pub default_bytes: u64,
    /// The donors to ask; empty: any.
    pub donors: Vec<String>,
    /// The node whose relay the recipient sends through; empty: none.
    pub home: String,
    /// What for, for the tables.
    pub purpose: String,
}

/// What was borrowed: grants, which must be kept ([`Leases`](crate::Leases)) and given back.
#[derive(Debug)]
pub struct Loan {
    /// The Monitor Node it came from: `host:port`.
    pub monitor: String,
    /// The grants.
    pub grants: Vec<Grant>,
    /// With the shm port: the connection to each grant's donor.
    pub connections: Vec<ShmConnection>,
}

/// Borrows, or gives everything back and says why not.
///
/// # Errors
/// [`RecipientError`]: the rack's refusal, or donors whose memory cannot be mapped here.
pub fn borrow(monitor: &str, wish: &Wish, port: PortKind) -> Result<Loan, RecipientError> {
    let runtime = runtime()?;
    let grants = runtime.block_on(request(monitor, wish))?;
    let mut loan = Loan { monitor: monitor.to_string(), grants, connections: Vec::new() };
    if port == PortKind::Shm
        && let Err(error) = loan.connect()
    {
        // The leases end by themselves if this does not get through.
        runtime.block_on(loan.release());
        return Err(error);
    }
    Ok(loan)
}

/// What the nodes that are up have free, all together.
///
/// # Errors
/// [`RecipientError`]: nobody answers.
pub fn free_bytes(monitor: &str) -> Result<u64, RecipientError> {
    let nodes = runtime()?.block_on(async {
        let mut client = MonitorClient::connect(monitor).await?;
        client.nodes().await
    })?;
    Ok(nodes.iter().filter(|node| node.state == "up").map(|node| node.free_bytes).sum())
}

/// For calls to the control plane from a thread that may block.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, RecipientError> {
    let made = tokio::runtime::Builder::new_current_thread().enable_all().build();
    made.map_err(|source| RecipientError::System { doing: "preparing calls to the rack", source })
}

async fn request(monitor: &str, wish: &Wish) -> Result<Vec<Grant>, RecipientError> {
    let mut client = MonitorClient::connect(monitor).await?;
    let bytes = match wish.remote_bytes {
        Some(bytes) => bytes,
        None => {
            let nodes = client.nodes().await?;
            let usable = nodes.iter().filter(|node| {
                node.state == "up" && (wish.donors.is_empty() || wish.donors.contains(&node.name))
            });
            let free: u64 = usable.map(|node| node.free_bytes).sum();
            if free == 0 { wish.default_bytes } else { wish.default_bytes.min(free) }
        }
    };
    let request = MemoryRequest {
        client_id: u128::from(drawn()?) << 64 | u128::from(drawn()?),
        recipient: format!("{}/{}", host_name(), std::process::id()),
        bytes: ByteSize(bytes.max(1)),
        donors: wish.donors.clone(),
        home: wish.home.clone(),
        purpose: wish.purpose.clone(),
    };
    Ok(client.request_memory(request).await?)
}

/// A secret random number.
pub(crate) fn drawn() -> Result<u64, RecipientError> {
    random_u64().map_err(|errno| RecipientError::System {
        doing: "drawing a random number",
        source: errno.into(),
    })
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_string(),
        name => name.to_string(),
    }
}

impl Loan {
    /// Slabs of all grants together.
    pub fn slab_count(&self) -> usize {
        self.grants.iter().map(slabs_of).sum()
    }

    /// Ends the grants: at the Monitor Node, or where it is gone at the donors. What does not get
    /// through ends with its lease.
    pub async fn release(&self) {
        let ids: Vec<_> = self.grants.iter().map(|grant| grant.id).collect();
        if let Ok(mut monitor) = MonitorClient::connect(&self.monitor).await
            && monitor.release(&ids).await.is_ok()
        {
            return;
        }
        for grant in &self.grants {
            if let Ok(mut agent) = AgentClient::connect(&grant.control_addr, ANSWER_WITHIN).await {
                let _ = agent.release(&[grant.id]).await;
            }
        }
    }

    /// The link to emulate, as the donors say; where they differ, the slowest.
    pub fn link(&self) -> Option<LinkModel> {
        let links = self.connections.iter().filter_map(|connection| connection.link);
        links.max_by_key(|link| link.round_trip_ns(64, 4160))
    }

    fn connect(&mut self) -> Result<(), RecipientError> {
        for grant in &self.grants {
            let socket = Path::new(&grant.shm_socket);
            let connection = fetch_slabs(socket, grant.id, grant.key, slabs_of(grant));
            let not_mapped =
                |source| RecipientError::NotMapped { donor: grant.donor.clone(), source };
            self.connections.push(connection.map_err(not_mapped)?);
        }
        Ok(())
    }

    /// Enters donors and slabs into the run block, one slab of each donor in turn, so that
    /// pages spread over all of them; returns the slabs' descriptors in that order (shm port).
    /// With a `home` relay the donors are reached through that.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`].
    pub fn enter_into(
        &mut self,
        block: &RunBlockMap,
        home: Option<&str>,
    ) -> Result<Vec<OwnedFd>, RunBlockError> {
        let mut donors = Vec::new();
        for grant in &self.grants {
            let address = home.unwrap_or(&grant.udp_addr);
            let donor = block.add_donor(&grant.donor, grant.donor_node.0, address)?;
            if home.is_some() {
                block.donors()[donor].set_via();
            }
            if let Some(key) = grant.seal_key {
                block.donors()[donor].set_seal(grant.id, key);
            }
            donors.push(donor);
        }
        let most = self.grants.iter().map(slabs_of).max().unwrap_or(0);
        let mut descriptors = Vec::new();
        let mut fetched: Vec<_> = self.connections.iter_mut().map(|c| c.slabs.drain(..)).collect();
        for index in 0..most {
            for (at, grant) in self.grants.iter().enumerate() {
                if index >= slabs_of(grant) {
                    continue;
                }
                let remote_addr = index as u64 * SLAB_BYTES;
                block.add_slab(donors[at], remote_addr, grant.id.0, grant.key.0)?;
                descriptors.extend(fetched.get_mut(at).and_then(Iterator::next));
            }
        }
        Ok(descriptors)
    }
}

fn slabs_of(grant: &Grant) -> usize {
    (grant.bytes / SLAB_BYTES) as usize
}
