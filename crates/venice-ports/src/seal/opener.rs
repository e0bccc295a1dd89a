//! The receiving side of protection: identifies senders, and admits only genuine and new datagrams.

use std::collections::BTreeMap;
use std::ops::Range;

use ring::aead::{Aad, LessSafeKey};
use venice_wire::{
    KeyName, SEAL_TAG_BYTES, SEALED_HEADER_BYTES, SealAlgorithm, SealDirection, SealedHeader,
};

use super::counters::Dropped;
use super::key::{SealKeys, sender_key};
use super::replay_window::ReplayWindow;
use super::salt_index::SaltIndex;
use super::sealer::nonce;

/// Number of a sender, from its first genuine datagram on. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A genuine datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Session of the sender.
    pub session: SessionId,
    /// Range of the decrypted text in the datagram.
    pub payload: Range<usize>,
    /// Header in front of the text.
    pub header: SealedHeader,
    /// True if the sender was not known before.
    pub is_first: bool,
}

/// Known senders, and the user's value for each.
///
/// Remembers at most `capacity` senders. To make room it forgets, under the key with most senders,
/// the one that has been silent longest: a user that makes senders without end evicts its own,
/// never those under keys with fewer. A sender is also forgotten when its key is no longer accepted
/// ([`SealKeys::is_accepted`]).
pub struct Opener<T> {
    direction: SealDirection,
    /// Salt of the requester, for answers.
    asker: u64,
    sessions: Box<[Option<Session<T>>]>,
    by_salt: SaltIndex,
    /// Number of known senders under each key; keys without senders are absent.
    by_name: BTreeMap<KeyName, usize>,
    next_serial: u64,
    generation: u64,
    /// Senders forgotten since the last [`Opener::drain_forgotten`].
    forgotten: Vec<SessionId>,
}

struct Session<T> {
    serial: u64,
    name: KeyName,
    algorithm: SealAlgorithm,
    salt: u64,
    key: LessSafeKey,
    window: ReplayWindow,
    heard_ns: u64,
    kept: T,
}

impl<T: Default> Opener<T> {
    /// Makes the opener of a node, for requests. Remembers `capacity` senders, at least one.
    pub fn new(capacity: usize) -> Self {
        Self::with(SealDirection::ToOwner, 0, capacity)
    }

    /// Makes the opener of a requester with a [`super::Sealer`] of this `salt`, for answers.
    pub fn of_answers(salt: u64, capacity: usize) -> Self {
        Self::with(SealDirection::FromOwner, salt, capacity)
    }

    fn with(direction: SealDirection, asker: u64, capacity: usize) -> Self {
        Self {
            direction,
            asker,
            sessions: (0..capacity.max(1)).map(|_| None).collect(),
            by_salt: SaltIndex::new(capacity.max(1)),
            by_name: BTreeMap::new(),
            next_serial: 0,
            generation: 0,
            forgotten: Vec::new(),
        }
    }

    /// Opens a datagram in place.
    ///
    /// # Errors
    /// Returns the reason of the drop; the bytes are then unspecified. The caller counts it
    /// ([`super::SealCounters::count`]).
    pub fn open(
        &mut self,
        now_ns: u64,
        datagram: &mut [u8],
        keys: &(impl SealKeys + ?Sized),
    ) -> Result<Opened, Dropped> {
        if !SealedHeader::is_sealed(datagram) {
            return Err(Dropped::Unsealed);
        }
        let header = SealedHeader::parse(datagram).map_err(|_| Dropped::Forged)?;
        if header.direction != self.direction {
            return Err(Dropped::Forged);
        }
        self.forget_bad_keys(keys);
        let known = self.by_salt.get(header.salt);
        let at = match known {
            Some(at) => self.open_known(now_ns, at, &header, datagram)?,
            None => self.open_first(now_ns, &header, datagram, keys)?,
        };
        let payload = SEALED_HEADER_BYTES..datagram.len() - SEAL_TAG_BYTES;
        Ok(Opened { session: self.id(at), payload, header, is_first: known.is_none() })
    }

    /// Returns the user's value for a sender; `None` once the sender is forgotten.
    pub fn value_mut(&mut self, session: SessionId) -> Option<&mut T> {
        let at = self.index(session);
        let entry = self.sessions[at].as_mut()?;
        (entry.serial == session.0).then_some(&mut entry.kept)
    }

    /// Forgets a sender and its counters.
    pub fn forget_session(&mut self, session: SessionId) {
        if self.value_mut(session).is_some() {
            self.forget(self.index(session));
        }
    }

    /// Forgets the senders whose keys have ended; yields these and all others forgotten since the
    /// last call.
    pub fn drain_forgotten(
        &mut self,
        keys: &(impl SealKeys + ?Sized),
    ) -> impl Iterator<Item = SessionId> {
        self.forget_bad_keys(keys);
        self.forgotten.drain(..)
    }

