//! The Monitor Node's configuration.

use crate::clock::nanoseconds;
use crate::error::MonitorError;
use crate::store_choice::StoreChoice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use venice_control::identity::Lifetimes;
use venice_control::{ForecastSettings, Policy, WaitingBounds, Windows};
use venice_fabric::{LinkModel, Position, Topology};
use venice_rack::monitor::{Distances, MonitorSettings};
use venice_store::StoreLocation;

/// Address of a rack of one machine.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7470";

/// Addresses of a Monitor Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MonitorReady {
    /// Its gRPC service.
    pub addr: SocketAddr,
    /// Its metrics, if configured.
    pub metrics_addr: Option<SocketAddr>,
}

/// A callback, called once when the Monitor Node listens.
pub struct OnReady(Option<Box<dyn FnOnce(MonitorReady) + Send + Sync>>);

impl OnReady {
    /// Creates a callback from `f`.
    pub fn new(f: impl FnOnce(MonitorReady) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(f)))
    }

    pub(crate) fn call(self, ready: MonitorReady) {
        if let Some(f) = self.0 {
            f(ready);
        }
    }
}

impl Default for OnReady {
    /// Creates a callback that does nothing.
    fn default() -> Self {
        Self(None)
    }
}

impl fmt::Debug for OnReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnReady(..)")
    }
}

/// The configuration. A TOML file has the same keys; any other key in it is an error.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorConfig {
    /// Address to listen on, `host:port`. With port 0 the system chooses. Empty: the address that the
    /// rack was made with, else 127.0.0.1:7470.
    pub listen: String,
    /// Directory of the authority's keys, and of the store by default. It is created if it does not
    /// exist.
    pub state_dir: PathBuf,
    /// Store: a file, or `etcd://HOST[:PORT][,...][/PREFIX]`, `etcds://...` with TLS. Several
    /// Monitor Nodes with one etcd all serve the rack.
    pub store: Option<String>,
    /// Authority that signed the certificates of etcd's members, in PEM; for `etcds://`.
    pub store_ca: Option<PathBuf>,
    /// Client certificate for etcd, in PEM.
    pub store_certificate: Option<PathBuf>,
    /// Key of the client certificate, in PEM.
    pub store_key: Option<PathBuf>,
    /// Seconds between two heartbeats of an agent.
    pub heartbeat_interval_s: f64,
    /// Number of heartbeats in a row that may be missed before a node counts as down.
    pub missed_heartbeats: u32,
    /// Seconds a grant lives without a renewal.
    pub lease_s: f64,
    /// Seconds to wait for one answer of a donor.
    pub donor_timeout_s: f64,
    /// Notice in seconds for the recipient of a grant that is preempted for a request of higher
    /// priority.
    pub preempt_notice_s: f64,
    /// True if UDP is unprotected in this rack: for an isolated network. The agents need the same
    /// setting.
    pub plain: bool,
    /// Order of donors where a request does not choose: `nearest`, `spread` or `pack`.
    pub placement: Policy,
    /// Share of the rack's memory, 0 to 1, that may be reserved for workloads with a forecast above
    /// their current use; 0 reserves nothing.
    pub reserve_ahead: f64,
    /// Seconds between two samples of each workload's use, the input of the forecast.
    pub sample_s: f64,
    /// Length of the observation window, in samples.
    pub observation_window: usize,
    /// Length of the prediction window, in samples.
    pub prediction_window: usize,
    /// Socket for programs of this machine; none if absent. Root and the Monitor Node's own user
    /// enter as administrators.
    pub local_socket: Option<PathBuf>,
    /// Group with access to the socket, if the machine has it.
    pub socket_group: String,
    /// Lifetime of node certificates, in seconds. Those of programs live at most a day.
    pub certificate_s: f64,
    /// Requests of one user, on one node, that may wait in the queue. Those of administrators are
    /// not bounded, here and in the next two.
    pub user_waiting: usize,
    /// Requests that may wait in the queue in all.
    pub waiting: usize,
    /// Calls in flight of one user, on one node.
    pub user_calls: usize,
    /// Address of metrics and health over HTTP, `host:port`; none if absent.
    pub metrics: Option<String>,
    /// Called when the Monitor Node listens.
    #[serde(skip)]
    pub on_ready: OnReady,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            listen: String::new(),
            state_dir: PathBuf::from("/var/lib/venice/monitor"),
            store: None,
            store_ca: None,
            store_certificate: None,
            store_key: None,
            heartbeat_interval_s: 1.0,
            missed_heartbeats: 3,
            lease_s: 10.0,
            donor_timeout_s: 2.0,
            plain: false,
            preempt_notice_s: 60.0,
            placement: Policy::default(),
            reserve_ahead: 0.0,
            sample_s: 300.0,
            observation_window: 288,
            prediction_window: 12,
            local_socket: None,
            socket_group: "venice".to_owned(),
            certificate_s: 30.0 * 86_400.0,
            user_waiting: WaitingBounds::default().of_user,
            waiting: WaitingBounds::default().all,
            user_calls: 256,
            metrics: None,
            on_ready: OnReady::default(),
        }
    }
}

