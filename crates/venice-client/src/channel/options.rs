//! Options of listeners, connections and regions.

use std::time::Duration;

use venice_ports::qpair::EndConfig;

use super::{Address, Error, Key};

/// Options of an end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Secret of both ends. Required over udp unless `plain` is set. Over verbs it admits the other
    /// side, but seals nothing. Over shm the mode of the socket's file, 0660, decides who may
    /// connect.
    pub key: Option<Key>,
    /// Allows traffic that any host on the route can read and forge: udp without a key, and verbs.
    pub plain: bool,
    /// Bytes that may wait at each end in each direction, 4 KiB to 16 MiB, rounded up to a power of
    /// two; twice as much is allocated. Over udp it bounds the length of a message.
    pub buffer_bytes: u32,
    /// Longest time to connect.
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: None,
            plain: false,
            buffer_bytes: 256 << 10,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// Checks that the traffic over `address` is protected, or need not be.
    pub(super) fn check_protection(&self, address: &Address) -> Result<(), Error> {
        let can = address.capabilities();
        let is_sealed = can.encrypts && self.key.is_some();
        if !can.leaves_machine || is_sealed || self.plain {
            return Ok(());
        }
        Err(Error::Unprotected { address: address.to_string(), seals: can.encrypts })
    }

    /// Returns the key under which datagrams are sealed, if they are.
    pub(super) fn seal(&self) -> Option<Key> {
        self.key
    }

    pub(super) fn end(&self) -> EndConfig {
        let bytes = self.buffer_bytes;
        EndConfig { send_bytes: bytes, recv_bytes: bytes, ..EndConfig::default() }
    }
}
