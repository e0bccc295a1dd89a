//! Options of listeners, connections and regions.

use std::time::Duration;

use venice_ports::qpair::EndConfig;

use super::{Address, Error, Key};

const BUFFER_BYTES: u32 = 256 << 10;
const LEAST_BUFFER_BYTES: u32 = 4 << 10;
const MOST_BUFFER_BYTES: u32 = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// two; twice as much is allocated. Over udp it bounds the length of a message. Of messages and
    /// streams only: another value than 256 KiB, the default, is refused for adaptive streams,
    /// which size their buffers, and for memory.
    pub buffer_bytes: u32,
    /// Longest time to connect. A silent host is given up after two seconds over udp. Of the
    /// connecting end only: another value than ten seconds, the default, is refused by ends that
    /// listen or lend.
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: None,
            plain: false,
            buffer_bytes: BUFFER_BYTES,
            connect_timeout: CONNECT_TIMEOUT,
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

    /// Checks the length of buffers.
    pub(super) fn check_buffer(&self) -> Result<(), Error> {
        match self.buffer_bytes {
            LEAST_BUFFER_BYTES..=MOST_BUFFER_BYTES => Ok(()),
            bytes => Err(Error::Size {
                what: "buffer",
                len_bytes: bytes.into(),
                bounds: "use 4 KiB to 16 MiB",
            }),
        }
    }

    /// Checks that no length of buffers is given for `what`, which has none of that length.
    pub(super) fn check_no_buffer(&self, what: &'static str) -> Result<(), Error> {
        let is_given = self.buffer_bytes != BUFFER_BYTES;
        let option = "buffer";
        if is_given { Err(Error::UnusedOption { option, what }) } else { Ok(()) }
    }

    /// Checks that no time to connect is given for `what`, which connects to nothing.
    pub(super) fn check_no_timeout(&self, what: &'static str) -> Result<(), Error> {
        let is_given = self.connect_timeout != CONNECT_TIMEOUT;
        let option = "connect_timeout";
        if is_given { Err(Error::UnusedOption { option, what }) } else { Ok(()) }
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
