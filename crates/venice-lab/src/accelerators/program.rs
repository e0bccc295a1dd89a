//! The program that uses remote accelerators: started by `venice get`, as a user's.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use venice_client::accel::Pool;
use venice_client::granted_services;
use venice_measure::rack::Port;
use venice_wire::{ByteSize, PortId};

use super::report::RunReport;
use super::work::{Arrays, executable};

/// Arguments of `venice bench accelerators-program`.
#[derive(Debug, Clone, Args)]
pub struct ProgramArgs {
    /// Bytes to transform.
    #[arg(long)]
    size: ByteSize,

    /// Bytes of a task.
    #[arg(long)]
    task: ByteSize,

    /// Port to the accelerators.
    #[arg(long, value_parser = port)]
    port: Port,

    /// File for the figures.
    #[arg(long)]
    json: PathBuf,
}

fn port(text: &str) -> Result<Port, String> {
    let named = [Port::Shm, Port::Udp].into_iter().find(|port| port.name() == text);
    named.ok_or_else(|| "expected shm or udp".to_owned())
}

/// Runs all tasks on the accelerators that this program was started with; writes the figures.
///
/// # Errors
/// When a task fails or an accelerator is lost.
pub fn execute_program(args: ProgramArgs) -> Result<()> {
    let mut services = granted_services()?;
    let wanted = match args.port {
        Port::Shm => PortId::Ring,
        Port::Udp => PortId::Udp,
    };
    for access in services.iter_mut().flatten() {
        access.endpoints.retain(|endpoint| endpoint.port == wanted);
    }
    let named = services.into_iter().flatten();
    let mut pool =
        Pool::from_services(named.map(|access| (format!("grant {}", access.grant.0), access)))?;
    let mut arrays = Arrays::new(args.size.0 as usize, args.task.0 as usize);
    let (inputs, mut outputs) = arrays.tasks();
    let began = Instant::now();
    pool.map_into(&executable(), &inputs, &mut outputs)?;
    let seconds = began.elapsed().as_secs_f64();
    let late = pool.counts().iter().filter_map(|it| it.counts).map(|it| it.late).sum();
    let (checked, wrong) = arrays.check();
    let report = RunReport { seconds, late, checked, wrong };
    let text = serde_json::to_string(&report).context("writing the figures")?;
    std::fs::write(&args.json, text).context("writing the figures")
}
