//! The end of a driver after a stop request.
//!
//! Calls accepted before the stop are complete by then, except for donors' answers. The driver
//! waits for these within a limit, so that no grant is left half made or half released. Replies
//! that remain after that (a request in the queue, a donor that hangs) are dropped; the caller sees
//! that the Monitor Node stops.

use super::Driver;
use crate::error::MonitorError;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Limit for the donors' last answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

impl Driver {
    /// Waits for outstanding donor calls and performs the actions that follow.
    pub(super) async fn finish(mut self) -> Result<(), MonitorError> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        while let Ok(Some(done)) = timeout_at(until, self.calls.join_next()).await {
            self.handle_returned(done.map_err(MonitorError::Driver)?);
            self.perform_all().await?;
        }
        Ok(())
    }
}
