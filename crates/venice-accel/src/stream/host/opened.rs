//! Requests whose payload may lie in the region.

use std::borrow::Cow;

use crate::stream::wire::{Blob, LongRequest, decode, opcode};

/// Opcode and payload of a request, wherever the payload lay.
pub(crate) struct Opened<'a> {
    pub(crate) code: u16,
    pub(crate) payload: Cow<'a, [u8]>,
    /// True if it lay in the region: then commands are answered at once.
    pub(crate) is_long: bool,
}

impl<'a> Opened<'a> {
    /// Opens a request; `copy` copies a blob of its connection. `None`: it is malformed.
    pub(crate) fn of(
        code: u16,
        payload: &'a [u8],
        copy: impl FnOnce(&Blob<'_>) -> Option<Vec<u8>>,
    ) -> Option<Self> {
        if code != opcode::LONG {
            return Some(Self { code, payload: Cow::Borrowed(payload), is_long: false });
        }
        let LongRequest { code, place } = decode(payload).ok()?;
        let payload = copy(&Blob::Region { place })?;
        let opened = Self { code, payload: Cow::Owned(payload), is_long: true };
        (code != opcode::LONG).then_some(opened)
    }
}
