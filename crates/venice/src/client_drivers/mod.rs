//! Client drivers of services: libraries through which an unchanged program uses a granted device.

mod vendors;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::Context;
use venice_accel::opencl;
use venice_wire::GrantId;

use crate::granted::GrantedRow;
use crate::library::{self, Library};
use crate::run::MeetingPlace;

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
}

/// All of them.
const CLIENT_DRIVERS: [ClientDriver; 1] = [ClientDriver {
    service: opencl::SERVICE,
    library: library::OPENCL,
    install: vendors::install,
    reports_loss: true,
}];

/// The client drivers that a program gets with its grants. Their files are removed when this is
/// dropped; those of a killed process are removed by the next run.
#[derive(Debug, Default)]
pub struct Installed {
    variables: Variables,
    reported: BTreeSet<GrantId>,
    place: Option<(MeetingPlace, OwnedFd)>,
}

impl Installed {
    /// Installs the drivers of the grants' services.
    ///
    /// # Errors
    /// Fails if a library is missing, or its files cannot be written.
    pub fn of(rows: &[GrantedRow]) -> anyhow::Result<Self> {
        let mut installed = Self::default();
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
                installed.reported.extend(grants);
            }
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

    /// True if the program itself learns the loss of a grant, and goes on.
    pub fn reports_loss_of(&self, grant: GrantId) -> bool {
        self.reported.contains(&grant)
    }
}
