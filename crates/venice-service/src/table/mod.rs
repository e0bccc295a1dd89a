//! Life of the hosts of one supervisor. A state machine without I/O: what happened and the time go
//! in by `handle_*`, what to do and what to report come out by `poll_*`.
//!
//! A started host is reported once as started or failed, and once more when it dies by itself. An
//! ended one is reported as ended, once nothing of it is left, whatever happened to it before. No
//! host is ever started again by itself.

#[cfg(test)]
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use venice_wire::GrantId;

use crate::confinement::Confinement;
use crate::error::StartError;
use crate::gate::{HostExit, Report};
use crate::spec::{Endpoint, EndpointSpec, HostSpec, RING_SOCKET, host_dir};

/// Pause before a host that does not go is killed again, in nanoseconds.
const KILL_AGAIN_NS: u64 = 500_000_000;
/// First and longest pause before a removal is tried again, in nanoseconds.
const SWEEP_AGAIN_NS: (u64, u64) = (10_000_000, 1_000_000_000);
/// Most reports of one host: one of each kind, and some to spare.
const MAX_REPORTS: u32 = 16;

/// Act that the driver has to perform.
#[derive(Clone, Debug)]
pub enum HostAction {
    /// Start the processes of a host.
    Spawn {
        /// Grant of the host.
        grant: GrantId,
        /// Description of the host.
        spec: Box<HostSpec>,
    },
    /// Kill all processes of a host.
    Kill(GrantId),
    /// Remove the directory and the control groups of a host.
    Sweep(GrantId),
}

/// Report to the owner of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// The host listens.
    Started {
        /// Grant of the host.
        grant: GrantId,
        /// Addresses at which it listens.
        endpoints: Vec<Endpoint>,
        /// Measures in force.
        confinement: Confinement,
    },
    /// The host could not start. Nothing of it runs any more, or will soon.
    Failed {
        /// Grant of the host.
        grant: GrantId,
        /// Reason.
        why: String,
    },
    /// A host that had started ended by itself.
    Died {
        /// Grant of the host.
        grant: GrantId,
        /// End of its process; `None` if that is not known.
        exit: Option<HostExit>,
        /// Reason, in words.
        why: String,
    },
    /// Nothing of the host is left: no process, control group, directory or socket.
    Ended {
        /// Grant of the host.
        grant: GrantId,
    },
}

/// All hosts of one supervisor.
#[derive(Debug)]
pub struct HostTable {
    dir: PathBuf,
    max_hosts: usize,
    hosts: BTreeMap<GrantId, Host>,
    actions: VecDeque<HostAction>,
    events: VecDeque<HostEvent>,
}

#[derive(Debug)]
struct Host {
    state: State,
    listens_at: Vec<EndpointSpec>,
    confinement: Confinement,
    /// True once it was reported as failed or died: it is reported no more, but as ended.
    is_over: bool,
    /// True if its owner wants it to end, and a report of that.
    is_ended: bool,
    exit: Option<HostExit>,
    start_ms: u32,
    reports: u32,
    /// Pause before the next removal.
    sweep_pause_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The driver starts its processes.
    Spawning,
    /// Its processes run, and nothing listens yet.
    Starting { until_ns: u64 },
    /// It listens.
    Running,
    /// Its processes were killed, and are not all gone yet.
    Killed { again_ns: u64 },
    /// Its processes are gone; the driver removes what they left.
    Sweeping,
    /// A removal failed and is tried again then.
    SweepAgain { at_ns: u64 },
}