/// A day; longer times are treated as mistakes.
const LONGEST_S: f64 = 86_400.0;
/// Limit for the least-squares fit, which is too slow beyond it.
const LONGEST_WINDOW: usize = 2048;
/// Ten years: half of the authority's own lifetime.
const LONGEST_CERTIFICATE_S: f64 = 10.0 * 365.0 * 86_400.0;
/// Limit for the handshake's timeout, whatever the lease.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);

/// Returns the path through a network of relays that packets take while all links are up.
fn relay_path(topology: &str, from: u32, to: u32) -> Option<Vec<u32>> {
    let topology: Topology = topology.parse().ok()?;
    let (from, to) = (Position(from), Position(to));
    if from.0.max(to.0) >= topology.switches() {
        return None;
    }
    Some(topology.path(from, to).map(|position| position.0).collect())
}

/// Returns the lengths of the paths from a position of a network of relays.
fn relay_distance(topology: &str, from: u32) -> Distances {
    let topology = topology.parse::<Topology>().ok();
    let topology = topology.filter(|topology| from < topology.switches());
    Box::new(move |to| {
        let topology = topology.filter(|topology| to < topology.switches())?;
        Some(topology.hops(Position(from), Position(to)))
    })
}

/// Returns the positions that a position of a network of relays is linked to.
fn relay_neighbours(topology: &str, position: u32) -> Vec<u32> {
    let Ok(topology) = topology.parse::<Topology>() else { return Vec::new() };
    topology.neighbours(Position(position)).map(|(_, neighbour)| neighbour.0).collect()
}

/// Returns the bandwidth of an emulated link, in bits per second.
fn link_bps(link: &str) -> Option<u64> {
    let model: LinkModel = link.parse().ok()?;
    Some(model.bandwidth_bps?.get())
}

impl MonitorConfig {
    /// Returns the core's settings.
    pub(crate) fn settings(&self) -> MonitorSettings {
        let lease_ns = nanoseconds(Duration::from_secs_f64(self.lease_s));
        MonitorSettings {
            heartbeat_interval_ns: nanoseconds(Duration::from_secs_f64(self.heartbeat_interval_s)),
            missed_heartbeats: self.missed_heartbeats,
            lease_ns,
            request_timeout_ns: (lease_ns / 2).min(nanoseconds(LONGEST_HANDSHAKE)),
            preempt_notice_ns: nanoseconds(Duration::from_secs_f64(self.preempt_notice_s)),
            is_plain: self.plain,
            way: relay_path,
            distance: relay_distance,
            neighbours: relay_neighbours,
            link_bps,
            placement: self.placement,
            forecast: self.forecast_settings(),
            waiting: WaitingBounds { of_user: self.user_waiting, all: self.waiting },
        }
    }

    fn forecast_settings(&self) -> ForecastSettings {
        ForecastSettings {
            sample_ns: nanoseconds(Duration::from_secs_f64(self.sample_s)),
            windows: Windows {
                observation: self.observation_window,
                prediction: self.prediction_window,
            },
            share: self.reserve_ahead,
        }
    }

    /// Returns the directory of the rack's authority.
    pub(crate) fn identity_dir(&self) -> PathBuf {
        self.state_dir.join(crate::IDENTITY_DIR)
    }

