//! Requests of accesses: first to the checkers, then to the fabric.

use venice_fabric::FabricError;

use super::desk::{Desk, Posted, What};
use crate::checkers::{Change, RegionId};
use crate::scenario::{Access, Kind, Workload};
use venice_simkernel::random::mix;

/// An access with the parameters of its request.
pub(super) struct Asking {
    pub access: Access,
    pub region: RegionId,
    pub lane: u32,
    pub token: u64,
    /// Its address in the window space.
    pub addr: u64,
}

/// Requests an access; returns its pending state, if it waits for a completion.
pub(super) fn ask(
    desk: &mut Desk<'_>,
    asking: &Asking,
    posted: &mut Vec<Posted>,
    workload: &Workload,
) -> Result<Option<What>, FabricError> {
    let Asking { region, lane, token, addr, .. } = *asking;
    let Access { kind, at, len, .. } = asking.access;
    let local_ns = desk.local_ns;
    let what = match kind {
        Kind::Message | Kind::Stream | Kind::Unmap => unreachable!("not an access of the fabric"),
        Kind::Read => {
            desk.initiator.read(local_ns, token, addr, len)?;
            What::Read { read: desk.oracle.ask_read(region, at, len, Some(lane)), lane }
        }
        Kind::BulkRead => {
            let buffer = vec![0; len as usize];
            let taken = desk.initiator.rdma_read(local_ns, token, addr, buffer);
            taken.map_err(|rejected| rejected.error)?;
            What::Read { read: desk.oracle.ask_read(region, at, len, None), lane }
        }
        Kind::Write | Kind::BulkWrite | Kind::Post => return ask_write(desk, asking, posted),
        Kind::FetchAdd | Kind::CompareSwap => {
            let word = (at - workload.counter_at(0)) / 8;
            What::Atomic { id: ask_atomic(desk, asking, word)?, lane }
        }
        Kind::Fence => {
            desk.initiator.fence(local_ns, token)?;
            What::Fence(std::mem::take(posted))
        }
    };
    Ok(Some(what))
}

fn ask_write(
    desk: &mut Desk<'_>,
    asking: &Asking,
    posted: &mut Vec<Posted>,
) -> Result<Option<What>, FabricError> {
    let Asking { region, lane, token, addr, .. } = *asking;
    let Access { kind, at, len, .. } = asking.access;
    let is_bulk = kind == Kind::BulkWrite;
    let (writing, bytes) = desk.oracle.ask_write(region, at, len, lane, is_bulk);
    let taken = match kind {
        Kind::Post => desk.initiator.post(desk.local_ns, addr, &bytes),
        Kind::Write => desk.initiator.write(desk.local_ns, token, addr, &bytes),
        _ => {
            let taken = desk.initiator.rdma_write(desk.local_ns, token, addr, bytes);
            taken.map_err(|rejected| rejected.error)
        }
    };
    match taken {
        Ok(()) if kind == Kind::Post => {
            desk.tally.succeeded(kind, len, 0);
            posted.push(Posted { region, writing });
            Ok(None)
        }
        Ok(()) => Ok(Some(What::Write(writing))),
        Err(error) => {
            desk.oracle.withdraw(region, writing);
            Err(error)
        }
    }
}

fn ask_atomic(
    desk: &mut Desk<'_>,
    asking: &Asking,
    word: u32,
) -> Result<crate::checkers::AtomicId, FabricError> {
    let Asking { region, lane, token, addr, .. } = *asking;
    let operand = mix(token ^ desk.now_ns.rotate_left(32) ^ u64::from(region.0) << 48);
    let change = match asking.access.kind {
        Kind::FetchAdd => Change::Add(operand),
        // Two in three find the expected value, if nothing has failed.
        _ if operand.is_multiple_of(3) => Change::Swap { expected: operand, new: !operand },
        _ => {
            let expected = desk.oracle.region(region).counters.expected(word);
            Change::Swap { expected, new: operand }
        }
    };
    match change {
        Change::Add(add) => desk.initiator.fetch_add(desk.local_ns, token, addr, add)?,
        Change::Swap { expected, new } => {
            desk.initiator.compare_swap(desk.local_ns, token, addr, expected, new)?;
        }
    }
    Ok(desk.oracle.ask_atomic(region, word, lane, change))
}
