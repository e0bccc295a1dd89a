//! Configuration of an agent.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use venice_control::Caller;
use venice_control::identity::{Credential, IdentityError, write_private};
use venice_fabric::{LinkModel, Position, Topology};
use venice_memory::hotplug::dax_name;
use venice_ports::udp::XdpInterface;
use venice_wire::{ByteSize, SLAB_BYTES};

use crate::memory_watch::MemoryWatch;
use crate::relay_host::Place;
use crate::{AgentError, BadOffer, Offer, OnReady, route};

/// Monitor Node of a rack of one machine.
const DEFAULT_MONITOR: &str = "127.0.0.1:7470";
/// File with the address of the Monitor Node, beside the node's certificate.
const MONITOR_FILE: &str = "monitor";

/// Records beside a node's certificate the address at which it joined.
///
/// # Errors
/// [`IdentityError::File`].
pub fn record_monitor(identity: &Path, monitor: &str) -> Result<(), IdentityError> {
    write_private(&identity.join(MONITOR_FILE), format!("{monitor}\n").as_bytes())
}

fn recorded_monitor(identity: &Path) -> Option<String> {
    let text = std::fs::read_to_string(identity.join(MONITOR_FILE)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Configuration of an agent. A TOML file has the same keys; unknown keys are errors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Name of the node, unique in the rack and the same at every start. Empty: see
    /// [`Self::with_joined`].
    pub name: String,
    /// `host:port` of the Monitor Node, or of several separated by commas. Empty: see
    /// [`Self::with_joined`].
    pub monitor: String,
    /// Directory of the node's certificate, made by `venice join`.
    pub identity: PathBuf,
    /// Socket for programs of this machine to enter the rack; none by default.
    pub local_socket: Option<PathBuf>,
    /// Group allowed at that socket besides root and the agent's own user, if the machine has it.
    pub socket_group: String,
    /// Memory devices (DAX: CXL memory, NVDIMMs) to lend instead of this machine's memory, by name,
    /// `dax0.0`; none by default.
    pub lend_dax: Vec<String>,
    /// Memory to lend, in whole slabs; in a file a number of bytes or a text like `"4GiB"`.
    /// Required, except for a pool node that offers nothing else: its default is the available
    /// memory less twice `keep_free`.
    #[serde(deserialize_with = "size")]
    pub lend: ByteSize,
    /// `ip:port` of the control plane; port 0 takes a free one. Default: this machine's address in
    /// the direction of the Monitor Node, port 0.
    pub listen: Option<String>,
    /// `ip:port` for fabric packets; port 0 takes a free one. Default: the address of `listen`,
    /// port 0.
    pub udp_listen: Option<String>,
    /// Path of the socket by which users of this host page, where the agent may let them: a helper's
    /// (`venice helper`). Default: `helper.sock` beside `local_socket`; `none`: there is none.
    pub helper_socket: Option<PathBuf>,
    /// Path of the socket by which users of this host run programs on swap, where the agent may do that
    /// for them (`venice swap helper`). Default: `swap.sock` beside `local_socket`; `none`: there is
    /// none.
    pub swap_helper_socket: Option<PathBuf>,
    /// Fewest copies of each page on a user's swap device, on different nodes. Default: 2.
    pub swap_least_copies: Option<u32>,
    /// Path of the unix socket that hands memory to recipients on this host; none by default.
    pub shm_socket: Option<PathBuf>,
    /// Link to emulate, `latency=1.4us,bandwidth=5Gbps`: for recipients on this host and, where
    /// nodes relay, for the links that leave this node, on top of their own time.
    pub link: Option<LinkModel>,
    /// RDMA device for access to the memory, `auto` for the first active one; none by default.
    /// Queue pairs connect on the TCP port with the UDP port's number.
    pub verbs: Option<String>,
    /// Network interface where single fabric packets bypass the kernel (AF_XDP): `eth0`, or
    /// `eth0:native` for its driver. Needs network administration rights, IPv4 and one queue. None
    /// by default.
    pub xdp: Option<String>,
    /// Address of this machine for others. Required if `listen` is a wildcard (`0.0.0.0`).
    pub advertise: Option<IpAddr>,
    /// True if UDP is unprotected; the rack's Monitor Node needs the same setting.
    pub plain: bool,
    /// Threads that serve fabric packets, each on its own queue. Default: half the processors, 1 to
    /// 4.
    pub queues: Option<usize>,
    /// Topology of the rack, with its size if the shape does not imply it: `mesh:2x2x2`,
    /// `torus:4x4x4`, `router:8`. By default every node reaches every other directly.
    pub topology: Option<String>,
    /// Position of this node in that topology, from 0; the external router comes after the nodes.
    pub position: Option<u32>,
    /// True if packets that enter the network at this node's relay carry their whole route;
    /// otherwise each relay routes by destination.
    pub source_routes: bool,
    /// `ip:port` of the relay; port 0 takes a free one. Default: the address of `listen`, port 0.
    pub relay_listen: Option<String>,
    /// Seconds that memory stays reserved for a grant that the Monitor Node does not complete.
    pub prepare_timeout_s: f64,
    /// Memory to take from the kernel, in whole memory blocks, and register for recipients that
    /// reach it by hardware; none by default.
    #[serde(deserialize_with = "size")]
    pub lend_blocks: ByteSize,
    /// Devices to lend besides memory, each `accelerator:PATH`, `nic:NAME` or
    /// `storage:PATH[=SIZE]`, followed by `,CAPABILITY` for capabilities that are not detected;
    /// none by default.
    pub offer: Vec<String>,
    /// Directory for the record of the blocks taken, so that they come back after any death of the
    /// agent.
    pub state_dir: PathBuf,
    /// Directory of the hosts of devices' services, of this agent alone.
    pub hosts_dir: PathBuf,
    /// Most bytes that each owner's builds take here, from grant to grant; 0 keeps none.
    #[serde(deserialize_with = "size")]
    pub build_cache: ByteSize,
    /// Directory of the owners' builds, of this agent alone.
    pub build_cache_dir: PathBuf,
    /// True for a pool node: it lends, and its own programs cannot borrow.
    pub pool: bool,
    /// Memory to keep available for this machine's own programs: below it, unlent memory returns to
    /// the kernel and nothing is offered. 0 disables this. Default: 2 % of the machine's memory, 64
    /// MiB to 1 GiB.
    #[serde(deserialize_with = "some_size")]
    pub keep_free: Option<ByteSize>,
    /// Below `keep_free` without unlent memory, recipients of the newest grants are asked to move
    /// their memory; after this many seconds the rest is revoked. Infinite: never.
    pub take_back_after_s: f64,
    /// Address of metrics and health over HTTP, `ip:port`; none by default.
    pub metrics: Option<String>,
    /// Directory of the machine's state; tests use their own.
    #[serde(skip)]
    pub proc_dir: PathBuf,
    /// Called when the agent listens.
    #[serde(skip)]
    pub on_ready: OnReady,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            monitor: String::new(),
            identity: IDENTITY_DIR.into(),
            local_socket: None,
            socket_group: "venice".to_owned(),
            lend_dax: Vec::new(),
            lend: ByteSize(0),
            listen: None,
            udp_listen: None,
            helper_socket: None,
            swap_helper_socket: None,
            swap_least_copies: None,
            shm_socket: None,
            link: None,
            verbs: None,
            xdp: None,
            advertise: None,
            plain: false,
            queues: None,
            topology: None,
            position: None,
            source_routes: false,
            relay_listen: None,
            prepare_timeout_s: 10.0,
            lend_blocks: ByteSize(0),
            offer: Vec::new(),
            state_dir: "/var/lib/venice/agent".into(),
            hosts_dir: "/run/venice/hosts".into(),
            build_cache: ByteSize(128 << 20),
            build_cache_dir: "/var/cache/venice/builds".into(),
            pool: false,
            keep_free: None,
            take_back_after_s: TAKE_BACK_AFTER_S,
            metrics: None,
            proc_dir: "/proc".into(),
            on_ready: OnReady::default(),
        }
    }
}

