//! Description of a service host, as data: the supervisor sends it, the launcher carries it out.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use venice_wire::GrantId;

use crate::cache::{CacheDir, KeptCache};
use crate::confinement::Measure;
use crate::secret::ServiceSecret;
use crate::wire::MAX_NAME_BYTES;

/// File of the ring's socket in the endpoint directory.
pub(crate) const RING_SOCKET: &str = "qpair.sock";
/// Directory of a host's caches.
pub(crate) const CACHE: &str = "/cache";
/// Most endpoints of a host.
const MAX_ENDPOINTS: usize = 4;
/// Most devices and paths of a host.
const MAX_PATHS: usize = 256;
/// Beginnings of variables that the loader of the C library obeys (ld.so(8)): the launcher starts
/// with the supervisor's privileges.
const LOADER_VARIABLES: [&str; 2] = ["LD_", "GLIBC_"];

/// Description of one service host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Name of the service; the program that runs the host must know it.
    pub service: String,
    /// Secret that a recipient shows in its hello.
    pub secret: ServiceSecret,
    /// Places at which recipients reach the host; at least one.
    pub endpoints: Vec<EndpointSpec>,
    /// Device nodes that the host may open, read, write and control.
    #[serde(default)]
    pub devices: Vec<PathBuf>,
    /// Files and trees that the host may read and execute, at the same paths.
    #[serde(default)]
    pub read_paths: Vec<PathBuf>,
    /// Files and trees that the host may write, at the same paths.
    #[serde(default)]
    pub write_paths: Vec<PathBuf>,
    /// True if code in `/tmp` and `/cache` may be mapped for execution: for drivers that compile.
    #[serde(default)]
    pub executable_scratch: bool,
    /// Directories in `/cache`, which the host may fill like `/tmp`.
    #[serde(default)]
    pub caches: Vec<CacheDir>,
    /// Owner of what they hold: the host starts with what earlier ones of the owner left. `None`:
    /// they are empty at the start.
    #[serde(default)]
    pub cache_owner: Option<String>,
    /// Environment of the host, which has no other variable.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// System calls that the host may make beyond those of every host.
    #[serde(default)]
    pub calls: Vec<CallGroup>,
    /// Upper limits of what the host uses.
    #[serde(default)]
    pub limits: HostLimits,
    /// Measures without which the host must not start.
    #[serde(default)]
    pub require: Vec<Measure>,
    /// Text for the service, in a form of its own.
    #[serde(default)]
    pub options: String,
}

impl HostSpec {
    /// Returns the description of a host with a ring endpoint, no device and the default limits.
    pub fn new(service: impl Into<String>, secret: ServiceSecret) -> Self {
        Self {
            service: service.into(),
            secret,
            endpoints: vec![EndpointSpec::Ring],
            devices: Vec::new(),
            read_paths: Vec::new(),
            write_paths: Vec::new(),
            executable_scratch: false,
            caches: Vec::new(),
            cache_owner: None,
            environment: BTreeMap::new(),
            calls: Vec::new(),
            limits: HostLimits::default(),
            require: Vec::new(),
            options: String::new(),
        }
    }

    /// Checks what can be checked without starting the host.
    ///
    /// # Errors
    /// Says what is wrong, and what is expected.
    pub fn check(&self) -> Result<(), String> {
        let name_bytes = self.service.len();
        if name_bytes == 0 || name_bytes > MAX_NAME_BYTES {
            return Err(format!("service name of {name_bytes} bytes: expected 1 to 32"));
        }
        if self.endpoints.is_empty() || self.endpoints.len() > MAX_ENDPOINTS {
            return Err(format!(
                "{} endpoints: expected 1 to {MAX_ENDPOINTS}",
                self.endpoints.len()
            ));
        }
        let is_ring = |endpoint: &&EndpointSpec| matches!(endpoint, EndpointSpec::Ring);
        if self.endpoints.iter().filter(is_ring).count() > 1 {
            return Err(String::from("two ring endpoints: expected at most one"));
        }
        let paths = [&self.devices, &self.read_paths, &self.write_paths];
        if paths.iter().map(|paths| paths.len()).sum::<usize>() > MAX_PATHS {
            return Err(format!("more than {MAX_PATHS} devices and paths"));
        }
        for path in paths.into_iter().flatten() {
            let mut parts = path.components();
            let is_plain = parts.next() == Some(Component::RootDir)
                && parts.clone().next().is_some()
                && parts.all(|part| matches!(part, Component::Normal(_)));
            let is_ours = ["/tmp", "/endpoint", CACHE].iter().any(|it| path.starts_with(it));
            if !is_plain || is_ours {
                let path = path.display();
                return Err(format!("path {path}: expected an absolute one, not in /tmp"));
            }
        }
        for CacheDir { name, .. } in &self.caches {
            let is_plain =
                |byte: u8| byte == b'-' || byte.is_ascii_digit() || byte.is_ascii_lowercase();
            if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_plain) {
                return Err(format!("cache {name:?}: expected 1 to 32 of a-z, 0-9 and -"));
            }
        }
        self.check_environment()
    }

    fn check_environment(&self) -> Result<(), String> {
        for (name, value) in &self.environment {
            let is_plain = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
            let is_name = !name.is_empty() && name.bytes().all(is_plain);
            let is_loaders = LOADER_VARIABLES.iter().any(|begin| name.starts_with(begin));
            if !is_name || is_loaders || value.contains('\0') {
                return Err(format!("variable {name:?}: expected another name, or a plain value"));
            }
        }
        Ok(())
    }
}

