//! `venice status`: every process of the rack on this machine.

use clap::Args;
use serde::Serialize;
use venice_control::RefusedCounts;
use venice_control::client::MonitorIdentity;
use venice_fabric::LinkModel;
use venice_recipient::RecipientError;
use venice_recipient::local_rack::{self, FoundRack};
use venice_recipient::runs::{CopiesRow, files};

use super::process::Lives;
use super::record::{AgentRecord, PortKind, Record};
use super::run_dir::RunDir;
use super::standing::Register;
use crate::certificate_text::refused_text;
use crate::registry::{self, block_on};
use venice_cli::failure::EXIT_FAILURE;
use venice_cli::terminal::{self, Align};

/// `venice status`
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Print an object: monitor, used_monitor, agents, runs, port, netns, run_dir
    #[arg(long)]
    pub json: bool,
}

/// The whole rack.
#[derive(Debug, Serialize)]
struct Status {
    monitor: Option<MonitorStatus>,
    /// Monitor Node of the rack that programs of this machine use, if it is not one of `venice up`.
    used_monitor: Option<String>,
    agents: Vec<AgentStatus>,
    port: Option<PortKind>,
    netns: bool,
    /// Topology of the nodes.
    topology: String,
    /// True if packets carry their whole route from their source.
    source_routes: bool,
    /// Emulated link; `None`: none.
    link: Option<LinkModel>,
    /// True if UDP is unprotected.
    plain: bool,
    /// True if single packets bypass the kernel at the nodes (AF_XDP).
    xdp: bool,
    subnet: Option<String>,
    run_dir: String,
    /// Programs on borrowed memory on this machine.
    runs: Vec<CopiesRow>,
}

/// State of a process: `up`; `dead` (no such process); `unresponsive` (the Monitor Node runs but
/// does not answer); `starting` (the agent runs, and has not registered yet; the Monitor Node runs,
/// and its address is not recorded yet); `silent` (registered, but not reporting any more); `revoked`
/// (its certificate was revoked); `unknown` (the agent runs, and there is no Monitor Node to ask).
type StateWord = &'static str;

#[derive(Debug, Serialize)]
struct MonitorStatus {
    name: &'static str,
    pid: Option<u32>,
    state: StateWord,
    addr: String,
    /// Address of its metrics; empty: it serves none.
    metrics_addr: String,
    /// Callers refused by its TLS server, by reason; `None` if it cannot be asked.
    refused: Option<RefusedCounts>,
    /// End of its certificate's validity, in seconds since 1970.
    certificate_expires_s: Option<u64>,
}

#[derive(Debug, Serialize)]
struct AgentStatus {
    name: String,
    pid: Option<u32>,
    state: StateWord,
    /// The problem and its remedy, for people.
    #[serde(skip)]
    advice: Option<String>,
    lent_bytes: u64,
    free_bytes: Option<u64>,
    granted_bytes: Option<u64>,
    /// Datagrams dropped by its UDP port: repeated, forged, unprotected, and under unknown keys.
    replayed: u64,
    forged: u64,
    unsealed: u64,
    unknown_key: u64,
    /// Callers refused by its TLS server.
    refused: u64,
    /// End of its certificate's validity, in seconds since 1970.
    certificate_expires_s: Option<u64>,
    control_addr: String,
    udp_addr: String,
    /// Address of its metrics; empty: it serves none.
    metrics_addr: String,
    shm_socket: String,
    netns: Option<String>,
}

/// Shows the rack on this machine; exit code 1 without one.
pub fn execute(args: &StatusArgs) -> anyhow::Result<i32> {
    let dir = RunDir::locate()?;
    let Some(record) = Record::load(&dir)? else { return execute_elsewhere(&dir, args.json) };
    let status = gather(&dir, &record);
    if args.json {
        terminal::say_json(&status)?;
    } else {
        terminal::say(report(&status))?;
    }
    Ok(0)
}

