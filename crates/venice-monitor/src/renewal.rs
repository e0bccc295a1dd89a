//! The Monitor Node's own certificate, which it signs itself: a new one long before the old one ends.

use std::sync::Arc;
use std::time::Duration;
use venice_control::Caller;
use venice_control::identity::{Authority, Holder};

/// How often the time of day is looked at: it may jump.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Renews for ever.
pub(crate) async fn keep(holder: Holder, authority: Arc<Authority>) {
    loop {
        tokio::time::sleep(holder.info().renew_in().min(LOOK_EVERY)).await;
        if !holder.info().renew_in().is_zero() {
            continue;
        }
        let renewed = authority.credential(&Caller::Monitor).and_then(|next| holder.replace(next));
        match renewed {
            Ok(()) => tracing::info!("this Monitor Node has a new certificate"),
            Err(error) => {
                tracing::error!(%error, "no new certificate for this Monitor Node; trying again");
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        }
    }
}