/// Place at which a host is to listen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum EndpointSpec {
    /// A unix socket in the host's directory; messages travel through shared memory.
    Ring,
    /// A UDP address; messages travel in datagrams. Such a host keeps the network namespace of its
    /// supervisor.
    Udp {
        /// Address to bind; port 0 lets the system choose.
        address: SocketAddr,
        /// Protection of datagrams; `None`: plain ones, for a rack that trusts its network.
        seal: Option<SealSpec>,
    },
}

/// Key of the recipient's datagrams.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealSpec {
    /// Grant in the key's name.
    pub grant: GrantId,
    /// The key: `venice_ports::seal::node_key` of that name.
    pub key: [u8; 32],
}

impl std::fmt::Debug for SealSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealSpec").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// A group of system calls that a host does not have by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallGroup {
    /// `ioctl`, as drivers of devices need it.
    Devices,
    /// `fork`, `execve` and `kill`, for libraries that start programs.
    Processes,
}

/// Upper limits of a host. All are bounds for the host with everything it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostLimits {
    /// Memory in bytes, files of the scratch directory included.
    pub memory_bytes: u64,
    /// Processor time in percent of one processor; at least 1.
    pub cpu_percent: u32,
    /// Threads and processes.
    pub processes: u32,
    /// Open descriptors of the service, in one process: those of the host and its connections come
    /// on top.
    pub open_files: u32,
    /// Bytes in `/tmp`, the only place where every host may write.
    pub scratch_bytes: u64,
    /// Files in `/tmp`.
    pub scratch_files: u32,
    /// Bytes and files of 4 KiB in `/cache`, if it has one.
    pub cache_bytes: u64,
    /// Bytes a second of its standard error that are kept.
    pub log_bytes_per_s: u32,
    /// Connections of the recipient at a time.
    pub connections: u16,
    /// Time from the start to the first listening endpoint, in milliseconds.
    pub start_ms: u32,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            cpu_percent: 100,
            processes: 64,
            open_files: 256,
            scratch_bytes: 64 << 20,
            scratch_files: 4096,
            cache_bytes: 64 << 20,
            log_bytes_per_s: 16 << 10,
            connections: 4,
            start_ms: 10_000,
        }
    }
}

/// Place at which a host listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Endpoint {
    /// A unix socket's path, as the supervisor's processes see it.
    Ring(PathBuf),
    /// A UDP address.
    Udp(SocketAddr),
}

/// Returns the directory of a host of a supervisor in `dir`.
pub(crate) fn host_dir(dir: &Path, grant: GrantId) -> PathBuf {
    dir.join("hosts").join(format!("{:x}", grant.0))
}

/// Order of a supervisor to a launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaunchOrder {
    pub grant: GrantId,
    pub spec: HostSpec,
    /// User and group of the host; else those of the supervisor, with the reason.
    pub ids: Result<(u32, u32), String>,
    /// The owner's part of the store of caches.
    pub kept: Option<KeptCache>,
    /// The host's directory, with `root` and `endpoint` in it.
    pub dir: PathBuf,
    /// `cgroup.procs` of each control group to join, with the measures it carries.
    pub cgroups: Vec<(PathBuf, Vec<Measure>)>,
    /// Measures of control groups that are missing, and why.
    pub no_cgroups: Vec<(Measure, String)>,
}
