//! Check of privileges.

use crate::SwapError;

/// Checks that the process runs as root.
///
/// # Errors
/// [`SwapError::NotRoot`].
pub fn require_root() -> Result<(), SwapError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(SwapError::NotRoot) }
}