/// Default directory of a machine's certificate.
pub const IDENTITY_DIR: &str = "/var/lib/venice/identity";
/// Directory of the certificate of the agent that is a service (`venice-agent.service`).
pub const SERVICE_IDENTITY_DIR: &str = "/var/lib/venice-agent/identity";
/// Far longer than moving a node's lent memory takes, if there is room elsewhere.
pub const TAKE_BACK_AFTER_S: f64 = 600.0;
/// Most useful number of queues.
const MAX_QUEUES: usize = 64;
/// Default limit of queues; the rest of the processors is for other programs.
const DEFAULT_MAX_QUEUES: usize = 4;

/// The parsed addresses of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) control: SocketAddr,
    pub(crate) udp: SocketAddr,
    pub(crate) relay: SocketAddr,
}

impl AgentConfig {
    /// Fills a missing name and Monitor Node with those that this machine joined with: of its
    /// certificate, and recorded beside it. Without them they are the host's name and 127.0.0.1:7470.
    #[must_use]
    pub fn with_joined(mut self) -> Self {
        if self.name.is_empty() {
            let info = Credential::load(&self.identity).ok().map(|it| it.info().caller.clone());
            self.name = match info {
                Some(Caller::Node(name)) => name,
                _ => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            };
        }
        if self.monitor.is_empty() {
            self.monitor =
                recorded_monitor(&self.identity).unwrap_or_else(|| DEFAULT_MONITOR.into());
        }
        self
    }

