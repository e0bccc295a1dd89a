//! The worlds that experiments run in.

use std::path::PathBuf;

use anyhow::Result;
use venice_access::RemoteAccess;
use venice_experiment::{Experiment, Filter, Results, World, nearest};
use venice_scale::RackScale;
use venice_warehouse::warehouse::Warehouse;

use super::run::run_experiment;
use super::{RunArgs, ShowArgs, show};

/// Experiments by name, with their texts.
pub type Catalogue = [(&'static str, &'static str)];

type Run = fn(&RunArgs, &Experiment, &Filter, &dyn Fn() -> bool) -> Result<(PathBuf, Results)>;

/// A world, with what the commands do in it.
pub(super) struct WorldRow {
    name: &'static str,
    experiments: &'static Catalogue,
    pub(super) show: fn(&ShowArgs, &Experiment, &Filter) -> Result<i32>,
    pub(super) run: Run,
}

impl WorldRow {
    const fn of<W: World>() -> Self {
        Self {
            name: W::NAME,
            experiments: W::EXPERIMENTS,
            show: show::show::<W>,
            run: run_experiment::<W>,
        }
    }
}

const WORLDS: &[WorldRow] =
    &[WorldRow::of::<Warehouse>(), WorldRow::of::<RemoteAccess>(), WorldRow::of::<RackScale>()];

/// Returns all experiments that come with Venice.
pub(super) fn catalogue() -> Vec<(&'static str, &'static str)> {
    WORLDS.iter().flat_map(|world| world.experiments).copied().collect()
}

/// Returns the world of an experiment.
///
/// # Errors
/// A usage error if there is none of its name.
pub(super) fn of(experiment: &Experiment) -> Result<&'static WorldRow> {
    let found = WORLDS.iter().find(|world| world.name == experiment.world);
    found.ok_or_else(|| unknown(&experiment.world))
}

fn unknown(name: &str) -> anyhow::Error {
    let names = || WORLDS.iter().map(|world| world.name);
    let hint = match nearest(name, names()).first() {
        Some(first) => format!("did you mean {first}?"),
        None => format!("write one of {}", names().collect::<Vec<_>>().join(", ")),
    };
    venice_cli::failure::usage(format!("world: no world '{name}': {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_and_experiments_have_own_names() {
        let worlds: Vec<&str> = WORLDS.iter().map(|world| world.name).collect();
        let experiments: Vec<&str> = catalogue().iter().map(|(name, _)| *name).collect();
        for names in [worlds, experiments] {
            let mut once = names.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), names.len(), "{names:?}");
        }
    }
}