/// Shows the rack that programs of this machine use, where `venice up` has started none.
fn execute_elsewhere(dir: &RunDir, is_json: bool) -> anyhow::Result<i32> {
    let used = match local_rack::find() {
        Ok(found) => Some(found),
        Err(RecipientError::NoRack { .. }) => None,
        Err(error) => {
            return Err(anyhow::Error::from(error).context("this machine's rack does not answer"));
        }
    };
    let monitor = used.as_ref().map(|rack| rack.access.monitor.clone());
    let status = Status { used_monitor: monitor, ..nothing(dir) };
    if is_json {
        terminal::say_json(&status)?;
    } else if let Some(FoundRack { access, source, .. }) = &used {
        let runs: String = status.runs.iter().map(|run| format!("\n{}", run.line())).collect();
        terminal::say(format!(
            "Programs of this machine use the rack whose Monitor Node is at {} (named by {source}): \
             `venice nodes` lists its nodes.{runs}",
            access.monitor
        ))?;
    }
    if used.is_none() {
        terminal::remark(format!(
            "venice: no rack is up in {}: start one with `venice up`",
            dir.path().display()
        ));
        return Ok(EXIT_FAILURE);
    }
    Ok(0)
}

fn nothing(dir: &RunDir) -> Status {
    Status {
        monitor: None,
        used_monitor: None,
        agents: Vec::new(),
        port: None,
        netns: false,
        topology: String::new(),
        source_routes: false,
        link: None,
        plain: false,
        xdp: false,
        subnet: None,
        run_dir: dir.path().display().to_string(),
        runs: files(&dir.runs_dir()),
    }
}

fn gather(dir: &RunDir, record: &Record) -> Status {
    let lives = record.monitor.process.is_some_and(|process| process.is_alive(dir));
    let asked = lives.then(|| block_on(ask(&record.monitor.addr)).ok()).flatten();
    let (register, identity) = asked.unzip();
    let monitor = MonitorStatus {
        name: "monitor",
        pid: record.monitor.process.filter(|_| lives).map(|process| process.pid),
        state: match (lives, &register) {
            (false, _) => "dead",
            (true, None) if !record.monitor.has_port() => "starting",
            (true, None) => "unresponsive",
            (true, Some(_)) => "up",
        },
        addr: record.monitor.addr.clone(),
        metrics_addr: record.monitor.metrics_addr.clone(),
        refused: identity.as_ref().map(|identity| identity.refused),
        certificate_expires_s: identity.as_ref().map(|identity| identity.expires_s),
    };
    let agents = record.agents.iter().map(|agent| agent_status(dir, agent, register.as_ref()));
    Status {
        monitor: Some(monitor),
        used_monitor: None,
        agents: agents.collect(),
        port: Some(record.port),
        netns: record.netns,
        topology: record.topology.clone().unwrap_or_else(|| "all-to-all".into()),
        source_routes: record.source_routes,
        link: record.link,
        plain: record.plain,
        xdp: record.xdp,
        subnet: record.subnet.map(String::from),
        run_dir: dir.path().display().to_string(),
        runs: files(&dir.runs_dir()),
    }
}

async fn ask(addr: &str) -> anyhow::Result<(Register, MonitorIdentity)> {
    let nodes = registry::connect(addr).await?.nodes().await?;
    let identity = registry::gate(addr).await?.show().await.map_err(registry::told)?;
    Ok((Register::new(nodes, identity.revoked.clone()), identity))
}

