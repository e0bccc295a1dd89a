//! Renewal of the Monitor Node's own certificate, long before the old one expires. The Monitor Node
//! signs it itself.

use std::sync::Arc;
use std::time::Duration;
use venice_control::Caller;
use venice_control::identity::{Authority, Holder};

/// Interval between two looks at the time of day, which may jump.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Renews the certificate for ever.
pub(crate) async fn keep(holder: Holder, authority: Arc<Authority>) {
    loop {
        tokio::time::sleep(holder.info().renew_in().min(LOOK_INTERVAL)).await;
        if !holder.info().renew_in().is_zero() {
            continue;
        }
        let renewed = authority.credential(&Caller::Monitor).and_then(|next| holder.replace(next));
        match renewed {
            Ok(()) => tracing::info!("renewed this Monitor Node's certificate"),
            Err(error) => {
                tracing::error!(%error, "cannot renew this Monitor Node's certificate; retrying");
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        }
    }
}