    /// Time for recipients to return reclaimed memory; `None`: unlimited.
    pub(crate) fn take_back_after(&self) -> Option<Duration> {
        self.take_back_after_s.is_finite().then(|| Duration::from_secs_f64(self.take_back_after_s))
    }

    /// Validates everything that can be checked without touching the machine.
    pub(crate) fn validate(&self) -> Result<Addresses, AgentError> {
        let wrong = |text: String| Err(AgentError::Config(text));
        if self.name.trim().is_empty() {
            return wrong("a node needs a name".into());
        }
        let place = self.place()?;
        let is_router = place.is_some_and(|place| place.topology.router() == Some(place.position));
        let devices = self.memory_devices()?;
        if !devices.is_empty() && self.lend.0 > 0 {
            return wrong(
                "lend and lend_dax are exclusive: a node lends this machine's memory or its memory \
                 devices"
                    .into(),
            );
        }
        if !devices.is_empty() && self.keep_free.is_some() && self.lend_blocks.0 == 0 {
            return wrong(
                "keep_free applies to this machine's memory, which this node does not lend".into(),
            );
        }
        let lends_else =
            self.lend_blocks.0 > 0 || !self.offers()?.is_empty() || !devices.is_empty();
        let lends_none = self.lend.0 == 0 && (is_router || lends_else);
        if self.lend.0 < SLAB_BYTES && !lends_none {
            let (lend, slab) = (self.lend, ByteSize(SLAB_BYTES));
            return wrong(format!("lend is {lend}: the minimum is one slab, {slab}"));
        }
        // A day; longer times are probably mistakes.
        if !(0.001..=86_400.0).contains(&self.prepare_timeout_s) {
            return wrong(format!(
                "prepare_timeout_s is {}: must be between 0.001 and 86400 seconds",
                self.prepare_timeout_s
            ));
        }
        if let Some(queues) = self.queues.filter(|queues| !(1..=MAX_QUEUES).contains(queues)) {
            return wrong(format!("queues is {queues}: must be between 1 and {MAX_QUEUES}"));
        }
        let after_s = self.take_back_after_s;
        if !(0.0..=86_400.0).contains(&after_s) && after_s != f64::INFINITY {
            return wrong(format!(
                "take_back_after_s is {after_s}: must be between 0 and 86400 seconds, or inf for never"
            ));
        }
        let total = MemoryWatch::total_bytes(self);
        if let Some((keep, total)) = self.keep_free.zip(total).filter(|(keep, all)| keep.0 > *all) {
            let total = ByteSize(total);
            return wrong(format!(
                "keep_free is {keep}, but this machine has {total} in all: nothing could be lent"
            ));
        }
        self.xdp_interface()?;
        let control = match &self.listen {
            Some(text) => address("listen", text)?,
            None => SocketAddr::new(route::toward(&self.monitor)?, 0),
        };
        let udp = match &self.udp_listen {
            Some(text) => address("udp_listen", text)?,
            None => SocketAddr::new(control.ip(), 0),
        };
        let relay = match &self.relay_listen {
            Some(text) => address("relay_listen", text)?,
            None => SocketAddr::new(control.ip(), 0),
        };
        let all = [("listen", control), ("udp_listen", udp), ("relay_listen", relay)];
        for (key, address) in all {
            if address.ip().is_unspecified() && self.advertise.is_none() {
                return wrong(format!(
                    "{key} is {address}, which others cannot reach: set advertise to this machine's address"
                ));
            }
            if self.is_for_this_machine_alone(address.ip()) {
                return wrong(format!(
                    "{key} is {address}, which other machines cannot reach, and the Monitor Node is \
                     at {}: leave {key} out, or set advertise to this machine's address",
                    self.monitor
                ));
            }
        }
        Ok(Addresses { control, udp, relay })
    }