impl HostTable {
    /// Makes a table of at most `max_hosts` hosts at a time, whose sockets are below `dir`.
    pub fn new(dir: PathBuf, max_hosts: usize) -> Self {
        Self {
            dir,
            max_hosts,
            hosts: BTreeMap::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Returns the number of hosts, those included of which something is left.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// True if nothing of any host is left.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Returns the grants of all hosts, those included of which something is left.
    pub fn grants(&self) -> impl Iterator<Item = GrantId> {
        self.hosts.keys().copied()
    }

    /// Starts a host.
    ///
    /// # Errors
    /// Fails if something of a host of this grant is still there, or there are as many hosts as may
    /// be. Such a start has no further report.
    pub fn handle_start(&mut self, grant: GrantId, spec: HostSpec) -> Result<(), StartError> {
        if self.hosts.contains_key(&grant) {
            return Err(StartError::InUse { grant });
        }
        if self.hosts.len() >= self.max_hosts {
            return Err(StartError::TooMany { max_hosts: self.max_hosts });
        }
        let host = Host {
            state: State::Spawning,
            listens_at: spec.endpoints.clone(),
            confinement: Confinement::default(),
            is_over: false,
            is_ended: false,
            exit: None,
            start_ms: spec.limits.start_ms,
            reports: 0,
            sweep_pause_ns: SWEEP_AGAIN_NS.0,
        };
        self.hosts.insert(grant, host);
        self.actions.push_back(HostAction::Spawn { grant, spec: Box::new(spec) });
        Ok(())
    }

    /// Reports a host that was not taken up as failed.
    pub fn handle_refused(&mut self, grant: GrantId, why: String) {
        self.events.push_back(HostEvent::Failed { grant, why });
    }

    /// Ends a host. [`HostEvent::Ended`] follows, at once if there is no such host.
    pub fn handle_end(&mut self, now_ns: u64, grant: GrantId) {
        let Some(host) = self.hosts.get_mut(&grant) else {
            self.events.push_back(HostEvent::Ended { grant });
            return;
        };
        host.is_ended = true;
        host.is_over = true;
        self.kill(now_ns, grant);
    }

    /// Takes note that the processes of a host were started.
    pub fn handle_spawned(&mut self, now_ns: u64, grant: GrantId) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        if host.state != State::Spawning {
            return;
        }
        let until_ns = now_ns.saturating_add(u64::from(host.start_ms) * 1_000_000);
        host.state = State::Starting { until_ns };
        if host.is_ended {
            self.kill(now_ns, grant);
        }
    }

    /// Takes note that the processes of a host could not be started.
    pub fn handle_spawn_failed(&mut self, grant: GrantId, why: String) {
        self.fail(grant, why);
        self.sweep(grant);
    }

    /// Takes a report of the processes of a host.
    pub(crate) fn handle_report(&mut self, now_ns: u64, grant: GrantId, report: Report) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        host.reports += 1;
        if host.reports > MAX_REPORTS {
            self.fail(grant, String::from("more reports than a host has to make"));
            return self.kill(now_ns, grant);
        }
        match report {
            Report::Init | Report::Cache => {}
            Report::Confined(confinement) => host.confinement = confinement,
            Report::Started(ports) => {
                if let State::Starting { .. } = host.state {
                    host.state = State::Running;
                    let confinement = host.confinement.clone();
                    let endpoints = host.endpoints(&self.dir, grant, &ports);
                    self.events.push_back(HostEvent::Started { grant, endpoints, confinement });
                }
            }
            Report::Failed(why) => {
                self.fail(grant, why);
                self.kill(now_ns, grant);
            }
            Report::Ended(exit) => {
                host.exit.get_or_insert(exit);
            }
        }
    }

    /// Takes note that a gate brought something other than reports.
    pub fn handle_bad_report(&mut self, now_ns: u64, grant: GrantId) {
        self.fail(grant, String::from("malformed report"));
        self.kill(now_ns, grant);
    }

