//! What a connection owns at the driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use venice_service::ConnectionId;

use crate::cuda::library::{Library, call};

/// An event of the driver, destroyed when nothing uses it any more.
#[derive(Debug)]
pub(super) struct OwnedEvent {
    pub(super) raw: usize,
    library: &'static Library,
}

impl OwnedEvent {
    pub(super) fn new(library: &'static Library, raw: usize) -> Arc<Self> {
        Arc::new(Self { raw, library })
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        let _ = call!(self.library, cuEventDestroy_v2(self.raw));
    }
}

/// An event of a connection.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) owned: Arc<OwnedEvent>,
    /// Stream that recorded it last.
    pub(super) stream: u64,
}

/// A kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) connection: ConnectionId,
    pub(super) module: u64,
    pub(super) raw: usize,
    /// Bytes of its parameters.
    pub(super) bytes: usize,
}

/// Objects by their ids, and memory by its addresses.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) streams: BTreeMap<u64, usize>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) modules: BTreeMap<u64, usize>,
    pub(super) memory: BTreeMap<u64, u64>,
}

impl Objects {
    /// Gives all back to the driver.
    pub(super) fn release_all(self, library: &Library) {
        for stream in self.streams.into_values() {
            let _ = call!(library, cuStreamDestroy_v2(stream));
        }
        for module in self.modules.into_values() {
            let _ = call!(library, cuModuleUnload(module));
        }
        for address in self.memory.into_keys() {
            let _ = call!(library, cuMemFree_v2(address));
        }
    }
}