    /// True if an address is a loopback address, and the rack is not of this machine alone.
    fn is_for_this_machine_alone(&self, ip: IpAddr) -> bool {
        let announced = self.advertise.unwrap_or(ip);
        announced.is_loopback() && !route::is_of_this_machine(&self.monitor)
    }

    /// Returns the names of the memory devices to lend.
    pub(crate) fn memory_devices(&self) -> Result<Vec<String>, AgentError> {
        let wrong = |what: String| AgentError::Config(format!("lend_dax: {what}"));
        let mut named: Vec<String> = Vec::new();
        for text in &self.lend_dax {
            let name = dax_name(text).map_err(|error| wrong(error.to_string()))?;
            if named.iter().any(|other| other == name) {
                return Err(wrong(format!("{name} is named twice")));
            }
            named.push(name.to_owned());
        }
        Ok(named)
    }

    /// Returns the devices to lend.
    pub(crate) fn offers(&self) -> Result<Vec<Offer>, AgentError> {
        let wrong = |error: BadOffer| AgentError::Config(format!("offer: {error}"));
        self.offer.iter().map(|text| text.parse().map_err(wrong)).collect()
    }

    /// Returns the interface for AF_XDP, if configured.
    pub(crate) fn xdp_interface(&self) -> Result<Option<XdpInterface>, AgentError> {
        let wrong = |text: String| Err(AgentError::Config(text));
        let Some(text) = &self.xdp else { return Ok(None) };
        if let Some(queues) = self.queues.filter(|queues| *queues > 1) {
            return wrong(format!("queues is {queues}: xdp allows one queue"));
        }
        if self.topology.is_some() {
            return wrong(
                "xdp needs nodes that are reached directly, without relays: leave out xdp or topology"
                    .into(),
            );
        }
        text.parse().map(Some).map_err(|error| AgentError::Config(format!("xdp: {error}")))
    }

    /// Returns the node's place in the network of relays, if the rack has relays.
    pub(crate) fn place(&self) -> Result<Option<Place>, AgentError> {
        let wrong = |text: String| Err(AgentError::Config(text));
        let text = match (&self.topology, self.position) {
            (None, None) if self.source_routes => {
                return wrong("source_routes needs topology".into());
            }
            (None, None) => return Ok(None),
            (None, Some(_)) => return wrong("position needs topology".into()),
            (Some(text), _) => text,
        };
        let topology: Topology =
            text.parse().map_err(|error| AgentError::Config(format!("topology: {error}")))?;
        if !topology.has_relays() {
            return wrong("topology all-to-all has no relays: leave it out".into());
        }
        let last = topology.switches() - 1;
        match self.position {
            Some(position) if position <= last => {
                let (position, source_routes) = (Position(position), self.source_routes);
                Ok(Some(Place { topology, position, source_routes }))
            }
            _ => wrong(format!("position must be between 0 and {last} in {topology}")),
        }
    }

    /// Returns the number of queues of the UDP port.
    pub(crate) fn queue_count(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let default =
            if self.xdp.is_some() { 1 } else { (processors / 2).clamp(1, DEFAULT_MAX_QUEUES) };
        self.queues.unwrap_or(default)
    }

    /// Returns the advertised form of a bound address: a wildcard is replaced.
    pub(crate) fn advertised(&self, bound: SocketAddr) -> String {
        let ip = self.advertise.unwrap_or_else(|| bound.ip());
        SocketAddr::new(ip, bound.port()).to_string()
    }
}

fn address(key: &str, text: &str) -> Result<SocketAddr, AgentError> {
    text.parse().map_err(|_| {
        AgentError::Config(format!("{key} is {text:?}: write IP:PORT, for example 127.0.0.1:0"))
    })
}

fn some_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    size(deserializer).map(Some)
}