    /// Returns the longest lifetime of a certificate, in milliseconds.
    pub(crate) fn longest_life_ms(&self) -> u64 {
        let Lifetimes { node, user } = self.lifetimes();
        u64::try_from(node.max(user).as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the store that this configuration names.
    pub(crate) fn store_choice(&self) -> StoreChoice {
        StoreChoice {
            store: self.store.clone(),
            store_ca: self.store_ca.clone(),
            store_certificate: self.store_certificate.clone(),
            store_key: self.store_key.clone(),
        }
    }

    /// Returns the same with missing parts of the store taken from the choice made when the rack
    /// was created.
    ///
    /// # Errors
    /// [`MonitorError::StoreChoice`].
    pub(crate) fn with_founded_store(mut self) -> Result<Self, MonitorError> {
        let choice = self.store_choice().or(StoreChoice::load(&self.state_dir)?);
        let StoreChoice { store, store_ca, store_certificate, store_key } = choice;
        (self.store, self.store_ca) = (store, store_ca);
        (self.store_certificate, self.store_key) = (store_certificate, store_key);
        Ok(self)
    }

    /// Returns the address to listen on.
    ///
    /// # Errors
    /// [`MonitorError::Config`] if the recorded one cannot be read.
    pub(crate) fn listen_address(&self) -> Result<String, MonitorError> {
        if !self.listen.is_empty() {
            return Ok(self.listen.clone());
        }
        let recorded = crate::init::recorded_address(&self.state_dir)?;
        Ok(recorded.unwrap_or_else(|| DEFAULT_ADDRESS.to_owned()))
    }

    pub(crate) fn store_location(&self) -> Result<StoreLocation, MonitorError> {
        self.store_choice().location(&self.state_dir)
    }

    pub(crate) fn lifetimes(&self) -> Lifetimes {
        let node = Duration::from_secs_f64(self.certificate_s);
        Lifetimes { node, user: node.min(Lifetimes::default().user) }
    }

    /// Returns the timeout of one call to a donor: short enough for another try within the lease.
    pub(crate) fn donor_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.donor_timeout_s.min(self.lease_s / 4.0))
    }

    /// Checks that a Monitor Node can start with this configuration.
    ///
    /// # Errors
    /// [`MonitorError::Config`] with the invalid key.
    pub fn validate(&self) -> Result<(), MonitorError> {
        let times = [
            ("heartbeat_interval_s", self.heartbeat_interval_s),
            ("lease_s", self.lease_s),
            ("donor_timeout_s", self.donor_timeout_s),
            ("preempt_notice_s", self.preempt_notice_s),
            ("sample_s", self.sample_s),
        ];
        for (key, seconds) in times {
            // At least a millisecond, the unit of the protocol.
            if !(0.001..=LONGEST_S).contains(&seconds) {
                return Err(MonitorError::Config(format!(
                    "{key} is {seconds:?}: expected between 0.001 and {LONGEST_S} seconds"
                )));
            }
        }
        if !(1.0..=LONGEST_CERTIFICATE_S).contains(&self.certificate_s) {
            return Err(MonitorError::Config(format!(
                "certificate_s is {:?}: expected between 1 and {LONGEST_CERTIFICATE_S} seconds",
                self.certificate_s
            )));
        }
        if !(0.0..=1.0).contains(&self.reserve_ahead) {
            return Err(MonitorError::Config(format!(
                "reserve_ahead is {}: expected a share between 0 (nothing is reserved) and 1",
                self.reserve_ahead
            )));
        }
        let windows = [
            ("observation_window", self.observation_window),
            ("prediction_window", self.prediction_window),
        ];
        for (key, samples) in windows {
            if !(1..=LONGEST_WINDOW).contains(&samples) {
                return Err(MonitorError::Config(format!(
                    "{key} is {samples}: expected between 1 and {LONGEST_WINDOW} samples"
                )));
            }
        }
        let bounds = [
            ("user_waiting", self.user_waiting),
            ("waiting", self.waiting),
            ("user_calls", self.user_calls),
        ];
        if let Some((key, _)) = bounds.into_iter().find(|(_, most)| *most == 0) {
            return Err(MonitorError::Config(format!("{key} is 0: expected at least 1")));
        }
        if self.missed_heartbeats == 0 {
            return Err(MonitorError::Config(
                "missed_heartbeats is 0: expected at least 1".to_owned(),
            ));
        }
        self.store_choice().check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_config_keys_are_rejected() {
        let config: MonitorConfig = toml::from_str("lease_s = 2.5").unwrap();
        assert_eq!((config.lease_s, config.listen.as_str()), (2.5, ""));
        let error = toml::from_str::<MonitorConfig>("leese_s = 2.5").unwrap_err();
        assert!(error.to_string().contains("leese_s"), "{error}");
    }

    #[test]
    fn forecast_settings_are_bounded() {
        let error_of = |text: &str| {
            let config: MonitorConfig = toml::from_str(text).unwrap();
            config.validate().unwrap_err().to_string()
        };
        assert!(error_of("reserve_ahead = 25.0").contains("a share"));
        assert!(error_of("prediction_window = 0").contains("prediction_window"));
        assert!(error_of("observation_window = 1000000").contains("2048"));
        assert!(error_of("sample_s = 0.0").contains("sample_s"));
    }

    #[test]
    fn invalid_times_are_rejected() {
        for lease_s in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            let config = MonitorConfig { lease_s, ..MonitorConfig::default() };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains("lease_s"), "{error}");
        }
    }
}
