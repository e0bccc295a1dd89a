//! Services of granted devices: a host begins with the commit of a grant and ends with it. A host
//! that dies ends its grant; it is never started again. A grant that is transferred gets a host of
//! its own, once that of the old owner, who knows its secret, is gone.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use venice_accel::opencl::drivers;
use venice_control::{
    Endpoint, GrantUsage, Owner, Refusal, ResourceSpec, ServiceAccess, ServiceState, Share,
};
use venice_ports::seal::node_key;
use venice_rack::donor::EndReason;
use venice_service::{
    Endpoint as HostEndpoint, EndpointSpec, HostEvent, HostSpec, HostSupervisor, SealSpec,
    ServiceSecret, ServiceUsage, SupervisorConfig,
};
use venice_wire::{GrantId, GrantKey, KeyName, NodeSecret, PortId};

use crate::AgentError;
use crate::busy_share::BusyShare;
use crate::devices::{self, Host};
use crate::lender::Lender;

/// Most watches of one grant's service at a time.
const MAX_WATCHES: usize = 8;
/// Ended services whose reasons are remembered for recipients that ask late.
const MAX_ENDED: usize = 64;

/// Events of the supervisor: at most four for each host.
pub(crate) type HostEvents = mpsc::UnboundedReceiver<HostEvent>;

/// Network of the hosts' UDP endpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostNetwork {
    /// Address to bind.
    pub(crate) bind: IpAddr,
    /// The same for others.
    pub(crate) advertised: IpAddr,
}

/// The services of this node's devices. The default has none.
#[derive(Debug, Default)]
pub(crate) struct Services {
    devices: Vec<ResourceSpec>,
    host: Host,
    /// `None` without a service, and once the agent has stopped.
    supervisor: Mutex<Option<HostSupervisor>>,
    network: Option<HostNetwork>,
    boot_id: String,
    /// Bytes of builds that are kept of each owner; 0: none.
    kept_bytes: u64,
    grants: Mutex<Grants>,
}

#[derive(Debug, Default)]
struct Grants {
    served: BTreeMap<GrantId, Served>,
    /// Ended grants with their reasons, the oldest first.
    ended: VecDeque<(GrantId, GrantKey, String)>,
    /// Successors of transferred grants, by the grant whose host is still ending.
    successors: BTreeMap<GrantId, Successor>,
}

/// A grant that waits for the end of another one's host.
#[derive(Debug)]
struct Successor {
    grant: GrantId,
    /// Its host; `None`: it has ended meanwhile.
    spec: Option<Box<HostSpec>>,
}

#[derive(Debug)]
struct Served {
    key: GrantKey,
    /// The access, without the endpoints of the host.
    access: ServiceAccess,
    /// Key of the host's datagrams.
    seal: Vec<u8>,
    state: watch::Sender<ServiceState>,
    /// Reason of its end, if its host has died.
    why: Option<String>,
    busy: BusyShare,
}

impl Services {
    /// Opens the supervisor if one of the devices has a service; removes what an earlier
    /// agent left there.
    ///
    /// # Errors
    /// [`AgentError::Hosts`] if the directory or the machine's random numbers cannot be used.
    pub(crate) fn open(
        (host, devices): (&Host, &[ResourceSpec]),
        mut config: SupervisorConfig,
        network: Option<HostNetwork>,
    ) -> Result<(Self, HostEvents), AgentError> {
        let (send, events) = mpsc::unbounded_channel();
        let none = ServiceSecret::from_bytes([0; ServiceSecret::BYTES]);
        let specs = devices.iter().filter_map(|device| devices::service(host, device, none));
        let specs: Vec<_> = specs.collect();
        if specs.is_empty() {
            return Ok((Self::default(), events));
        }
        if specs.iter().all(|spec| spec.caches.is_empty()) {
            config.caches = None;
        }
        let kept_bytes = config.caches.as_ref().map_or(0, |caches| caches.owner_bytes);
        let on_event = move |event| drop(send.send(event));
        let supervisor = HostSupervisor::open(config, on_event)?;
        let services = Self {
            devices: devices.to_vec(),
            host: host.clone(),
            supervisor: Mutex::new(Some(supervisor)),
            network,
            boot_id: venice_service::boot_id(),
            kept_bytes,
            grants: Mutex::default(),
        };
        Ok((services, events))
    }