/// Deserializes a size from a text (`"4GiB"`) or a number of bytes.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Bytes(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Bytes(bytes) => Ok(ByteSize(bytes)),
        Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> AgentConfig {
        let config: AgentConfig =
            toml::from_str(&format!("name = \"n\"\nlend = \"64MiB\"\n{text}")).unwrap();
        config.with_joined()
    }

    fn complaint(text: &str) -> String {
        config(text).validate().unwrap_err().to_string()
    }

    #[test]
    fn excess_keep_free_is_refused() {
        let said = complaint("keep_free = \"7EiB\"");
        assert!(said.contains("keep_free is 7EiB, but this machine has "), "{said}");
        config("keep_free = 0").validate().unwrap();
    }

    #[test]
    fn missing_keys_default_unknown_keys_fail() {
        let config = config("");
        assert_eq!((config.lend, config.monitor.as_str()), (ByteSize::mib(64), "127.0.0.1:7470"));
        let addresses = config.validate().unwrap();
        assert_eq!(addresses.udp, "127.0.0.1:0".parse().unwrap());
        let error = toml::from_str::<AgentConfig>("lent = 5").unwrap_err();
        assert!(error.to_string().contains("lent"), "{error}");
        assert_eq!(toml::from_str::<AgentConfig>("lend = 5").unwrap().lend, ByteSize(5));
        assert!(toml::from_str::<AgentConfig>("lend = \"5 apples\"").is_err());
        let keep_free = toml::from_str::<AgentConfig>("keep_free = \"2GiB\"").unwrap().keep_free;
        assert_eq!(keep_free, Some(ByteSize::mib(2048)));
    }

    #[test]
    fn invalid_setting_is_named() {
        assert!(AgentConfig::default().validate().unwrap_err().to_string().contains("name"));
        assert!(complaint("listen = \"here\"").contains("listen"));
        assert!(complaint("udp_listen = \"1.2.3.4\"").contains("udp_listen"));
        assert!(complaint("listen = \"0.0.0.0:1\"").contains("advertise"));
        assert!(complaint("queues = 0").contains("queues"));
        assert!(complaint("topology = \"ring\"\nposition = 0").contains("mesh:2x2x2"));
        assert!(complaint("topology = \"mesh:2x2x2\"").contains("position"));
        assert!(complaint("topology = \"router:4\"\nposition = 5").contains("between 0 and 4"));
        assert!(complaint("topology = \"all-to-all:4\"\nposition = 0").contains("leave it out"));
        assert!(complaint("position = 1").contains("topology"));
        assert!(complaint("source_routes = true").contains("topology"));
        assert!(complaint("xdp = \"eth0:fast\"").contains("native"));
        assert!(complaint("xdp = \"eth0\"\nqueues = 2").contains("allows one queue"));
        let relayed = "xdp = \"eth0\"\ntopology = \"mesh:2x2x2\"\nposition = 0";
        assert!(complaint(relayed).contains("directly"));
        assert!(complaint("offer = [\"gpu:/dev/nvidia0\"]").contains("storage:PATH[=SIZE]"));
        let both = complaint("lend_dax = [\"dax0.0\"]");
        assert!(both.contains("exclusive"), "{both}");
        let kept = AgentConfig {
            name: "n".into(),
            lend_dax: vec!["dax0.0".into()],
            keep_free: Some(ByteSize(1 << 20)),
            ..AgentConfig::default()
        };
        assert!(kept.validate().unwrap_err().to_string().contains("keep_free"));
        assert!(complaint("lend_dax = [\"sda\"]").contains("venice window list"));
        let twice = complaint("lend_dax = [\"dax0.0\", \"/dev/dax0.0\"]");
        assert!(twice.contains("dax0.0 is named twice"), "{twice}");
        assert!(complaint("prepare_timeout_s = -1").contains("prepare_timeout_s"));
        assert!(complaint("take_back_after_s = -1").contains("take_back_after_s"));
        let small = AgentConfig { name: "n".into(), lend: ByteSize(9), ..AgentConfig::default() };
        assert!(small.validate().unwrap_err().to_string().contains("lend"));
    }

    #[test]
    fn advertise_replaces_wildcard() {
        let config = config("listen = \"0.0.0.0:0\"\nadvertise = \"10.0.0.9\"");
        config.validate().unwrap();
        assert_eq!(config.advertised("0.0.0.0:77".parse().unwrap()), "10.0.0.9:77");
    }
}
