//! The audit log: every administrative act, with its caller and its outcome, under the target
//! `audit`.

use std::fmt::Display;
use tonic::Status;
use venice_rack::caller::Caller;

/// Target of the audit log.
pub(super) const AUDIT: &str = "audit";

/// Logs an act of `by` and its outcome. `what` names the subject and the amount; it is checked text,
/// or quoted by its caller.
pub(super) fn audit<T>(
    by: &Caller,
    act: &'static str,
    what: impl Display,
    outcome: &Result<T, Status>,
) {
    match outcome {
        Ok(_) => tracing::info!(target: AUDIT, %by, act, %what, "done"),
        Err(why) => {
            tracing::warn!(target: AUDIT, %by, act, %what, why = ?why.message(), "refused");
        }
    }
}
