//! `venice_service`.

use venice_client::{Error, ServiceClient};

use crate::arguments::{give, handle, items, place, room, take, timeout};
use crate::device::DeviceHandle;
use crate::status::{Status, status_of};

/// A connection to a device's service.
#[derive(Debug)]
pub struct ServiceHandle {
    client: ServiceClient,
    calls: u64,
}

impl ServiceHandle {
    pub(crate) fn new(client: ServiceClient) -> Self {
        Self { client, calls: 0 }
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_open_service(
    device: *const DeviceHandle,
    timeout_ms: i64,
    service: *mut *mut ServiceHandle,
) -> Status {
    let open = || {
        // SAFETY: guaranteed by the caller.
        let got = unsafe { handle(device, "device") }?;
        Ok(ServiceHandle::new(got.device.open_service(timeout(timeout_ms)?)?))
    };
    // SAFETY: guaranteed by the caller.
    status_of(unsafe { give(service, open) })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_call_service(
    service: *mut ServiceHandle,
    operation: u16,
    request: *const u8,
    request_bytes: usize,
    answer: *mut u8,
    answer_bytes: *mut usize,
    code: *mut u16,
) -> Status {
    let call = || {
        // SAFETY: guaranteed by the caller, for all of them.
        let (service, request, answer_bytes, code) = unsafe {
            let service = place(service, "service")?;
            let request = items(request, request_bytes, "request")?;
            (service, request, place(answer_bytes, "answer_bytes")?, place(code, "code")?)
        };
        // SAFETY: guaranteed by the caller.
        let to = unsafe { room(answer, *answer_bytes, "answer") }?;
        service.calls += 1;
        let (said, payload) = service.client.call(service.calls, operation, request)?;
        (*code, *answer_bytes) = (said, payload.len());
        let short = || Error::Invalid(format!("an answer of {} bytes: no room", payload.len()));
        to.get_mut(..payload.len()).ok_or_else(short)?.copy_from_slice(&payload);
        Ok(())
    };
    status_of(call())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_close_service(service: *mut ServiceHandle) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(service) });
}