    /// Starts the host of a device's grant, if the device has a service and the grant no host yet.
    pub(crate) fn begin(
        &self,
        grant: GrantId,
        key: GrantKey,
        (share, owner): (&Share, Option<&Owner>),
        node_secret: Option<NodeSecret>,
    ) {
        let mut grants = self.grants();
        if grants.served.contains_key(&grant) {
            return;
        }
        let Some((served, spec)) = self.served(grant, key, (share, owner), node_secret) else {
            return;
        };
        grants.served.insert(grant, served);
        // Locked: the end of the grant must not be sent before.
        self.with_supervisor(|supervisor| supervisor.begin(grant, spec));
    }

    /// Ends the host of a transferred grant, for a reason in words; that of its successor starts
    /// once the device is free.
    pub(crate) fn transfer(
        &self,
        from: GrantId,
        (grant, key): (GrantId, GrantKey),
        (share, owner): (&Share, &Owner),
        node_secret: Option<NodeSecret>,
        why: String,
    ) {
        let mut grants = self.grants();
        if !grants.end(from, &why) {
            return;
        }
        let share = (share, Some(owner));
        let spec = self.served(grant, key, share, node_secret).map(|(served, spec)| {
            grants.served.insert(grant, served);
            Box::new(spec)
        });
        let waiting = grants.successors.values_mut().find(|waiting| waiting.grant == from);
        let successor = Successor { grant, spec };
        match waiting {
            Some(waiting) => *waiting = successor,
            None => {
                grants.successors.insert(from, successor);
                drop(grants);
                self.with_supervisor(|supervisor| supervisor.end(from));
            }
        }
    }

    /// Describes a grant's service, and its host; `None`: its device has none.
    fn served(
        &self,
        grant: GrantId,
        key: GrantKey,
        (share, owner): (&Share, Option<&Owner>),
        node_secret: Option<NodeSecret>,
    ) -> Option<(Served, HostSpec)> {
        let is_it = |spec: &&ResourceSpec| share.device() == Some((spec.kind, &spec.address));
        let device = self.devices.iter().find(is_it)?;
        let secret = match ServiceSecret::draw() {
            Ok(secret) => secret,
            Err(error) => {
                // Without a host the recipient finds no service.
                tracing::error!(%grant, %error, "no secret for a service host");
                return None;
            }
        };
        let mut spec = devices::service(&self.host, device, secret)?;
        if let Some(owner) = owner.filter(|_| self.kept_bytes > 0 && !spec.caches.is_empty()) {
            drivers::keep_caches(&mut spec, owner.to_string(), self.kept_bytes);
        }
        let sealed = node_secret.map(|secret| node_key(&secret, KeyName::Grant(grant)).0);
        if let Some(network) = self.network {
            let seal = sealed.map(|key| SealSpec { grant, key });
            let address = SocketAddr::new(network.bind, 0);
            spec.endpoints.push(EndpointSpec::Udp { address, seal });
        }
        let access = ServiceAccess {
            grant,
            service: spec.service.clone(),
            secret: *secret.as_bytes(),
            endpoints: Vec::new(),
        };
        let seal = sealed.map(Vec::from).unwrap_or_default();
        let state = watch::channel(ServiceState::Starting).0;
        let busy = BusyShare::default();
        Some((Served { key, access, seal, state, why: None, busy }, spec))
    }

    /// Ends the service of an ended grant, for a reason in words; returns false if it has none. The
    /// device is free when [`HostEvent::Ended`] arrives.
    pub(crate) fn end(&self, grant: GrantId, why: &str) -> bool {
        let mut grants = self.grants();
        if !grants.end(grant, why) {
            return false;
        }
        if let Some(waiting) = grants.successors.values_mut().find(|it| it.grant == grant) {
            waiting.spec = None;
            return true;
        }
        drop(grants);
        self.with_supervisor(|supervisor| supervisor.end(grant));
        true
    }

    /// Starts the host of the successor of a grant whose host has ended. Returns the grant whose
    /// device is free instead, if there is none.
    fn ended_host(&self, grant: GrantId) -> Option<GrantId> {
        let mut grants = self.grants();
        let Some(successor) = grants.successors.remove(&grant) else { return Some(grant) };
        let Some(spec) = successor.spec else { return Some(successor.grant) };
        // Locked: the end of the successor must not be sent before.
        self.with_supervisor(|supervisor| supervisor.begin(successor.grant, *spec));
        None
    }

