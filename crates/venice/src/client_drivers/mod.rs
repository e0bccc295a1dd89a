//! Client sides of services: how a program uses a granted device, for unchanged ones by a library.

mod vendors;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use venice_accel::{mailbox, opencl};
use venice_wire::GrantId;

use crate::granted::GrantedRow;
use crate::library::{self, Library};
use crate::run::MeetingPlace;

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
}

/// Services that have one. A program without it knows nothing of the loss of its device.
const CLIENT_SIDES: [ClientSide; 2] = [
    ClientSide {
        service: opencl::SERVICE,
        driver: Some((library::OPENCL, vendors::install)),
        reports_loss: true,
    },
    ClientSide { service: mailbox::NAME, driver: None, reports_loss: true },
];

/// The client drivers that a program gets with its grants. Their files are removed when this is
/// dropped; those of a killed process are removed by the next run.
#[derive(Debug, Default)]
pub struct Installed {
    variables: Variables,
    /// Grants of which the program learns the loss itself, with words for messages.
    reported: BTreeMap<GrantId, String>,
    place: Option<(MeetingPlace, OwnedFd)>,
    /// Directory in which drivers note losses.
    losses: Option<PathBuf>,
}

impl Installed {
    /// Installs the drivers of the grants' services.
    ///
    /// # Errors
    /// Fails if a library is missing, or its files cannot be written.
    pub fn of(rows: &[GrantedRow]) -> anyhow::Result<Self> {
        let mut installed = Self::default();
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
            }
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
            std::fs::create_dir_all(&losses)?;
            std::fs::create_dir(&dir)?;
            install(&found, &dir)
        };
        let named = || format!("installing the {} in {}", library.name, dir.display());
        self.variables.extend(installed().with_context(named)?);
        self.variables.push((opencl::losses::VARIABLE, losses.clone().into()));
        self.losses = Some(losses);
        Ok(())
    }

    /// Returns the variables of the program's environment.
    pub fn variables(&self) -> &[(&'static str, OsString)] {
        &self.variables
    }

    /// True if the program itself learns the loss of a grant, and goes on.
    pub fn reports_loss_of(&self, grant: GrantId) -> bool {
        self.reported.contains_key(&grant)
    }

    /// Returns the losses that drivers have noticed: grant, and a line for the user.
    pub fn noticed(&self) -> Vec<(GrantId, String)> {
        let noted = self.losses.as_deref().map(opencl::losses::noted).unwrap_or_default();
        let line = |(grant, why): (GrantId, String)| {
            Some((grant, format!("{}: {why}", self.reported.get(&grant)?)))
        };
        noted.into_iter().filter_map(line).collect()
    }
}
