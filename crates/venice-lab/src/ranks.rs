//! The program `venice-lab-mpi`, but for MPI: rank 0 runs the command line, the others follow it.

use std::rc::Rc;

use anyhow::Context;
use venice_cli::failure;
use venice_experiment::ranks::{Leader, follow};
use venice_measure::interrupt;
use venice_simkernel::ranks::Ranks;
use venice_worlds::WORLDS;

use crate::{cli, sim};

/// Name of the program.
pub const PROGRAM: &str = "venice-lab-mpi";

/// Starts this program anew with its heap in huge pages, once. Call it before anything else.
pub fn use_huge_pages() {
    sim::huge_pages::use_for_heap();
}

/// Runs one rank to its end; returns its exit code. If that of another rank than 0 is not 0, the others
/// must be ended.
pub fn main(ranks: Rc<dyn Ranks>) -> i32 {
    let run = || -> anyhow::Result<i32> {
        interrupt::catch_signals()?;
        if ranks.number() > 0 {
            let followed = follow(&ranks, WORLDS, &|| interrupt::check().is_err());
            let rank = || format!("rank {}", ranks.number());
            return followed.map(|()| 0).with_context(rank);
        }
        Ok(cli::main_on(&Leader::new(ranks)?))
    };
    run().unwrap_or_else(|error| failure::report(&error))
}