fn agent_status(dir: &RunDir, agent: &AgentRecord, register: Option<&Register>) -> AgentStatus {
    let process = agent.process.filter(|process| process.is_alive(dir));
    let lives = process.is_some();
    let row = register.and_then(|register| register.row(&agent.name)).filter(|_| lives);
    let standing = process.zip(register).map(|(it, rack)| rack.standing(dir, agent, it));
    AgentStatus {
        name: agent.name.clone(),
        pid: process.map(|process| process.pid),
        state: match (lives, standing) {
            (false, _) => "dead",
            (true, None) => "unknown",
            (true, Some(standing)) => standing.word(),
        },
        advice: process.zip(standing).and_then(|(it, how)| how.advice(dir, &agent.name, it.pid)),
        lent_bytes: row.map_or(agent.lend_bytes, |row| row.lent_bytes),
        // A dead node has nothing free; a node whose Monitor Node does not answer may have.
        free_bytes: if lives { row.map(|row| row.free_bytes) } else { Some(0) },
        granted_bytes: row.map(|row| row.granted_bytes),
        replayed: row.map_or(0, |row| row.replayed),
        forged: row.map_or(0, |row| row.forged),
        unsealed: row.map_or(0, |row| row.unsealed),
        unknown_key: row.map_or(0, |row| row.unknown_key),
        refused: row.map_or(0, |row| row.refused),
        certificate_expires_s: row.and_then(|row| row.certificate_expires_s),
        control_addr: agent.control_addr.clone(),
        udp_addr: agent.udp_addr.clone(),
        metrics_addr: agent.metrics_addr.clone(),
        shm_socket: dir.shm_socket_path(&agent.name).display().to_string(),
        netns: agent.netns.clone(),
    }
}

fn report(status: &Status) -> String {
    let mut columns = vec![
        ("name", Align::Left),
        ("pid", Align::Right),
        ("state", Align::Left),
        ("lent", Align::Right),
        ("free", Align::Right),
        ("address", Align::Left),
    ];
    let dash = || "-".to_string();
    let number = |pid: Option<u32>| pid.map_or_else(dash, |pid| pid.to_string());
    let monitor = status.monitor.iter().map(|m| {
        let cells = vec![m.name.into(), number(m.pid), m.state.into(), dash(), dash()];
        (cells, [m.addr.clone(), m.metrics_addr.clone()])
    });
    let agents = status.agents.iter().map(|a| {
        let lent = terminal::bytes(a.lent_bytes);
        let free = a.free_bytes.map_or_else(dash, terminal::bytes);
        let cells = vec![a.name.clone(), number(a.pid), a.state.into(), lent, free];
        (cells, [a.control_addr.clone(), a.metrics_addr.clone()])
    });
    let rows: Vec<_> = monitor.chain(agents).collect();
    let shown = match rows.iter().any(|(_, [_, metrics])| !metrics.is_empty()) {
        true => {
            columns.push(("metrics", Align::Left));
            2
        }
        false => 1,
    };
    let row = |(cells, addresses): (Vec<String>, [String; 2])| {
        cells.into_iter().chain(addresses.into_iter().take(shown)).collect()
    };
    let table = terminal::table(&columns, rows.into_iter().map(row).collect());
    let port = status.port.map_or_else(dash, |port| port.to_string());
    let namespaces = match &status.subnet {
        Some(subnet) => format!(", network namespaces joined by {subnet}"),
        None => String::new(),
    };
    let hints = hints(status);
    let protection =
        if status.plain { "UDP without protection (--plain)" } else { "UDP protected" };
    let xdp = if status.xdp { ", single packets past the kernel" } else { "" };
    let link = status.link.map_or_else(String::new, |link| format!(", emulating {link}"));
    let routed = if status.source_routes { ", routed at the source" } else { "" };
    let dropped = dropped_line(&status.agents);
    let refused = refused_line(status);
    let runs: String = status.runs.iter().map(|run| format!("\n{}", run.line())).collect();
    format!(
        "{table}\n\nport {port}, topology {}{routed}{link}{namespaces}, {protection}{xdp}, run directory \
         {}{dropped}{refused}{runs}{hints}",
        status.topology, status.run_dir
    )
}

