//! Client sides of services: how a program uses a granted device, for unchanged ones by a library.

mod asking;
mod cuda;
mod mover;
mod vendors;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use venice_accel::{mailbox, opencl};
use venice_recipient::{Held, HeldNews};
use venice_service::moves;
use venice_wire::GrantId;

use crate::granted::GrantedRow;
use crate::library::{self, Library};
use crate::run::MeetingPlace;
use mover::Mover;
pub use mover::{Source, Tell};

/// Variables of a program's environment.
type Variables = Vec<(&'static str, OsString)>;
/// Name of the directory of noticed losses.
const LOSSES: &str = "losses";

/// Makes programs find a library: puts files into an empty directory, and returns variables.
type Install = fn(library: &Path, dir: &Path) -> std::io::Result<Variables>;

/// The client side of a service.
struct ClientSide {
    service: &'static str,
    /// Library through which unchanged programs use it; `None`: they use Venice's own.
    driver: Option<(Library, Install)>,
    /// True if a program learns the loss of a device from its own calls. Then the loss does not end
    /// it: its other devices go on.
    reports_loss: bool,
    /// True if it can go on with a device of another donor.
    moves: bool,
}

/// Services that have one. A program without it knows nothing of the loss of its device.
const CLIENT_SIDES: [ClientSide; 3] = [
    ClientSide {
        service: opencl::SERVICE,
        driver: Some((library::OPENCL, vendors::install)),
        reports_loss: true,
        moves: true,
    },
    ClientSide {
        service: venice_accel::cuda::SERVICE,
        driver: Some((library::CUDA, cuda::install)),
        reports_loss: true,
        moves: false,
    },
    ClientSide { service: mailbox::NAME, driver: None, reports_loss: true, moves: false },
];

/// The client drivers that a program gets with its grants. Their files are removed when this is
/// dropped; those of a killed process are removed by the next run.
#[derive(Default)]
pub struct Installed {
    variables: Variables,
    /// Grants without which the program ends.
    needed: BTreeSet<GrantId>,
    mover: Option<Mover>,
    /// Grants of which the program learns the loss itself, with words for messages.
    reported: BTreeMap<GrantId, String>,
    place: Option<(MeetingPlace, OwnedFd)>,
    /// Directory in which drivers note losses.
    losses: Option<PathBuf>,
}

impl Installed {
    /// Installs the drivers of the grants' services. Devices of `source` take the place of those
    /// that are wanted back.
    ///
    /// # Errors
    /// Fails if a library is missing, or its files cannot be written.
    pub fn of(rows: &[GrantedRow], held: &Arc<Held>, source: Source) -> anyhow::Result<Self> {
        let needed = rows.iter().map(|row| GrantId(row.id)).collect();
        let mut installed = Self { needed, ..Self::default() };
        let mut movable = Vec::new();
        for side in &CLIENT_SIDES {
            let is_its = |row: &&GrantedRow| {
                row.service.as_ref().is_some_and(|access| access.service == side.service)
            };
            let granted: Vec<_> = rows.iter().filter(is_its).collect();
            if granted.is_empty() {
                continue;
            }
            if let Some(driver) = &side.driver {
                installed.install(side.service, driver)?;
            }
            if side.reports_loss {
                let named = |row: &&GrantedRow| {
                    (GrantId(row.id), format!("{} of {}", row.address, row.node))
                };
                installed.reported.extend(granted.iter().map(named));
                installed.needed.retain(|grant| !installed.reported.contains_key(grant));
            }
            if side.moves {
                movable.extend(granted.iter().map(|row| GrantId(row.id)));
            }
        }
        if let Some((place, _)) = installed.place.as_ref().filter(|_| !movable.is_empty()) {
            let mover = Mover::new(source, held, &movable, place.path().join("moves.sock"))?;
            installed.variables.push((moves::SOCKET, mover.socket().into()));
            installed.mover = Some(mover);
        }
        Ok(installed)
    }

    fn install(
        &mut self,
        service: &str,
        (library, install): &(Library, Install),
    ) -> anyhow::Result<()> {
        let found = library.find()?;
        if self.place.is_none() {
            let place = MeetingPlace::new()?;
            // Shows other runs, also those of other PID namespaces, that the directory is in use.
            let listener = place.listen()?;
            self.place = Some((place, listener));
        }
        let (place, _) = self.place.as_ref().expect("it was made above");
        let (dir, losses) = (place.path().join(service), place.path().join(LOSSES));
        let installed = || {
            place.create_dir(LOSSES)?;
            install(&found, &place.create_dir(service)?)
        };
        let named = || format!("installing the {} in {}", library.name, dir.display());
        self.variables.extend(installed().with_context(named)?);
        self.variables.push((opencl::losses::VARIABLE, losses.clone().into()));
        self.losses = Some(losses);
        Ok(())
    }

    /// True if unchanged programs find the device by a driver.
    pub fn reaches_programs(row: &GrantedRow) -> bool {
        let is_its =
            |side: &&ClientSide| row.service.as_ref().is_some_and(|it| it.service == side.service);
        CLIENT_SIDES.iter().find(is_its).is_some_and(|side| side.driver.is_some())
    }

    /// Returns the variables of the program's environment.
    pub fn variables(&self) -> &[(&'static str, OsString)] {
        &self.variables
    }

    /// True if the program ends with a grant. It learns the loss of others itself, and goes on.
    pub fn needs(&self, grant: GrantId) -> bool {
        self.needed.contains(&grant)
    }

    /// Takes an event of a grant in: a device that is wanted back moves.
    pub fn hear(&self, news: &HeldNews) {
        self.mover.iter().for_each(|mover| mover.hear(news));
    }

    /// Returns the losses that drivers have noticed: grant, and a line for the user.
    pub fn noticed(&self) -> Vec<(GrantId, String)> {
        let noted = self.losses.as_deref().map(opencl::losses::noted).unwrap_or_default();
        let line = |(grant, why): (GrantId, String)| {
            let moved = || self.mover.as_ref()?.name_of(grant);
            let name = self.reported.get(&grant).cloned().or_else(moved)?;
            Some((grant, format!("{name}: {why}")))
        };
        noted.into_iter().filter_map(line).collect()
    }
}
