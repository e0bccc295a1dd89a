//! Tables of functions that NVIDIA's own libraries ask the driver for, by UUID. They are not
//! documented, so none is served ([0091](../../../docs/decisions/0091-cuda-by-the-driver-api.md)).

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use crate::call::*;

/// Tables that were refused: each is told once.
static REFUSED: Mutex<BTreeSet<u128>> = Mutex::new(BTreeSet::new());

/// Returns the text of a UUID.
fn text_of(id: u128) -> String {
    let hex = format!("{id:032x}");
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

exported! {
    fn cuGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) {
        if id.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program passes a UUID.
        let id = u128::from_be_bytes(unsafe { *id });
        if REFUSED.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
            let id = text_of(id);
            crate::names::say(&format!("cuGetExportTable({id}), which the CUDA runtime asks for,"));
        }
        // SAFETY: the program passes room for a pointer.
        unsafe { put_if(table, std::ptr::null()) };
        Err(NOT_SUPPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_reads_as_bytes() {
        let bytes: [u8; 16] = std::array::from_fn(|at| at as u8);
        let text = text_of(u128::from_be_bytes(bytes));
        assert_eq!(text, "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