    /// Returns the usage of the grants whose hosts have told of it.
    pub(crate) fn usage(&self) -> Vec<GrantUsage> {
        let mut grants = self.grants();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(supervisor) = &*supervisor else { return Vec::new() };
        let usage = grants.served.iter_mut().filter_map(|(grant, served)| {
            let sample = supervisor.usage(*grant)?;
            let busy_ratio = served.busy.take(&sample);
            let ServiceUsage { in_bytes, out_bytes, commands, .. } = sample.usage;
            Some(GrantUsage { grant: *grant, busy_ratio, in_bytes, out_bytes, commands })
        });
        usage.collect()
    }

    /// Ends all hosts; waits until they are gone.
    pub(crate) fn close(&self) {
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(supervisor);
    }

    /// Returns the watch of the service of a grant that lives, or did a moment ago.
    fn watch(
        &self,
        (grant, key): (GrantId, GrantKey),
    ) -> Result<watch::Receiver<ServiceState>, Refusal> {
        let grants = self.grants();
        match grants.served.get(&grant) {
            None => {
                let ended = grants.why_ended(grant, key).map(ServiceState::Ended);
                Ok(watch::channel(ended.unwrap_or(ServiceState::None)).1)
            }
            Some(served) if served.state.receiver_count() >= MAX_WATCHES => {
                Err(Refusal::Failed(format!("{MAX_WATCHES} watch the service of {grant} already")))
            }
            Some(served) => Ok(served.state.subscribe()),
        }
    }

    fn started(&self, grant: GrantId, endpoints: Vec<HostEndpoint>) {
        let mut grants = self.grants();
        let Some(served) = grants.served.get_mut(&grant) else { return };
        let mut access = served.access.clone();
        access.endpoints =
            endpoints.into_iter().map(|it| self.endpoint(it, &served.seal)).collect();
        served.state.send_replace(ServiceState::Serving(access));
    }

    fn endpoint(&self, endpoint: HostEndpoint, seal: &[u8]) -> Endpoint {
        match endpoint {
            HostEndpoint::Ring(path) => Endpoint {
                extra: self.boot_id.clone().into_bytes(),
                ..Endpoint::new(PortId::Ring, path.display().to_string())
            },
            HostEndpoint::Udp(bound) => {
                let ip = self.network.map_or(bound.ip(), |network| network.advertised);
                let address = SocketAddr::new(ip, bound.port()).to_string();
                Endpoint { extra: seal.to_vec(), ..Endpoint::new(PortId::Udp, address) }
            }
        }
    }

    fn note_why(&self, grant: GrantId, why: String) {
        if let Some(served) = self.grants().served.get_mut(&grant) {
            served.why.get_or_insert(why);
        }
    }

    fn with_supervisor(&self, with: impl FnOnce(&HostSupervisor)) {
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(supervisor) = &*supervisor {
            with(supervisor);
        }
    }

    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grants {
    /// Returns the reason for which a service ended, if it is remembered.
    fn why_ended(&self, grant: GrantId, key: GrantKey) -> Option<String> {
        let last = self.ended.iter().rev().find(|it| (it.0, it.1) == (grant, key))?;
        Some(last.2.clone())
    }

    /// Ends a service; returns false if the grant has none.
    fn end(&mut self, grant: GrantId, why: &str) -> bool {
        let Some(served) = self.served.remove(&grant) else { return false };
        let why = served.why.unwrap_or_else(|| why.to_owned());
        served.state.send_replace(ServiceState::Ended(why.clone()));
        self.ended.push_back((grant, served.key, why));
        if self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
        true
    }
}

/// Returns the reason of a grant's end in words.
pub(crate) fn end_text(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "it was released",
        EndReason::Aborted | EndReason::PrepareTimeout => "it was not committed",
        EndReason::LeaseExpired => "its lease has expired",
        EndReason::TakenBack => "it was taken back",
    }
}