    /// Takes note that all processes of a host are gone. `exit` is the launcher's; `hint` a reason
    /// that the driver knows.
    pub fn handle_gone(&mut self, grant: GrantId, exit: HostExit, hint: Option<String>) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        let exit = *host.exit.get_or_insert(exit);
        let why = match hint {
            Some(hint) => format!("{exit}: {hint}"),
            None => exit.to_string(),
        };
        match host.state {
            State::Spawning | State::Starting { .. } => {
                self.fail(grant, format!("ended before it listened: {why}"));
            }
            State::Running => {
                if !std::mem::replace(&mut host.is_over, true) {
                    self.events.push_back(HostEvent::Died { grant, exit: Some(exit), why });
                }
            }
            State::Killed { .. } => {}
            State::Sweeping | State::SweepAgain { .. } => return,
        }
        self.sweep(grant);
    }

    /// Takes note of the outcome of a removal.
    pub fn handle_swept(&mut self, now_ns: u64, grant: GrantId, is_removed: bool) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        if !matches!(host.state, State::Sweeping) {
            return;
        }
        if is_removed {
            let is_ended = host.is_ended;
            self.hosts.remove(&grant);
            if is_ended {
                self.events.push_back(HostEvent::Ended { grant });
            }
            return;
        }
        let pause_ns = host.sweep_pause_ns;
        host.sweep_pause_ns = (pause_ns * 2).min(SWEEP_AGAIN_NS.1);
        host.state = State::SweepAgain { at_ns: now_ns.saturating_add(pause_ns) };
    }

    /// Does what is due: fails late starts, repeats kills and removals.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let due = |(grant, host): (&GrantId, &Host)| {
            host.due_ns().is_some_and(|at_ns| at_ns <= now_ns).then_some((*grant, host.state))
        };
        let due: Vec<_> = self.hosts.iter().filter_map(due).collect();
        for (grant, state) in due {
            match state {
                State::Starting { .. } => {
                    let start_ms = self.hosts[&grant].start_ms;
                    self.fail(grant, format!("did not listen within {start_ms} ms"));
                    self.kill(now_ns, grant);
                }
                State::Killed { .. } => self.kill(now_ns, grant),
                State::SweepAgain { .. } => self.sweep(grant),
                State::Spawning | State::Running | State::Sweeping => {}
            }
        }
    }

    /// Returns the next act to perform.
    pub fn poll_action(&mut self) -> Option<HostAction> {
        self.actions.pop_front()
    }

    /// Returns the next report.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// Returns the time at which [`HostTable::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.hosts.values().filter_map(Host::due_ns).min()
    }

    /// Reports a host as failed, or as died if it had started, unless it is over.
    fn fail(&mut self, grant: GrantId, why: String) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        if std::mem::replace(&mut host.is_over, true) {
            return;
        }
        let exit = host.exit;
        self.events.push_back(match host.state {
            State::Running => HostEvent::Died { grant, exit, why },
            State::Spawning
            | State::Starting { .. }
            | State::Killed { .. }
            | State::Sweeping
            | State::SweepAgain { .. } => HostEvent::Failed { grant, why },
        });
    }

    fn kill(&mut self, now_ns: u64, grant: GrantId) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        match host.state {
            // Killed once its processes exist.
            State::Spawning => {}
            State::Starting { .. } | State::Running | State::Killed { .. } => {
                host.state = State::Killed { again_ns: now_ns.saturating_add(KILL_AGAIN_NS) };
                self.actions.push_back(HostAction::Kill(grant));
            }
            State::Sweeping | State::SweepAgain { .. } => {}
        }
    }

    fn sweep(&mut self, grant: GrantId) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        host.state = State::Sweeping;
        self.actions.push_back(HostAction::Sweep(grant));
    }
}

impl Host {
    /// Returns the endpoints. A host says only which ports it has: it cannot send its recipient
    /// somewhere else.
    fn endpoints(&self, dir: &Path, grant: GrantId, ports: &[u16]) -> Vec<Endpoint> {
        let mut ports = ports.iter();
        let endpoint = |spec: &EndpointSpec| match spec {
            EndpointSpec::Ring => {
                Endpoint::Ring(host_dir(dir, grant).join("endpoint").join(RING_SOCKET))
            }
            EndpointSpec::Udp { address, .. } => {
                let port = ports.next().copied().unwrap_or(address.port());
                Endpoint::Udp(SocketAddr::new(address.ip(), port))
            }
        };
        self.listens_at.iter().map(endpoint).collect()
    }

    fn due_ns(&self) -> Option<u64> {
        match self.state {
            State::Starting { until_ns } => Some(until_ns),
            State::Killed { again_ns } => Some(again_ns),
            State::SweepAgain { at_ns } => Some(at_ns),
            State::Spawning | State::Running | State::Sweeping => None,
        }
    }
}
