//! Requests that wait in the queue.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use venice_recipient::{AllocationSpec, MemorySpec, RecipientError, Waiting, allocate};
use venice_wire::SLAB_BYTES;

use crate::common::{Rack, eventually};

/// Returns a request for one slab that waits.
fn spec() -> AllocationSpec {
    let memory =
        MemorySpec { remote_bytes: Some(SLAB_BYTES), copies: Some(1), ..MemorySpec::default() };
    let waiting = Waiting { at_most: Duration::from_secs(60), ..Waiting::default() };
    AllocationSpec { waiting, ..AllocationSpec::of_memory(memory) }
}

/// Each request before the last may have been granted, after its answer or by another Monitor Node.
#[test]
fn lease_counts_from_first_request() {
    let (rack, mut queued) = (Rack::start(1, 1), None);
    let first = allocate(&rack.access(), &spec(), &mut |_| ControlFlow::Continue(()));
    let mut first = Some(first.unwrap());
    let loan = allocate(&rack.access(), &spec(), &mut |standing| {
        if standing.is_some() && queued.is_none() {
            queued = Some(Instant::now());
            let loan = first.take();
            std::thread::spawn(move || drop(loan));
        }
        ControlFlow::Continue(())
    });
    assert!(loan.unwrap().asked < queued.expect("it was queued"));
}

#[test]
fn cancelled_wait_allocates_nothing() {
    let rack = Rack::start(1, 1);
    let first = allocate(&rack.access(), &spec(), &mut |_| ControlFlow::Continue(()));
    let cancelled = allocate(&rack.access(), &spec(), &mut |standing| match standing {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    });
    assert!(matches!(cancelled, Err(RecipientError::WaitCancelled)));
    drop(first);
    eventually("all is free", || rack.free_bytes() == SLAB_BYTES);
}
