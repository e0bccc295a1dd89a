//! The call by which users watch the rack's events.

use super::monitor_handler::MonitorHandler;
use super::peer_identity::{Peer, peer};
use super::tls_server::TlsServer;
use crate::convert;
use crate::error::rack_status;
use crate::proto::{WatchEventsRequest, WatchEventsResponse};
use futures_util::stream::try_unfold;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Status};
use venice_rack::caller::{Caller, Owner};
use venice_rack::counts::Counts;
use venice_rack::event::{EventBatch, EventPosition, EventRequest, EventRow};
use venice_rack::types::RackError;

/// Open calls of one user, and in all. Each reads at its own pace from the events kept, so that it
/// costs no memory but that of its connection.
const WATCHES_OF_USER: usize = 16;
const WATCHES: usize = 1024;

/// Stream of batches.
pub(super) type Events = Pin<Box<dyn Stream<Item = Result<WatchEventsResponse, Status>> + Send>>;

/// The open calls.
#[derive(Debug, Default)]
pub(super) struct Watches {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    of_user: Counts<Owner>,
}

impl Watches {
    fn enter(self: &Arc<Self>, caller: &Caller) -> Result<Watching, RackError> {
        let owner = match caller {
            Caller::User(user) if !user.is_admin => Some(Owner::from(user.clone())),
            Caller::User(_) | Caller::Node(_) | Caller::Monitor => None,
        };
        let mut open = self.lock();
        let theirs = owner.as_ref().map_or(0, |owner| open.of_user.of(owner));
        if theirs >= WATCHES_OF_USER || (owner.is_some() && open.all >= WATCHES) {
            return Err(RackError::TooMany(format!(
                "{caller} watches events {theirs} times, and {} watch them in all, as many as may: \
                 end some of them",
                open.all
            )));
        }
        open.all += 1;
        owner.iter().for_each(|owner| open.of_user.add(owner.clone()));
        Ok(Watching { watches: Arc::clone(self), owner })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open call's place within the bounds.
struct Watching {
    watches: Arc<Watches>,
    owner: Option<Owner>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut open = self.watches.lock();
        open.all -= 1;
        self.owner.iter().for_each(|owner| open.of_user.remove(owner));
    }
}

/// An open watch.
struct Watch<H> {
    handler: Arc<H>,
    tls: Arc<TlsServer>,
    /// Its sender is dropped when serving ends.
    serving: watch::Receiver<()>,
    _place: Watching,
    peer: Peer,
    request: EventRequest,
    position: EventPosition,
    is_first: bool,
    /// Events that were no longer kept, not told yet.
    missed: u64,
}

/// Returns the stream of events for a caller.
///
/// # Errors
/// Fails if the caller is not admitted, or watches too often.
pub(super) async fn watch_events<H: MonitorHandler>(
    handler: Arc<H>,
    (tls, serving): (Arc<TlsServer>, watch::Receiver<()>),
    watches: &Arc<Watches>,
    request: Request<WatchEventsRequest>,
) -> Result<Events, Status> {
    let caller = tls.admit(&request)?;
    let place = watches.enter(&caller).map_err(|error| {
        tls.refuse_too_many(&caller, "too many watches of events");
        rack_status(&error)
    })?;
    let peer = peer(&request);
    let request = convert::event_request_in(request.into_inner());
    let position = match (request.only_new, request.after) {
        (true, _) => handler.events_end().await,
        (false, after) => after.unwrap_or_default(),
    };
    let (is_first, missed) = (true, 0);
    let watch =
        Watch { handler, tls, serving, _place: place, peer, request, position, is_first, missed };
    Ok(Box::pin(try_unfold(watch, |mut watch| async move {
        let next = watch.next().await?;
        Ok(next.map(|batch| (convert::event_batch_out(batch), watch)))
    })))
}

impl<H: MonitorHandler> Watch<H> {
    /// Returns the next batch for the reader; `None` at the end.
    async fn next(&mut self) -> Result<Option<EventBatch>, Status> {
        loop {
            let wait = self.request.follow && !self.is_first;
            let mut batch = tokio::select! {
                batch = self.handler.events_after(self.position, wait) => batch,
                _ = self.serving.changed() => return Err(rack_status(&RackError::Stopping)),
            };
            // The peer may have been revoked since the last batch.
            let caller = self.tls.admit_peer(&self.peer)?;
            let is_over = batch.rows.is_empty() && !self.request.follow && !self.is_first;
            if is_over {
                return Ok(None);
            }
            self.position = batch.position;
            // A reader without a position has missed nothing.
            if self.request.after.is_some() || !self.is_first {
                self.missed += batch.missed;
            }
            let wanted =
                |row: &EventRow| row.is_visible_to(&caller) && self.request.filter.matches(row);
            batch.rows.retain(wanted);
            let is_told = std::mem::replace(&mut self.is_first, false);
            if is_told || !batch.rows.is_empty() || self.missed > 0 {
                let missed = std::mem::take(&mut self.missed);
                return Ok(Some(EventBatch { missed, ..batch }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_rack::caller::User;

    #[test]
    fn watches_of_user_are_bounded() {
        let watches = Arc::new(Watches::default());
        let user = |name: &str, is_admin| {
            Caller::User(User { node: "n".into(), uid: 1, name: name.into(), is_admin })
        };
        let ada: Vec<_> = (0..20).filter_map(|_| watches.enter(&user("ada", false)).ok()).collect();
        assert_eq!(ada.len(), WATCHES_OF_USER);
        let others: Vec<_> = (0..2 * WATCHES)
            .filter_map(|n| watches.enter(&user(&format!("u{n}"), false)).ok())
            .collect();
        assert_eq!(others.len(), WATCHES - WATCHES_OF_USER);
        assert!(watches.enter(&user("root", true)).is_ok());
        drop((ada, others));
        let open = watches.lock();
        assert!(open.all == 0 && open.of_user.is_empty());
    }
}