impl Lender {
    /// Returns the watch of the service of a grant, for the holder of its key.
    pub(crate) fn watch_service(
        &self,
        (grant, key): (GrantId, GrantKey),
    ) -> Result<watch::Receiver<ServiceState>, Refusal> {
        match self.key_fits(&(grant, key)) {
            Some(true) => self.services.watch((grant, key)),
            Some(false) => Err(Refusal::UnknownGrant),
            None => {
                let why =
                    self.services.grants().why_ended(grant, key).ok_or(Refusal::UnknownGrant)?;
                Ok(watch::channel(ServiceState::Ended(why)).1)
            }
        }
    }

    /// Acts on the events of service hosts; never returns.
    pub(crate) async fn watch_hosts(self: Arc<Self>, mut events: HostEvents) {
        while let Some(event) = events.recv().await {
            match event {
                HostEvent::Started { grant, endpoints, .. } => {
                    self.services.started(grant, endpoints);
                }
                HostEvent::Failed { grant, why } => {
                    self.end_service(grant, format!("its service did not start: {why}"));
                }
                HostEvent::Died { grant, why, .. } => {
                    self.end_service(grant, format!("its service has ended: {why}"));
                }
                HostEvent::Ended { grant } => {
                    if let Some(freed) = self.services.ended_host(grant) {
                        self.input(|node, _| node.handle_freed(freed, 0));
                    }
                }
            }
        }
        std::future::pending().await
    }

    /// Ends a grant whose service is gone.
    fn end_service(self: &Arc<Self>, grant: GrantId, why: String) {
        tracing::warn!(%grant, why, "device grant ended");
        self.services.note_why(grant, why);
        self.input(|node, clock_ns| {
            let now_ns = node.now_ns(clock_ns);
            node.core_mut().handle_release(now_ns, grant);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::TryLockError;
    use std::time::Duration;

    use venice_control::ResourceKind;
    use venice_service::echo;

    use super::*;

    const KEY: GrantKey = GrantKey(9);
    const PAUSE: Duration = Duration::from_millis(2);

    fn accelerator() -> ResourceSpec {
        ResourceSpec {
            kind: ResourceKind::Accelerator,
            address: "emulated".into(),
            bytes: 0,
            slab_bytes: 0,
            capabilities: vec![echo::ENTRY.name.into()],
        }
    }

    /// Checks that the grants stay locked until `begin` has sent the start of a host, which the test
    /// delays. Else an end of the grant could be sent first.
    fn stays_locked(services: &Services, begin: impl FnOnce() + Send) {
        let supervisor = services.supervisor.lock().unwrap();
        std::thread::scope(|scope| {
            let beginning = scope.spawn(begin);
            let mut locked = 0;
            while locked < 50 {
                match services.grants.try_lock() {
                    Ok(grants) => {
                        let is_begun = !grants.served.is_empty() && grants.successors.is_empty();
                        drop(grants);
                        assert!(!is_begun, "unlocked before the start is sent");
                        locked = 0;
                    }
                    Err(TryLockError::WouldBlock) => locked += 1,
                    Err(TryLockError::Poisoned(error)) => panic!("{error}"),
                }
                std::thread::sleep(PAUSE);
            }
            drop(supervisor);
            beginning.join().unwrap();
        });
    }

    #[test]
    fn start_is_sent_before_end() {
        let services = Services { devices: vec![accelerator()], ..Services::default() };
        let share = accelerator().share(0);
        let first = GrantId(1);
        stays_locked(&services, || services.begin(first, KEY, (&share, None), None));
        let bob = Owner { node: "n2".into(), user: "bob".into(), is_bound: false };
        services.transfer(first, (GrantId(2), KEY), (&share, &bob), None, "transferred".into());
        stays_locked(&services, || assert_eq!(services.ended_host(first), None));
        assert!(services.end(GrantId(2), "released"));
    }

    #[test]
    fn late_watch_sees_reason() {
        let services = Services { devices: vec![accelerator()], ..Services::default() };
        let share = accelerator().share(0);
        let (grant, other) = (GrantId(1), GrantKey(8));
        services.begin(grant, KEY, (&share, None), None);
        // It ends after the check of its key, and before the watch.
        services.end(grant, "it was released");
        let state = |key| services.watch((grant, key)).unwrap().borrow().clone();
        assert_eq!(state(KEY), ServiceState::Ended("it was released".into()));
        assert_eq!(state(other), ServiceState::None);
    }
}