    /// Yields the user's value for each known sender, with the name of its key.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (KeyName, &mut T)> {
        self.sessions.iter_mut().flatten().map(|session| (session.name, &mut session.kept))
    }

    /// Returns the number of known senders.
    pub fn len(&self) -> usize {
        self.by_salt.len()
    }

    /// True if no sender is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn open_known(
        &mut self,
        now_ns: u64,
        at: usize,
        header: &SealedHeader,
        datagram: &mut [u8],
    ) -> Result<usize, Dropped> {
        let session = self.sessions[at].as_mut().expect("the index names sessions");
        if (session.name, session.algorithm) != (header.key, header.algorithm) {
            return Err(Dropped::Forged);
        }
        if !session.window.is_fresh(header.counter) {
            return Err(Dropped::Replayed);
        }
        decrypt(&session.key, header, datagram)?;
        session.window.mark(header.counter);
        session.heard_ns = now_ns;
        Ok(at)
    }

    fn open_first(
        &mut self,
        now_ns: u64,
        header: &SealedHeader,
        datagram: &mut [u8],
        keys: &(impl SealKeys + ?Sized),
    ) -> Result<usize, Dropped> {
        let key = keys.key(header.key).ok_or(Dropped::UnknownKey)?;
        let key = sender_key(&key, header.algorithm, header.direction, header.salt, self.asker);
        if !ReplayWindow::default().is_fresh(header.counter) {
            return Err(Dropped::Replayed);
        }
        // A sender without any genuine datagram has another key: mostly that of an earlier incarnation
        // of this node.
        decrypt(&key, header, datagram).map_err(|_| Dropped::UnknownKey)?;
        let mut window = ReplayWindow::default();
        window.mark(header.counter);
        let at = self.make_room(header.key);
        let serial = self.next_serial * self.sessions.len() as u64 + at as u64;
        self.next_serial += 1;
        self.by_salt.insert(header.salt, at);
        *self.by_name.entry(header.key).or_default() += 1;
        self.sessions[at] = Some(Session {
            serial,
            name: header.key,
            algorithm: header.algorithm,
            salt: header.salt,
            key,
            window,
            heard_ns: now_ns,
            kept: T::default(),
        });
        Ok(at)
    }

    /// Returns a free place for a sender under `name`. If there is none, evicts the sender that has
    /// been silent longest under the key with most senders, `name` itself if no key has more.
    fn make_room(&mut self, name: KeyName) -> usize {
        if let Some(at) = self.sessions.iter().position(Option::is_none) {
            return at;
        }
        let count = |name: KeyName| self.by_name.get(&name).copied().unwrap_or(0);
        let most = self.by_name.keys().copied().max_by_key(|each| (count(*each), *each == name));
        let most = most.expect("without a free place there are senders");
        let senders = self.sessions.iter().enumerate().filter_map(|(at, session)| {
            session.as_ref().filter(|session| session.name == most).map(|it| (it.heard_ns, at))
        });
        let (_, at) = senders.min().expect("the key has senders");
        self.forget(at);
        at
    }

    fn forget(&mut self, at: usize) {
        let Some(session) = self.sessions[at].take() else { return };
        // One that is left out ends by its silence.
        if self.forgotten.len() < self.sessions.len() {
            self.forgotten.push(SessionId(session.serial));
        }
        self.by_salt.remove(session.salt);
        let left = self.by_name.get_mut(&session.name).expect("every sender is counted");
        *left -= 1;
        if *left == 0 {
            self.by_name.remove(&session.name);
        }
    }

    fn forget_bad_keys(&mut self, keys: &(impl SealKeys + ?Sized)) {
        let generation = keys.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        for at in 0..self.sessions.len() {
            let is_bad = |session: &Session<T>| !keys.is_accepted(session.name);
            if self.sessions[at].as_ref().is_some_and(is_bad) {
                self.forget(at);
            }
        }
    }

    fn index(&self, session: SessionId) -> usize {
        (session.0 % self.sessions.len() as u64) as usize
    }

    fn id(&self, at: usize) -> SessionId {
        SessionId(self.sessions[at].as_ref().expect("the session was opened above").serial)
    }
}

impl<T> std::fmt::Debug for Opener<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("sessions", &self.by_salt.len()).finish_non_exhaustive()
    }
}

fn decrypt(key: &LessSafeKey, header: &SealedHeader, datagram: &mut [u8]) -> Result<(), Dropped> {
    let (header_bytes, sealed) = datagram.split_at_mut(SEALED_HEADER_BYTES);
    let opened = key.open_in_place(nonce(header.counter), Aad::from(&*header_bytes), sealed);
    opened.map(drop).map_err(|_| Dropped::Forged)
}

#[cfg(test)]
mod tests;