/// Remedies for unhealthy processes, one line each.
fn hints(status: &Status) -> String {
    let is_dead = |state: StateWord| state == "dead";
    let any_dead = status.agents.iter().any(|agent| is_dead(agent.state))
        || status.monitor.iter().any(|monitor| is_dead(monitor.state));
    let dead = any_dead.then(|| "`venice up` restarts dead processes.".to_string());
    let hangs = status.monitor.iter().filter(|monitor| monitor.state == "unresponsive");
    let hangs = hangs.filter_map(|monitor| monitor.pid).map(|pid| {
        format!(
            "The Monitor Node (pid {pid}) does not answer: resume it (kill -CONT {pid}), or kill -9 \
             {pid}, then `venice up`."
        )
    });
    let is_partial = status.monitor.iter().any(|monitor| monitor.state == "starting");
    let partial = is_partial.then(|| {
        "The rack is not complete: if no `venice up` is running, `venice up` completes it."
            .to_string()
    });
    let agents = status.agents.iter().filter_map(|agent| agent.advice.clone());
    dead.into_iter()
        .chain(partial)
        .chain(hangs)
        .chain(agents)
        .map(|hint| format!("\n{hint}"))
        .collect()
}

/// Lists nodes that dropped datagrams, with counts: damage on the way, or an intruder. Those under
/// unknown keys are left out: every restart of a node causes some, from nodes and programs that have
/// not received its new key yet.
fn dropped_line(agents: &[AgentStatus]) -> String {
    let told = agents.iter().filter_map(|agent| {
        let AgentStatus { name, replayed, forged, unsealed, .. } = agent;
        let counts = [(replayed, "repeated"), (forged, "forged"), (unsealed, "unprotected")];
        let counts = counts.into_iter().filter(|(count, _)| **count > 0);
        let words: Vec<_> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        (!words.is_empty()).then(|| format!("{name} {}", words.join(", ")))
    });
    let told: Vec<_> = told.collect();
    match told.is_empty() {
        true => String::new(),
        false => {
            format!("\nwarning: datagrams dropped since the agents started: {}", told.join("; "))
        }
    }
}

/// Lists refused callers: intruders, or expired certificates.
fn refused_line(status: &Status) -> String {
    let monitor = status.monitor.iter().filter_map(|monitor| monitor.refused);
    let monitor = monitor.filter(|refused| refused.total() > 0);
    let monitor = monitor.map(|refused| format!("monitor {}", refused_text(&refused)));
    let agents = status.agents.iter().filter(|agent| agent.refused > 0);
    let agents = agents.map(|agent| format!("{} {}", agent.name, agent.refused));
    let told: Vec<_> = monitor.chain(agents).collect();
    match told.is_empty() {
        true => String::new(),
        false => format!("\nwarning: callers refused (see the logs): {}", told.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(json: &str) -> Status {
        let record: Record = serde_json::from_str(json).unwrap();
        gather(&RunDir::at(std::path::Path::new("/nonexistent")), &record)
    }

    #[test]
    fn unknown_keys_cause_no_warning() {
        let json = r#"{"monitor": {"addr": "127.0.0.1:1"}, "port": "udp", "netns": false,
            "agents": [{"name": "node1", "lend_bytes": 16777216}]}"#;
        let mut status = status_of(json);
        status.agents[0].unknown_key = 12;
        assert!(!report(&status).contains("warning"));
        status.agents[0].forged = 1;
        assert!(report(&status).contains("dropped since the agents started: node1 1 forged"));
    }

    #[test]
    fn dead_rack_is_shown_as_dead() {
        let json = r#"{"monitor": {"addr": "127.0.0.1:1"}, "port": "shm", "netns": false,
            "agents": [{"name": "node1", "lend_bytes": 16777216}]}"#;
        let status = status_of(json);
        let value = serde_json::to_value(&status).unwrap();
        assert_eq!(value["monitor"]["state"], "dead");
        assert_eq!(value["agents"][0]["state"], "dead");
        assert_eq!(value["agents"][0]["lent_bytes"], 16_777_216);
        assert_eq!(value["agents"][0]["free_bytes"], 0);
        assert!(report(&status).contains("`venice up` restarts dead processes"));
    }
}
