//! Simulated agents: everything that a Monitor Node sees of an agent, without its memory.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use venice_control::client::{Heartbeats, MonitorClient};
use venice_control::server::{AgentHandler, TlsServer, serve_agent};
use venice_control::{
    Caller, DoorReport, Grant, HeartbeatReport, LeaseState, NodeRegistration, Pong, PortReport,
    Refusal, Registered, ResourceKind, ResourceSpec,
};
use venice_ports::monotonic_ns;
use venice_rack::donor::DonorSettings;
use venice_rack::donor_node::DonorNode;
use venice_rack::monitor::Token;
use venice_rack::monitor_node::{DonorAnswer, DonorCall};
use venice_rack::pressure::PressureReport;
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::machines::Machines;
use super::monitor_node::MonitorUnderTest;
use venice_measure::interrupt;
use venice_measure::progress::Phase;

/// Prefix of the agents' names; a number from one follows.
const NAME: &str = "node";
/// Slabs that a donor lends.
const SLABS: u32 = 64;
/// Time for which slabs stay set aside for a commit, in nanoseconds.
const PREPARE_TIMEOUT_NS: u64 = 5_000_000_000;
/// Agents that join at the same time.
const AT_ONCE: u32 = 32;
/// Usable values of the last part of an IP address.
const LAST_PARTS: u32 = 250;

/// All agents and the time of their joining.
#[derive(Debug, Clone)]
pub(super) struct Agents {
    /// The agents in the order of their names.
    pub(super) agents: Arc<Vec<Arc<Agent>>>,
    /// Time from the first certificate to the last registration.
    pub(super) joined_in: Duration,
}

impl Agents {
    /// Returns the times of the grant's calls at its donor.
    pub(super) fn call_times(&self, grant: &Grant) -> Option<CallTimes> {
        let number: usize = grant.donor.strip_prefix(NAME)?.parse().ok()?;
        self.agents.get(number.checked_sub(1)?)?.donor.call_times().get(&grant.id).copied()
    }
}

/// Times at which a donor received the calls of a grant.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallTimes {
    /// The call to set the memory aside.
    pub(super) prepare: Instant,
    /// The call to lend it.
    pub(super) commit: Instant,
}

/// One agent.
#[derive(Debug)]
pub(super) struct Agent {
    /// The call over which it reports, one report after the other.
    reporting: tokio::sync::Mutex<Reporting>,
    registered: Registered,
    instance: u64,
    donor: Arc<Donor>,
}

/// State of an agent's reports.
#[derive(Debug)]
struct Reporting {
    heartbeats: Heartbeats,
    /// Version of the peers that it received last.
    peers_version: u64,
}

impl Agent {
    /// Reports once.
    ///
    /// # Errors
    /// When the Monitor Node refuses it.
    pub(super) async fn report(&self) -> Result<()> {
        let mut reporting = self.reporting.lock().await;
        let report = HeartbeatReport {
            identity: self.registered.identity,
            instance: self.instance,
            memory: self.donor.node().report(),
            usage: Vec::new(),
            links: Vec::new(),
            port: PortReport::default(),
            pressure: PressureReport::default(),
            door: DoorReport::default(),
            peers_version: reporting.peers_version,
        };
        let ack = reporting.heartbeats.send(report).await.context("a heartbeat was refused")?;
        if let Some(near) = ack.peers {
            reporting.peers_version = near.version;
        }
        Ok(())
    }

    /// Returns the number of grants that it holds.
    pub(super) fn held(&self) -> usize {
        self.donor.node().report().held.len()
    }
}

/// Lets all of them join.
///
/// # Errors
/// When one cannot.
pub(super) async fn join_all(
    monitor_node: &MonitorUnderTest,
    machines: &Machines,
    count: u32,
    donors: u32,
) -> Result<Agents> {
    let phase = Phase::new(format!("{count} agents join"), u64::from(count));
    let started = Instant::now();
    let mut agents = Vec::with_capacity(count as usize);
    let mut joining = JoinSet::new();
    for number in 0..count {
        interrupt::check()?;
        let name = format!("{NAME}{}", number + 1);
        let holder = monitor_node.holder(&Caller::Node(name.clone()))?;
        let access = monitor_node.access(holder.clone());
        let services = machines.donors.handle().clone();
        joining.spawn(async move {
            let client = MonitorClient::connect(&access).await?;
            let lent = if number < donors { SLABS } else { 0 };
            join((name, number, lent), client, TlsServer::new(holder)?, services).await
        });
        if joining.len() as u32 == AT_ONCE {
            agents.extend(joining.join_next().await.transpose()?.transpose()?);
            phase.advance(1);
        }
    }
    while let Some(joined) = joining.join_next().await {
        agents.push(joined??);
        phase.advance(1);
    }
    let joined_in = started.elapsed();
    agents.sort_by_key(|agent| agent.instance);
    Ok(Agents { agents: Arc::new(agents), joined_in })
}

