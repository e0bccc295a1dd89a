//! Assignment of senders to the queues of a server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use venice_wire::KeyName;

/// Most senders remembered, of all queues together.
const MAX_OWNED: usize = 16_384;

/// Owning queue of each sender: another queue, which lacks the sender's replay window, drops its
/// datagrams. To make room, the oldest sender under the key with most of them is forgotten: a user
/// that makes senders without end evicts only its own.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<Owned>);

#[derive(Debug, Default)]
struct Owned {
    /// Queue by the name of the key and the salt.
    queues: BTreeMap<(KeyName, u64), usize>,
    /// Salts under each key, oldest first; keys without salts are absent.
    oldest: BTreeMap<KeyName, VecDeque<u64>>,
}

impl Owners {
    /// True if `queue` may take the datagrams of the sender of this salt under this key.
    pub(super) fn claim(&self, name: KeyName, salt: u64, queue: usize) -> bool {
        let mut owned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = owned.queues.get(&(name, salt)) {
            return *owner == queue;
        }
        if owned.queues.len() == MAX_OWNED {
            owned.make_room(name);
        }
        owned.queues.insert((name, salt), queue);
        owned.oldest.entry(name).or_default().push_back(salt);
        true
    }
}

impl Owned {
    /// Forgets the oldest sender under the key with most senders, `name` itself if no key has more.
    fn make_room(&mut self, name: KeyName) {
        let by_count = |(each, salts): &(&KeyName, &VecDeque<u64>)| (salts.len(), **each == name);
        let most = self.oldest.iter().max_by_key(by_count).map(|(each, _)| *each);
        let Some((most, salts)) = most.and_then(|it| Some((it, self.oldest.get_mut(&it)?))) else {
            return;
        };
        if let Some(salt) = salts.pop_front() {
            self.queues.remove(&(most, salt));
        }
        if salts.is_empty() {
            self.oldest.remove(&most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_wire::GrantId;

    #[test]
    fn sender_keeps_its_queue() {
        let owners = Owners::default();
        let [quiet, loud] = [1, 2].map(|id| KeyName::Grant(GrantId(id)));
        assert!(owners.claim(quiet, 1, 0) && owners.claim(quiet, 1, 0));
        assert!(!owners.claim(quiet, 1, 1));
        assert!(owners.claim(loud, 1, 1), "a salt is of one key only");
        for salt in 2..2 + MAX_OWNED as u64 {
            assert!(owners.claim(loud, salt, 1));
        }
        assert!(owners.claim(loud, 1, 0), "senders under the same key are forgotten");
        assert!(!owners.claim(quiet, 1, 1), "senders under other keys are not");
        assert_eq!(owners.0.lock().unwrap().queues.len(), MAX_OWNED);
    }
}
