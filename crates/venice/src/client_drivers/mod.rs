//! Client drivers of services: libraries through which an unchanged program uses a granted device.

mod asking;
mod mover;
mod vendors;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use venice_accel::opencl;
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

/// The client driver of a service.
struct ClientDriver {
    service: &'static str,
    library: Library,
    /// Makes programs find the library: puts files into an empty directory, and returns variables.
    install: fn(library: &Path, dir: &Path) -> std::io::Result<Variables>,
    /// True if a program learns the loss of a device from its own calls. Then the loss does not end
    /// it: its other devices go on.
    reports_loss: bool,
    /// True if it can go on with a device of another donor.
    moves: bool,
}

/// All of them.
const CLIENT_DRIVERS: [ClientDriver; 1] = [ClientDriver {
    service: opencl::SERVICE,
    library: library::OPENCL,
    install: vendors::install,
    reports_loss: true,
    moves: true,
}];

/// The client drivers that a program gets with its grants. Their files are removed when this is
/// dropped; those of a killed process are removed by the next run.
#[derive(Default)]
pub struct Installed {
    variables: Variables,
    /// Grants without which the program ends.
    needed: BTreeSet<GrantId>,
    mover: Option<Mover>,
    place: Option<(MeetingPlace, OwnedFd)>,
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
        for driver in &CLIENT_DRIVERS {
            let granted = rows.iter().filter_map(|row| row.service.as_ref());
            let grants: Vec<GrantId> = granted
                .filter(|access| access.service == driver.service)
                .map(|access| access.grant)
                .collect();
            if grants.is_empty() {
                continue;
            }
            installed.install(driver)?;
            if driver.reports_loss {
                installed.needed.retain(|grant| !grants.contains(grant));
            }
            if driver.moves {
                movable.extend(grants);
            }
        }
        if let Some((place, _)) = installed.place.as_ref().filter(|_| !movable.is_empty()) {
            let mover = Mover::new(source, held, &movable, place.path().join("moves.sock"))?;
            installed.variables.push((moves::SOCKET, mover.socket().into()));
            installed.mover = Some(mover);
        }
        Ok(installed)
    }

    fn install(&mut self, driver: &ClientDriver) -> anyhow::Result<()> {
        let library = driver.library.find()?;
        if self.place.is_none() {
            let place = MeetingPlace::new()?;
            // Shows other runs, also those of other PID namespaces, that the directory is in use.
            let listener = place.listen()?;
            self.place = Some((place, listener));
        }
        let (place, _) = self.place.as_ref().expect("it was made above");
        let dir = place.path().join(driver.service);
        let install = || {
            std::fs::create_dir(&dir)?;
            (driver.install)(&library, &dir)
        };
        let named = || format!("installing the {} in {}", driver.library.name, dir.display());
        self.variables.extend(install().with_context(named)?);
        Ok(())
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
}