async fn join(
    (name, number, lent): (String, u32, u32),
    mut client: MonitorClient,
    door: Arc<TlsServer>,
    services: Handle,
) -> Result<Arc<Agent>> {
    let listener = match lent {
        0 => None,
        _ => Some(listen(number, &services)?),
    };
    let addr = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let instance = u64::from(number) + 1;
    let registration = NodeRegistration {
        name: name.clone(),
        instance,
        pid: None,
        // No peer calls an agent that lends nothing.
        control_addr: addr.map_or_else(|| "127.0.0.1:9".to_owned(), |addr| addr.to_string()),
        // Port 9 has no listener; the Monitor Node only makes keys for it.
        udp_addr: "127.0.0.1:9".to_owned(),
        shm_socket: String::new(),
        resources: vec![ResourceSpec {
            kind: ResourceKind::Memory,
            bytes: u64::from(lent) * SLAB_BYTES,
            slab_bytes: SLAB_BYTES,
            address: String::new(),
            capabilities: Vec::new(),
        }],
        previous: None,
        secret: None,
        is_plain: false,
        relay: None,
        link: String::new(),
        is_pool: false,
    };
    let registered = client.register(registration).await?;
    let settings = DonorSettings { total_slabs: lent, prepare_timeout_ns: PREPARE_TIMEOUT_NS };
    let mut node = DonorNode::new(settings, Pong { name, instance }, monotonic_ns());
    node.core_mut().set_epoch(registered.identity.epoch);
    let donor = Arc::new(Donor { node: Mutex::new(node), call_times: Mutex::default() });
    if let Some(listener) = listener {
        // The service ends with the runtime.
        services.spawn(serve_agent(listener, door, Arc::clone(&donor), std::future::pending()));
    }
    let reporting = Reporting { heartbeats: client.heartbeats().await?, peers_version: 0 }.into();
    Ok(Arc::new(Agent { reporting, registered, instance, donor }))
}

/// Listens for one agent, each at its own address, so that ports do not run out.
fn listen(number: u32, services: &Handle) -> Result<TcpListener> {
    let listener = std::net::TcpListener::bind((address(number), 0));
    let listener = listener.context("an agent's address")?;
    listener.set_nonblocking(true)?;
    let _served_there = services.enter();
    Ok(TcpListener::from_std(listener)?)
}

fn address(number: u32) -> IpAddr {
    let (rest, last) = (number / LAST_PARTS, number % LAST_PARTS);
    Ipv4Addr::new(127, 1, rest as u8, last as u8 + 1).into()
}

/// A donor without memory.
#[derive(Debug)]
struct Donor {
    node: Mutex<DonorNode>,
    /// Times of the calls of the grants that it holds.
    call_times: Mutex<BTreeMap<GrantId, CallTimes>>,
}

impl Donor {
    fn call_times(&self) -> MutexGuard<'_, BTreeMap<GrantId, CallTimes>> {
        self.call_times.lock().expect("a thread panicked while it held the lock")
    }

    fn node(&self) -> MutexGuard<'_, DonorNode> {
        self.node.lock().expect("a thread panicked while it held the lock")
    }

    fn note_times(&self, call: &DonorCall) {
        let (now, mut call_times) = (Instant::now(), self.call_times());
        match call {
            DonorCall::Prepare(request) => {
                call_times.insert(request.grant, CallTimes { prepare: now, commit: now });
            }
            DonorCall::Commit { grant, .. } => {
                if let Some(call_times) = call_times.get_mut(grant) {
                    call_times.commit = now;
                }
            }
            DonorCall::Release(grants) => {
                call_times.retain(|grant, _| !grants.contains(grant));
            }
            DonorCall::Abort(_)
            | DonorCall::PrepareTransfer(_)
            | DonorCall::CommitTransfer(_)
            | DonorCall::AbortTransfer { .. }
            | DonorCall::Ping => {}
        }
    }

    fn answer(&self, call: impl FnOnce(&mut DonorNode, u64)) -> Result<DonorAnswer, Refusal> {
        let (mut node, clock_ns) = (self.node(), monotonic_ns());
        node.handle_timeout(clock_ns);
        call(&mut node, clock_ns);
        node.perform_without_memory(clock_ns).pop().expect("it answers at once").1
    }
}

impl AgentHandler for Donor {
    async fn call(&self, call: DonorCall) -> Result<DonorAnswer, Refusal> {
        self.note_times(&call);
        self.answer(|node, clock_ns| node.handle_call(clock_ns, Token(0), call))
    }

    async fn give_back(
        &self,
        _: Caller,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> Result<DonorAnswer, Refusal> {
        self.answer(|node, clock_ns| node.handle_give_back(clock_ns, Token(0), &leases))
    }

    async fn renew(&self, _: Caller, leases: Vec<(GrantId, GrantKey)>) -> Vec<LeaseState> {
        self.node().handle_renew(monotonic_ns(), &leases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agents_have_distinct_addresses() {
        let all: BTreeSet<IpAddr> = (0..super::super::MAX_AGENTS).map(address).collect();
        assert_eq!(all.len(), super::super::MAX_AGENTS as usize);
        assert!(all.iter().all(IpAddr::is_loopback));
    }
}
