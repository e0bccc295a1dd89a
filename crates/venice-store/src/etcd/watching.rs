//! Watches changes through one member, and continues through the next from the same revision.

use super::api::{
    Event, EventType, RequestUnion, WatchClient, WatchCreateRequest, WatchProgressRequest,
    WatchRequest, WatchResponse,
};
use super::members::{ANSWER_PATIENCE, Member, Members, within};
use super::{Keys, revision};
use crate::error::StoreError;
use crate::store::{Revision, StoreChange};
use crate::watch::Batch;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

type Watcher = mpsc::Sender<Result<Batch, StoreError>>;

const PAUSE: Duration = Duration::from_millis(100);
/// Interval of progress requests to a member, which distinguish a stopped member from an idle one:
/// a connection counts as dead after twice as long.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// End of a member's events.
enum End {
    /// The watcher is gone, or has received the final error.
    Over,
    /// The next member may continue.
    Broken(Status),
}

/// Sends the watcher the changes after `after`, as long as it exists. Without a member that answers
/// it waits for one.
pub(super) async fn watch(
    members: Arc<Members>,
    keys: Arc<Keys>,
    mut after: Revision,
    watcher: Watcher,
) {
    loop {
        let member = members.current();
        let told = tokio::select! {
            () = watcher.closed() => End::Over,
            told = watch_one(&member, &keys, &mut after, &watcher) => told,
        };
        match told {
            End::Over => return,
            End::Broken(why) => {
                tracing::debug!(%why, place = members.place(), "watches by another member");
                members.leave(&member);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn watch_one(member: &Member, keys: &Keys, after: &mut Revision, watcher: &Watcher) -> End {
    // The stream of events ends with the stream of requests.
    let (requests, wanted) = mpsc::channel(1);
    let mut answers = match ask(member, keys, *after, &requests, wanted).await {
        Ok(answers) => answers,
        Err(why) => return End::Broken(why),
    };
    let mut is_first = true;
    let (mut ask_at, mut heard_at) = (tokio::time::interval(ASK_EVERY), Instant::now());
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            _ = ask_at.tick() => {
                if heard_at.elapsed() > ANSWER_PATIENCE {
                    return End::Broken(Status::unavailable("the member does not answer"));
                }
                let request_union = Some(RequestUnion::ProgressRequest(WatchProgressRequest {}));
                // Without room the member has unread requests already.
                let _ = requests.try_send(WatchRequest { request_union });
                continue;
            }
        };
        heard_at = Instant::now();
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return End::Broken(Status::unavailable("the member ended the watch")),
            Err(why) => return End::Broken(why),
        };
        // A new store: the awaited revision may never come. A member that lags a little looks the
        // same; the cost is one load.
        let is_before = answer.header.as_ref().is_some_and(|it| revision(it.revision) < *after);
        let has_gone_back = std::mem::take(&mut is_first) && is_before;
        if has_gone_back || answer.compact_revision != 0 {
            let _ = watcher.send(Err(StoreError::Behind)).await;
            return End::Over;
        }
        if answer.canceled {
            return End::Broken(Status::unavailable(answer.cancel_reason));
        }
        for batch in batches(keys, answer) {
            *after = batch.revision;
            if !batch.changes.is_empty() && watcher.send(Ok(batch)).await.is_err() {
                return End::Over;
            }
        }
    }
}

async fn ask(
    member: &Member,
    keys: &Keys,
    after: Revision,
    requests: &mpsc::Sender<WatchRequest>,
    wanted: mpsc::Receiver<WatchRequest>,
) -> Result<Streaming<WatchResponse>, Status> {
    let (key, range_end) = keys.records();
    let start_revision = after.0.cast_signed() + 1;
    let create = WatchCreateRequest { key, range_end, start_revision };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The channel has room for one request.
    let _ = requests.try_send(request);
    let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(wanted));
    // A member without contact to the others returns an error instead of no events.
    request.metadata_mut().insert("hasleader", "true".parse().expect("plain text"));
    let mut client = WatchClient::new(member.channel.clone());
    within(async { client.watch(request).await.map(Response::into_inner) }).await
}

/// Splits an answer's events by transaction. etcd sends those of one transaction in one answer.
fn batches(keys: &Keys, answer: WatchResponse) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for event in answer.events {
        let is_put = event.r#type() == EventType::Put;
        let Event { kv: Some(kv), .. } = event else { continue };
        let revision = revision(kv.mod_revision);
        let Some(key) = keys.name(&kv.key) else { continue };
        let change = StoreChange { key, value: is_put.then_some(kv.value), lease: None };
        match batches.last_mut() {
            Some(batch) if batch.revision == revision => batch.changes.push(change),
            _ => batches.push(Batch { revision, changes: vec![change] }),
        }
    }
    batches
}
