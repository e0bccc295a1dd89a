//! What a connection owns at the driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use venice_service::ConnectionId;

use super::gates::Gate;
use crate::cuda::library::{Library, call};

/// Longest sequences of a connection, in bytes of commands.
const MAX_SEQUENCE_BYTES: usize = 64 << 20;

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
#[derive(Default)]
pub(super) struct Objects {
    pub(super) streams: BTreeMap<u64, usize>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) modules: BTreeMap<u64, usize>,
    pub(super) gates: BTreeMap<u64, Arc<Gate>>,
    /// Encoded commands of sequences.
    sequences: BTreeMap<u64, Arc<Vec<u8>>>,
    sequence_bytes: usize,
    memory: BTreeMap<u64, u64>,
    memory_bytes: u64,
    /// Module and length of global variables that were asked for.
    globals: BTreeMap<u64, (u64, u64)>,
}

impl Objects {
    /// Returns the number of objects that cost memory of the host.
    pub(super) fn count(&self) -> usize {
        let others = self.gates.len() + self.sequences.len();
        self.streams.len() + self.events.len() + self.modules.len() + others
    }

    /// Returns the commands of a sequence.
    pub(super) fn sequence(&self, id: u64) -> Option<Arc<Vec<u8>>> {
        self.sequences.get(&id).cloned()
    }

    /// Forgets a sequence; false if there is none.
    pub(super) fn remove_sequence(&mut self, id: u64) -> bool {
        let Some(former) = self.sequences.remove(&id) else { return false };
        self.sequence_bytes -= former.len();
        true
    }

    /// Adds commands to a sequence; false if all of them are too long.
    pub(super) fn add_to_sequence(&mut self, id: u64, commands: &[u8]) -> bool {
        if self.sequence_bytes + commands.len() > MAX_SEQUENCE_BYTES {
            return false;
        }
        self.sequence_bytes += commands.len();
        let its = self.sequences.entry(id).or_default();
        Arc::make_mut(its).extend_from_slice(commands);
        true
    }

    /// Returns the bytes of memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Adds memory.
    pub(super) fn add_memory(&mut self, address: u64, bytes: u64) {
        self.memory_bytes += bytes;
        self.memory.insert(address, bytes);
    }

    /// Takes memory out; false if there is none at the address.
    pub(super) fn remove_memory(&mut self, address: u64) -> bool {
        let Some(bytes) = self.memory.remove(&address) else { return false };
        self.memory_bytes -= bytes;
        true
    }

    /// Adds a global variable of a module.
    pub(super) fn add_global(&mut self, address: u64, module: u64, bytes: u64) {
        self.globals.insert(address, (module, bytes));
    }

    /// Forgets the variables of a module.
    pub(super) fn remove_globals_of(&mut self, module: u64) {
        self.globals.retain(|_, (of, _)| *of != module);
    }

    /// True if bytes are memory of the device that the connection owns: no other address is given to
    /// the driver, to which addresses of the host are as good.
    pub(super) fn owns(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let fits = |(start, len): (&u64, u64)| end - start <= len;
        self.memory.range(..=address).next_back().is_some_and(|(at, len)| fits((at, *len)))
            || self.globals.range(..=address).next_back().is_some_and(|(at, it)| fits((at, it.1)))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_owned_whole() {
        let mut objects = Objects::default();
        objects.add_memory(4096, 100);
        objects.add_memory(8192, 8);
        objects.add_global(8200, 1, 4);
        assert!(objects.owns(4096, 100) && objects.owns(4195, 1));
        for (address, bytes) in [(4095, 2), (4096, 101), (4196, 1), (4100, u64::MAX), (u64::MAX, 1)]
        {
            assert!(!objects.owns(address, bytes), "{address} {bytes}");
        }
        assert!(!objects.owns(8192, 12), "two neighbours are not one");
        assert!(objects.owns(8200, 4));
        objects.remove_globals_of(1);
        assert!(!objects.owns(8200, 4));
        assert!(objects.remove_memory(4096) && !objects.remove_memory(4096));
        assert_eq!(objects.memory_bytes(), 8);
    }

    #[test]
    fn sequences_are_bounded() {
        let mut objects = Objects::default();
        let half = vec![0; MAX_SEQUENCE_BYTES / 2];
        assert!(objects.add_to_sequence(1, &half) && objects.add_to_sequence(1, &half));
        assert!(!objects.add_to_sequence(2, &[1]));
        assert!(objects.remove_sequence(1) && objects.add_to_sequence(2, &[1]));
        assert_eq!(objects.count(), 1);
    }
}
