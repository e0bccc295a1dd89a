//! The end of a driver that is told to stop: what has been begun is brought to its end.
//!
//! What was asked before it is done by then but for what donors have to say to it: they are heard, for as
//! long as they take to answer, so that nothing is left half granted or half given back. Whoever waits
//! then, for room or for a donor that hangs, has its reply dropped, which says that the Monitor Node stops.

use super::Driver;
use crate::error::MonitorError;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long donors are heard.
const HEARD_FOR: Duration = Duration::from_secs(2);

impl Driver {
    /// Hears what was asked of donors, and does what comes of that.
    pub(super) async fn finish(mut self) -> Result<(), MonitorError> {
        let until = Instant::now() + HEARD_FOR;
        while let Ok(Some(done)) = timeout_at(until, self.calls.join_next()).await {
            self.hear(done.map_err(MonitorError::Driver)?);
            self.perform_all().await?;
        }
        Ok(())
    }
}
