//! `venice_transfer`, `venice_claim` and `venice_claimed`.

use std::ffi::{CString, c_char};
use std::time::Duration;

use venice_client::{Claimed, Error, Grant, Rack, Transfer, TransferState};

use crate::arguments::{give, handle, items, take, text, timeout};
use crate::device::{Texts, c_text};
use crate::service::ServiceHandle;
use crate::status::{Status, status_of};

/// Time to claim, unless given.
const CLAIM_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of a transfer's number with its terminating zero.
const NUMBER_BYTES: usize = 33;

/// `venice_transferred` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct Row {
    grant: u64,
    successor: u64,
    state: u32,
}

/// Claimed grants, and their texts for C.
#[derive(Debug)]
pub struct ClaimedHandle {
    claimed: Claimed,
    texts: Vec<(CString, Texts)>,
}

impl ClaimedHandle {
    fn new(claimed: Claimed) -> Self {
        let grants = claimed.grants().iter().zip(claimed.services());
        let texts = grants.map(|(Grant { donor, share, .. }, service)| {
            let texts = Texts::new(donor, &share.address, &share.capabilities, service.as_ref());
            (c_text(share.kind.name()), texts)
        });
        Self { texts: texts.collect(), claimed }
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`]; `rows` has room for `count` rows, `number` for
/// `VENICE_TRANSFER_BYTES`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_transfer(
    rack: *const Rack,
    grants: *const u64,
    count: usize,
    to: *const c_char,
    claim_within_ms: u32,
    rows: *mut Row,
    number: *mut c_char,
) -> Status {
    let transfer = || {
        // SAFETY: guaranteed by the caller, for all of them.
        let (rack, grants, to) =
            unsafe { (handle(rack, "rack")?, items(grants, count, "grants")?, text(to, "to")?) };
        let to = to.unwrap_or_default().parse();
        let to = to.map_err(|error| Error::Invalid(format!("invalid new owner: {error}")))?;
        let within = match claim_within_ms {
            0 => CLAIM_WITHIN,
            within_ms => Duration::from_millis(within_ms.into()),
        };
        let made = rack.transfer(grants, to, within)?;
        // SAFETY: guaranteed by the caller.
        unsafe { store(&made, count, rows, number) };
        Ok(())
    };
    status_of(transfer())
}

/// Stores what was transferred, where a destination is given.
///
/// # Safety
/// `rows` is null or has room for `count` rows, `number` is null or has room for [`NUMBER_BYTES`].
unsafe fn store(made: &Transfer, count: usize, rows: *mut Row, number: *mut c_char) {
    for (at, it) in made.grants.iter().enumerate().take(if rows.is_null() { 0 } else { count }) {
        let state = match it.state {
            TransferState::Done => 1,
            TransferState::Pending => 2,
            TransferState::Gone => 3,
        };
        let row = Row { grant: it.from.0, successor: it.to.0, state };
        // SAFETY: guaranteed by the caller.
        unsafe { rows.add(at).write(row) };
    }
    let text = c_text(&made.number_text());
    let bytes = text.as_bytes_with_nul();
    assert_eq!(bytes.len(), NUMBER_BYTES, "a number has 32 digits");
    if !number.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { number.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), NUMBER_BYTES) };
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claim(
    rack: *const Rack,
    transfer: *const c_char,
    wait_ms: u32,
    claimed: *mut *mut ClaimedHandle,
) -> Status {
    let mut is_nothing = false;
    let claim = || {
        // SAFETY: guaranteed by the caller.
        let (rack, number) = unsafe { (handle(rack, "rack")?, text(transfer, "transfer")?) };
        let number = number.map(Transfer::parse_number).transpose().map_err(Error::Invalid)?;
        let came = rack.claim(number, Duration::from_millis(wait_ms.into()))?;
        is_nothing = came.is_none();
        let nothing = || Error::Refused("nothing was transferred to this user".into());
        came.map(ClaimedHandle::new).ok_or_else(nothing)
    };
    // SAFETY: guaranteed by the caller.
    let status = status_of(unsafe { give(claimed, claim) });
    if is_nothing { Status::NotFound } else { status }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_free_claimed(claimed: *mut ClaimedHandle) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(claimed) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_is_whole(claimed: *const ClaimedHandle) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { claimed.as_ref() }.is_some_and(|it| it.claimed.is_whole())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_count(claimed: *const ClaimedHandle) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { claimed.as_ref() }.map_or(0, |it| it.texts.len())
}

/// Returns a grant; `None` without it.
///
/// # Safety
/// The requirements of [`crate::arguments`].
unsafe fn grant<'a>(claimed: *const ClaimedHandle, index: usize) -> Option<&'a Grant> {
    // SAFETY: guaranteed by the caller.
    unsafe { claimed.as_ref() }?.claimed.grants().get(index)
}

/// Returns a text of a grant; "" without it.
///
/// # Safety
/// The requirements of [`crate::arguments`].
unsafe fn text_of(
    claimed: *const ClaimedHandle,
    index: usize,
    text: impl FnOnce(&(CString, Texts)) -> &CString,
) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    let texts = unsafe { claimed.as_ref() }.and_then(|it| it.texts.get(index));
    texts.map_or(c"".as_ptr(), |texts| text(texts).as_ptr())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_grant(claimed: *const ClaimedHandle, index: usize) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { grant(claimed, index) }.map_or(0, |grant| grant.id.0)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_bytes(claimed: *const ClaimedHandle, index: usize) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { grant(claimed, index) }.map_or(0, |grant| grant.share.bytes)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_kind(
    claimed: *const ClaimedHandle,
    index: usize,
) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { text_of(claimed, index, |(kind, _)| kind) }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_node(
    claimed: *const ClaimedHandle,
    index: usize,
) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { text_of(claimed, index, |(_, texts)| &texts.node) }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_address(
    claimed: *const ClaimedHandle,
    index: usize,
) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { text_of(claimed, index, |(_, texts)| &texts.address) }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_capabilities(
    claimed: *const ClaimedHandle,
    index: usize,
) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { text_of(claimed, index, |(_, texts)| &texts.capabilities) }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_claimed_service(
    claimed: *const ClaimedHandle,
    index: usize,
) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { text_of(claimed, index, |(_, texts)| &texts.service) }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_open_claimed_service(
    claimed: *const ClaimedHandle,
    index: usize,
    timeout_ms: i64,
    service: *mut *mut ServiceHandle,
) -> Status {
    let open = || {
        // SAFETY: guaranteed by the caller.
        let held = unsafe { handle(claimed, "claimed") }?;
        Ok(ServiceHandle::new(held.claimed.open_service(index, timeout(timeout_ms)?)?))
    };
    // SAFETY: guaranteed by the caller.
    status_of(unsafe { give(service, open) })
}
