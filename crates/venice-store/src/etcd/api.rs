//! Requests of etcd's API, and their construction.
#![allow(clippy::doc_markdown)]

use generated::compare::{CompareResult, CompareTarget, TargetUnion};
pub(super) use generated::event::EventType;
pub(super) use generated::kv_client::KvClient;
pub(super) use generated::lease_client::LeaseClient;
use generated::request_op::Request;
use generated::response_op::Response;
pub(super) use generated::watch_client::WatchClient;
pub(super) use generated::watch_request::RequestUnion;
use generated::{Compare, DeleteRangeRequest, PutRequest};
pub(super) use generated::{
    Event, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchProgressRequest,
    WatchRequest, WatchResponse,
};

mod generated {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("etcdserverpb");
}

/// Condition: the record was last changed at this revision; 0: it is absent.
pub(super) fn is_changed_at(key: Vec<u8>, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key,
        target_union: Some(TargetUnion::ModRevision(revision)),
    }
}

/// Condition: the record has that lease.
pub(super) fn ends_with(key: Vec<u8>, lease: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Lease.into(),
        key,
        target_union: Some(TargetUnion::Lease(lease)),
    }
}

/// Operation: reads one key.
pub(super) fn get(key: Vec<u8>) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key, ..RangeRequest::default() }))
}

/// Operation: writes one key; lease 0 means none.
pub(super) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest { key, value, lease }))
}

pub(super) fn delete(key: Vec<u8>) -> RequestOp {
    op(Request::RequestDeleteRange(DeleteRangeRequest { key }))
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Returns the records that the `get`s of a transaction found.
pub(super) fn found(answer: TxnResponse) -> Vec<KeyValue> {
    let ranges = answer.responses.into_iter().filter_map(|one| match one.response {
        Some(Response::ResponseRange(range)) => Some(range.kvs),
        _ => None,
    });
    ranges.flatten().collect()
}

/// Returns the store's revision in an answer.
pub(super) fn revision_of(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}
