//! Services of the devices that a program was started with.

use venice_control::ServiceAccess;

use crate::Error;

/// Variable in which `venice get` and `venice run --with` describe the services of the grants.
const VARIABLE: &str = "VENICE_GRANT_ENDPOINTS";

/// Returns the services of the grants that this program was started with by `venice get` or
/// `venice run`, in the order of the wants; `None` for one without a service.
///
/// ```no_run
/// use venice_client::{ServiceClient, granted_services};
///
/// let access = granted_services()?.into_iter().flatten().next().expect("an accelerator");
/// let mut client = ServiceClient::open(&access, None)?;
/// let (_status, answer) = client.call(1, 1, b"far away")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Invalid`]: the program was not started so.
pub fn granted_services() -> Result<Vec<Option<ServiceAccess>>, Error> {
    let text = std::env::var(VARIABLE).map_err(|_| {
        Error::Invalid(format!("{VARIABLE} is not set: start the program by `venice get WANT --`"))
    })?;
    serde_json::from_str(&text).map_err(|error| Error::Invalid(format!("{VARIABLE}: {error}")))
}
