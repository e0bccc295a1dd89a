//! The sending side of protection.

use ring::aead::{Aad, LessSafeKey, Nonce};
use venice_wire::{
    KeyName, SEAL_OVERHEAD_BYTES, SEALED_HEADER_BYTES, SealAlgorithm, SealDirection, SealKey,
    SealedHeader,
};

use super::key::{preferred_algorithm, sender_key};
use crate::process::Process;
use crate::{PortError, random_u64};

/// Seals datagrams under one key. Each sender makes its own, also a new thread, a forked child and
/// a restarted process: the salt drawn here keeps their nonces apart. A forked child's copy seals
/// nothing.
pub struct Sealer {
    key: LessSafeKey,
    /// Header of the next datagram.
    header: SealedHeader,
    /// Process that may continue from there.
    process: Process,
}

impl Sealer {
    /// Makes the sealer of a recipient that was given a node's `key`, for datagrams to that node.
    ///
    /// # Errors
    /// Fails if the kernel has no random numbers, or cannot wipe pages in a forked child (before
    /// Linux 4.14).
    pub fn new(name: KeyName, key: &SealKey) -> Result<Self, PortError> {
        Self::with_algorithm(preferred_algorithm(), name, key)
    }

    /// Makes a sealer like [`Sealer::new`], with an algorithm of the caller's choice.
    ///
    /// # Errors
    /// Same as [`Sealer::new`].
    pub fn with_algorithm(
        algorithm: SealAlgorithm,
        name: KeyName,
        key: &SealKey,
    ) -> Result<Self, PortError> {
        Self::draw(algorithm, SealDirection::ToOwner, name, key, 0)
    }

    /// Makes the sealer of the node itself, for answers to the sender of `salt` with the algorithm
    /// it used.
    ///
    /// # Errors
    /// Same as [`Sealer::new`].
    pub fn answering(
        algorithm: SealAlgorithm,
        name: KeyName,
        key: &SealKey,
        salt: u64,
    ) -> Result<Self, PortError> {
        Self::draw(algorithm, SealDirection::FromOwner, name, key, salt)
    }

    fn draw(
        algorithm: SealAlgorithm,
        direction: SealDirection,
        name: KeyName,
        key: &SealKey,
        asker: u64,
    ) -> Result<Self, PortError> {
        let salt = random_u64().map_err(PortError::at("drawing a random number"))?;
        let header =
            SealedHeader { algorithm, direction, key: name, salt, counter: 0, pieces: 1, piece: 0 };
        let key = sender_key(key, algorithm, direction, salt, asker);
        Ok(Self { key, header, process: Process::current()? })
    }

    /// Returns the salt that distinguishes this sender from all others.
    pub fn salt(&self) -> u64 {
        self.header.salt
    }

    /// Returns the algorithm in use.
    pub fn algorithm(&self) -> SealAlgorithm {
        self.header.algorithm
    }

    /// Seals the `len` bytes at [`SEALED_HEADER_BYTES`] in `buf`: puts the header before them and
    /// the tag behind. Returns the length of the datagram in bytes, which is
    /// [`SEAL_OVERHEAD_BYTES`] more than `len`.
    ///
    /// # Errors
    /// [`PortError::Forked`] in a forked child; `buf` is then unchanged.
    ///
    /// # Panics
    /// Panics if `buf` cannot hold the datagram.
    pub fn seal(&mut self, buf: &mut [u8], len: usize) -> Result<usize, PortError> {
        self.seal_piece(buf, len, 0, 1)
    }

    /// Seals like [`Sealer::seal`], for one piece of a message that travels in `pieces` datagrams.
    /// The pieces of a message must be sealed one after the other.
    ///
    /// # Errors
    /// Same as [`Sealer::seal`].
    ///
    /// # Panics
    /// Panics if `buf` cannot hold the datagram, or `piece` is not one of at most
    /// [`venice_wire::MAX_SEALED_PIECES`] pieces.
    pub fn seal_piece(
        &mut self,
        buf: &mut [u8],
        len: usize,
        piece: u8,
        pieces: u8,
    ) -> Result<usize, PortError> {
        self.process.check()?;
        let total = len + SEAL_OVERHEAD_BYTES;
        let (header, rest) = buf[..total].split_at_mut(SEALED_HEADER_BYTES);
        let (text, tag_bytes) = rest.split_at_mut(len);
        (self.header.piece, self.header.pieces) = (piece, pieces);
        header.copy_from_slice(&self.header.to_bytes());
        let nonce = nonce(self.header.counter);
        self.header.counter =
            self.header.counter.checked_add(1).expect("no sender lives for 2^64 datagrams");
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), text);
        tag_bytes
            .copy_from_slice(tag.expect("a datagram is short enough for the algorithm").as_ref());
        Ok(total)
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Returns the nonce of a counter. The key belongs to one sender alone, which makes its counter a
/// sufficient nonce.
pub(super) fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}
