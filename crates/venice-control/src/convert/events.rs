//! Events, and the requests for them.

use super::event_row_out;
use crate::convert::event_row_in;
use crate::proto;
use venice_rack::event::{EventBatch, EventFilter, EventPosition, EventRequest};

pub(crate) fn event_request_out(request: EventRequest) -> proto::WatchEventsRequest {
    let EventRequest { filter, after, only_new, follow } = request;
    let EventFilter { node, user, kinds, since_ms } = filter;
    let after = after.map(position_out);
    proto::WatchEventsRequest { after, only_new, follow, node, user, kinds, since_ms }
}

pub(crate) fn event_request_in(request: proto::WatchEventsRequest) -> EventRequest {
    let proto::WatchEventsRequest { after, only_new, follow, node, user, kinds, since_ms } =
        request;
    let filter = EventFilter { node, user, kinds, since_ms };
    EventRequest { filter, after: after.map(position_in), only_new, follow }
}

pub(crate) fn event_batch_out(batch: EventBatch) -> proto::WatchEventsResponse {
    let EventBatch { rows, position, missed } = batch;
    let events = rows.into_iter().map(event_row_out).collect();
    proto::WatchEventsResponse { events, position: Some(position_out(position)), missed }
}

pub(crate) fn event_batch_in(batch: proto::WatchEventsResponse) -> EventBatch {
    let proto::WatchEventsResponse { events, position, missed } = batch;
    let rows = events.into_iter().map(event_row_in).collect();
    EventBatch { rows, position: position.map(position_in).unwrap_or_default(), missed }
}

fn position_out(EventPosition { list, number }: EventPosition) -> proto::EventPosition {
    proto::EventPosition { list, number }
}

fn position_in(proto::EventPosition { list, number }: proto::EventPosition) -> EventPosition {
    EventPosition { list, number }
}
