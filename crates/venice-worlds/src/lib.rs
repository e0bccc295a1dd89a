//! The worlds that experiments run in, and the experiments that come with them, by name.
#![forbid(unsafe_code)]

use venice_access::RemoteAccess;
use venice_experiment::{Catalogue, Experiment, ExperimentError, WorldKind, nearest};
use venice_scale::RackScale;
use venice_warehouse::warehouse::Warehouse;

/// All worlds.
pub const WORLDS: &[WorldKind] =
    &[WorldKind::of::<Warehouse>(), WorldKind::of::<RemoteAccess>(), WorldKind::of::<RackScale>()];

/// Returns the experiments that come with the worlds.
pub fn catalogue() -> Catalogue {
    Catalogue::new(WORLDS.iter().flat_map(|world| world.experiments).copied())
}

/// Returns the world of an experiment.
///
/// # Errors
/// If there is none of its name.
pub fn world_of(experiment: &Experiment) -> Result<&'static WorldKind, ExperimentError> {
    let name = &experiment.world;
    WORLDS.iter().find(|world| world.name == name).ok_or_else(|| {
        let names = || WORLDS.iter().map(|world| world.name);
        let hint = match nearest(name, names()).first() {
            Some(first) => format!("did you mean {first}?"),
            None => format!("write one of {}", names().collect::<Vec<_>>().join(", ")),
        };
        ExperimentError::Key { key: "world".to_owned(), why: format!("no world '{name}': {hint}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let worlds: Vec<&str> = WORLDS.iter().map(|world| world.name).collect();
        for names in [worlds, catalogue().names().collect()] {
            let mut once = names.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), names.len(), "{names:?}");
        }
    }
}
