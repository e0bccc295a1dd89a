//! ns-3 beside Venice: a program that is compiled where ns-3 is installed, and is never part of Venice.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::case::{self, Transport, Workload};
use super::worker::Measured;
use crate::cache;
use venice_measure::child::{find_program, run_tool};
use venice_measure::progress::Phase;

/// The program.
const SOURCE: &str = include_str!("ns3.cc");
/// Modules of ns-3 that it needs, as pkg-config names them.
const MODULES: [&str; 2] = ["ns3-internet", "ns3-point-to-point"];
/// The command that installs what it needs.
const INSTALL: &str = "apt-get install libns3-dev g++ pkg-config";

/// The choice to measure ns-3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ns3Choice {
    /// Measure it if it is installed.
    #[default]
    Auto,
    /// Fail without it.
    Yes,
    /// Leave it out.
    No,
}

/// The compiled program.
#[derive(Debug, Clone)]
pub(super) struct Ns3 {
    program: PathBuf,
    pub(super) version: String,
}

impl Ns3 {
    /// Compiles the program, unless that was done before.
    ///
    /// # Errors
    /// If ns-3 or the compiler is missing, with the command that installs them, and if the program
    /// cannot be compiled.
    pub(super) fn prepare() -> Result<Self> {
        for program in ["g++", "pkg-config"] {
            find_program(program).with_context(|| format!("install it with `{INSTALL}`"))?;
        }
        let version = run_tool("pkg-config", &["--modversion", MODULES[0]]);
        let version =
            version.with_context(|| format!("ns-3 is missing: install it with `{INSTALL}`"))?;
        // Files of libraries among the flags are of Debian's build, and are not installed everywhere.
        let flags =
            run_tool("pkg-config", &[&["--cflags", "--libs-only-l"], &MODULES[..]].concat())?;
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let folder = cache::folder().context("no HOME for the compiled program")?;
        let version = version.trim().to_owned();
        let program = folder.join(format!("bench-sim-ns3-{:016x}", digest(&version, &flags)));
        if !program.is_file() {
            compile(&folder, &flags, &program)?;
        }
        Ok(Self { program, version })
    }

    /// Returns the command that runs a workload; `None` if it has none of that kind.
    pub(super) fn command(&self, workload: &Workload) -> Option<Command> {
        let words = words(workload)?;
        let mut command = Command::new(&self.program);
        command.args(words);
        Some(command)
    }
}

/// Returns the words of the command line that run a workload.
fn words(workload: &Workload) -> Option<Vec<String>> {
    let (name, numbers) = match *workload {
        Workload::Memcached { transport: Transport::Udp, nodes, requests } => {
            let (racks, arrays) = case::racks_and_arrays(nodes);
            let (hosts, servers) = (case::RACK_HOSTS, case::RACK_SERVERS);
            ("memcached", vec![racks, arrays, hosts, servers, requests, case::THINK_US])
        }
        Workload::Incast { iterations } => {
            let (servers, block) = (case::INCAST_SERVERS, case::INCAST_BLOCK_BYTES);
            let (buffer, rto) = (case::INCAST_BUFFER_BYTES, case::INCAST_RTO_NS);
            ("incast", vec![servers, iterations, block, buffer, rto])
        }
        Workload::Memcached { transport: Transport::Tcp, .. }
        | Workload::Mesh { .. }
        | Workload::Queue { .. } => return None,
    };
    Some([name.to_owned()].into_iter().chain(numbers.iter().map(u32::to_string)).collect())
}

/// Reads the figures that the program printed.
///
/// # Errors
/// If there are none.
pub(super) fn figures(log: &Path) -> Result<Measured> {
    let text = std::fs::read_to_string(log).context("ns-3 left no figures")?;
    let line = text.lines().rfind(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("ns-3 printed no figures: {}", text.trim()))?;
    serde_json::from_str(line).context("the figures of ns-3 cannot be read")
}

fn digest(version: &str, flags: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (SOURCE, version, flags).hash(&mut hasher);
    hasher.finish()
}

/// Compiles under another name first, so that the final file is complete.
fn compile(folder: &Path, flags: &[&str], program: &Path) -> Result<()> {
    let _phase = Phase::waiting("compile the program of ns-3");
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let place = tempfile::tempdir_in(folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    let (source, made) = (place.path().join("ns3.cc"), place.path().join("program"));
    std::fs::write(&source, SOURCE)
        .with_context(|| format!("cannot write {}", source.display()))?;
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let (source, output) = (text(&source), text(&made));
    let own = ["-std=c++17", "-O2", "-o", &output, &source];
    run_tool("g++", &[&own, flags].concat()).context("the program of ns-3 does not compile")?;
    std::fs::rename(&made, program).with_context(|| format!("cannot make {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_workloads_have_commands() {
        let memcached = |transport| Workload::Memcached { transport, nodes: 2000, requests: 7 };
        let udp = words(&memcached(Transport::Udp)).unwrap();
        assert_eq!(udp.join(" "), "memcached 16 4 31 2 7 1300");
        let incast = words(&Workload::Incast { iterations: 5 }).unwrap();
        assert_eq!(incast.join(" "), "incast 16 5 262144 32768 1000000");
        assert_eq!(words(&memcached(Transport::Tcp)), None);
        assert_eq!(words(&Workload::Mesh { accesses: 1 }), None);
    }

    #[test]
    fn think_time_is_the_experiments() {
        let config = case::memcached(Transport::Udp, 500, 1).unwrap();
        let text = toml::to_string(&config).unwrap();
        let think = format!("mean = {:.1}", f64::from(case::THINK_US));
        assert!(text.contains(&think), "{text}");
        assert!(text.contains(&format!("servers-per-rack = {}", case::RACK_SERVERS)), "{text}");
    }
}
