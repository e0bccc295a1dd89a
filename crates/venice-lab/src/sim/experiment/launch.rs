//! `venice sim run --ranks`: starts `venice-lab-mpi` on ranks of MPI.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use venice_cli::failure::EXIT_FAILURE;
use venice_cli::terminal;
use venice_measure::child::{children_of, end_with_parent, find_program};
use venice_measure::interrupt;

use crate::ranks::PROGRAM;

/// Time between two looks at mpirun and at interrupts.
const LOOK: Duration = Duration::from_millis(20);
/// Exit codes of a shell above this: a signal ended the program.
const SIGNALS: i32 = 128;

/// Runs the command line of this program on so many ranks of this machine; returns the exit code.
///
/// # Errors
/// If MPI or the program for it is missing.
pub(super) fn launch(count: usize) -> Result<i32> {
    let mut command = Command::new(mpirun()?);
    command.args(["-n", &count.to_string()]).arg(program()?).args(std::env::args_os().skip(1));
    // A Ctrl-C at the terminal reaches this process alone.
    command.stdin(Stdio::null()).process_group(0).envs(settings(count));
    end_with_parent(&mut command);
    let child = command.spawn().context("cannot start mpirun")?;
    Ok(code(wait(child)?))
}

fn mpirun() -> Result<PathBuf> {
    find_program("mpirun").map_err(|_| {
        anyhow!("no mpirun in PATH: install Open MPI (apt-get install openmpi-bin), or leave out --ranks")
    })
}

/// Returns the program beside this one.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the running program")?;
    let program = own.with_file_name(PROGRAM);
    match program.is_file() {
        true => Ok(program),
        false => Err(anyhow!(
            "{} is missing: in a clone, after apt-get install libopenmpi-dev libclang-dev, run `cargo build \
             --release -p venice-mpi --features mpi` and copy it from target/release; or leave out --ranks",
            program.display()
        )),
    }
}

/// Returns the settings of Open MPI; another MPI ignores them.
fn settings(count: usize) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("OMPI_MCA_orte_execute_quiet", "1"),
        // On a machine with other work, a rank should go where there is time, and one that waits should
        // let others run: there a run takes a third of the time.
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("OMPI_MCA_hwloc_base_use_hwthreads_as_cpus", "1"),
    ];
    if geteuid().is_root() {
        settings.push(("OMPI_ALLOW_RUN_AS_ROOT", "1"));
        settings.push(("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if count > cores {
        settings.push(("OMPI_MCA_rmaps_base_oversubscribe", "1"));
    }
    settings
}

/// Waits for mpirun, and passes an interrupt on to its ranks: mpirun itself would kill them a second later.
fn wait(mut child: Child) -> Result<ExitStatus> {
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait().context("cannot read the state of mpirun")? {
            return Ok(status);
        }
        if !is_told && interrupt::check().is_err() {
            is_told = true;
            for rank in children_of(child.id()) {
                let pid = i32::try_from(rank).ok().and_then(Pid::from_raw);
                // An error means that it has just ended.
                let _ = pid.map(|pid| kill_process(pid, Signal::INT));
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns the exit code of the ranks; says so if a signal ended one.
fn code(status: ExitStatus) -> i32 {
    let code = status.code().unwrap_or(SIGNALS + status.signal().unwrap_or(0));
    if code <= SIGNALS {
        return code;
    }
    let signal = code - SIGNALS;
    terminal::remark(format!(
        "venice: signal {signal} ended a rank, and all with it: --resume goes on from the last checkpoint"
    ));
    EXIT_FAILURE
}
