//! The Landlock domain of a host: a second wall behind the empty root, and the only one where no
//! mount namespace can be had.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus,
    Scope,
};

use super::root::Places;
use crate::spec::HostSpec;

/// Newest rules known here; an older kernel enforces what it knows of them.
const RULES: ABI = ABI::V6;

/// Enters the domain; returns what the kernel enforces of it, in words.
///
/// # Errors
/// Fails if the kernel has no Landlock, or a named path is not there.
pub(crate) fn enter_domain(spec: &HostSpec, places: &Places) -> Result<String, String> {
    let everything = AccessFs::from_all(RULES);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(RULES)))
        .and_then(|rules| rules.scope(Scope::from_all(RULES)))
        .and_then(Ruleset::create)
        .map_err(|error| error.to_string())?;
    // Sockets are made once, in their directory; there is nothing else to do there.
    let sockets: BitFlags<AccessFs> = AccessFs::MakeSock | AccessFs::RemoveFile;
    let ruleset = allow(ruleset, &places.endpoint, sockets)?;
    let no_devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let writing = everything & !no_devices & !BitFlags::from(AccessFs::Execute);
    let mut ruleset = allow(ruleset, &places.scratch, writing)?;
    if let Some(cache) = &places.cache {
        ruleset = allow(ruleset, cache, writing)?;
    }
    let using = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    for (paths, access) in [
        (&spec.devices, using),
        (&spec.read_paths, AccessFs::from_read(RULES)),
        (&spec.write_paths, writing),
    ] {
        ruleset = allow_all(ruleset, paths, access)?;
    }
    let status = ruleset.restrict_self().map_err(|error| error.to_string())?;
    let LandlockStatus::Available { effective_abi, .. } = status.landlock else {
        return Err(String::from("kernel without Landlock"));
    };
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(format!("ABI {}", effective_abi as i32)),
        RulesetStatus::PartiallyEnforced => {
            Ok(format!("ABI {}, newer rules not enforced", effective_abi as i32))
        }
        RulesetStatus::NotEnforced => Err(String::from("kernel enforces none of the rules")),
    }
}

fn allow_all(
    ruleset: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, String> {
    paths.iter().try_fold(ruleset, |ruleset, path| allow(ruleset, path, access))
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(RULES) };
    let fd = PathFd::new(path).map_err(|error| named(&error))?;
    ruleset.add_rule(PathBeneath::new(fd, access)).map_err(|error| named(&error))
}
