//! Who may.

use crate::SwapError;

/// # Errors
/// When this user may not set up swap.
pub fn require_root() -> Result<(), SwapError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(SwapError::NotRoot) }
}
