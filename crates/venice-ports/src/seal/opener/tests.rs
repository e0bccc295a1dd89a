use super::*;
use crate::seal::{SealedAs, Sealer, node_key};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use venice_wire::{GrantId, NodeId, NodeSecret, SEAL_OVERHEAD_BYTES};

const SECRET: NodeSecret = NodeSecret([9; 32]);

fn grant(id: u64) -> KeyName {
    KeyName::Grant(GrantId(id))
}

fn sealer(name: KeyName) -> Sealer {
    Sealer::new(name, &node_key(&SECRET, name)).unwrap()
}

fn sealed(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; text.len() + SEAL_OVERHEAD_BYTES];
    datagram[SEALED_HEADER_BYTES..][..text.len()].copy_from_slice(text);
    assert_eq!(sealer.seal(&mut datagram, text.len()).unwrap(), datagram.len());
    datagram
}

fn open(opener: &mut Opener<()>, datagram: &[u8]) -> Result<Vec<u8>, Dropped> {
    let mut bytes = datagram.to_vec();
    let opened = opener.open(0, &mut bytes, &SECRET)?;
    Ok(bytes[opened.payload].to_vec())
}

#[test]
fn both_algorithms_roundtrip() {
    let name = grant(1);
    for algorithm in [SealAlgorithm::Aes256Gcm, SealAlgorithm::ChaCha20Poly1305] {
        let key = node_key(&SECRET, name);
        let mut sealer = Sealer::with_algorithm(algorithm, name, &key).unwrap();
        let mut opener = Opener::new(4);
        let datagram = sealed(&mut sealer, b"nobody else reads this");
        assert!(!datagram.windows(6).any(|bytes| bytes == b"nobody"));
        assert_eq!(open(&mut opener, &datagram).unwrap(), b"nobody else reads this");
        assert_eq!(open(&mut opener, &datagram), Err(Dropped::Replayed));
    }
}

#[test]
fn restarted_sender_repeats_no_nonce() {
    let name = grant(1);
    let mut seen = BTreeSet::new();
    for _ in 0..50 {
        let mut sealer = sealer(name);
        for _ in 0..3 {
            let datagram = sealed(&mut sealer, b"same text");
            assert!(seen.insert(datagram[16..].to_vec()), "salt, counter and text repeat");
        }
    }
}

#[test]
fn answer_opens_for_requester_only() {
    let name = grant(5);
    let key = node_key(&SECRET, name);
    let (mine, other) = (sealer(name), sealer(name));
    let mut answerer = Sealer::answering(mine.algorithm(), name, &key, mine.salt()).unwrap();
    let answer = sealed(&mut answerer, b"answer");
    let own = SealedAs { name, key };
    let opened_by =
        |salt| Opener::<()>::of_answers(salt, 4).open(0, &mut answer.clone(), &own).map(|_| ());
    assert_eq!(opened_by(mine.salt()), Ok(()));
    assert_eq!(opened_by(other.salt()), Err(Dropped::UnknownKey));
    // An answer cannot be reflected to the node as a request, nor a request to its sender.
    assert_eq!(open(&mut Opener::new(4), &answer), Err(Dropped::Forged));
    let request = sealed(&mut sealer(name), b"request");
    let reflected = Opener::<()>::of_answers(1, 4).open(0, &mut request.clone(), &own);
    assert_eq!(reflected, Err(Dropped::Forged));
}

#[test]
fn distinguishes_plain_and_foreign_datagrams() {
    let mut opener = Opener::new(4);
    assert_eq!(open(&mut opener, b"VN plain"), Err(Dropped::Unsealed));
    assert_eq!(open(&mut opener, b""), Err(Dropped::Unsealed));
    assert_eq!(open(&mut opener, b"VS"), Err(Dropped::Forged), "cut short");
    let own = SealedAs { name: grant(1), key: node_key(&SECRET, grant(1)) };
    let mut stranger = sealed(&mut sealer(KeyName::Peer(NodeId(1))), b"x");
    assert_eq!(opener.open(0, &mut stranger, &own), Err(Dropped::UnknownKey));
    assert!(opener.is_empty(), "an unproven sender is not remembered");
}

#[test]
fn earlier_incarnation_is_unknown_key() {
    let name = KeyName::Peer(NodeId(1));
    let mut opener = Opener::new(4);
    let earlier = node_key(&NodeSecret([8; 32]), name);
    let stale = sealed(&mut Sealer::new(name, &earlier).unwrap(), b"x");
    assert_eq!(open(&mut opener, &stale), Err(Dropped::UnknownKey));
    let mut present = sealer(name);
    open(&mut opener, &sealed(&mut present, b"x")).unwrap();
    let mut changed = sealed(&mut present, b"y");
    changed[SEALED_HEADER_BYTES] ^= 1;
    assert_eq!(open(&mut opener, &changed), Err(Dropped::Forged));
}

/// Key source whose keys can be withdrawn.
struct Withdrawable(RefCell<BTreeSet<u64>>);

impl SealKeys for Withdrawable {
    fn key(&self, name: KeyName) -> Option<venice_wire::SealKey> {
        self.0.borrow().contains(&name.id()).then(|| node_key(&SECRET, name))
    }

    fn generation(&self) -> u64 {
        self.0.borrow().len() as u64
    }
}

#[test]
fn withdrawn_key_opens_nothing() {
    let keys = Withdrawable(RefCell::new([1, 2].into()));
    let mut opener = Opener::<()>::new(4);
    let (mut first, mut second) = (sealer(grant(1)), sealer(grant(2)));
    let mut open = |sealer: &mut Sealer| {
        opener.open(0, &mut sealed(sealer, b"x"), &keys).map(|opened| opened.session)
    };
    let kept = open(&mut second).unwrap();
    open(&mut first).unwrap();
    keys.0.borrow_mut().remove(&1);
    assert_eq!(open(&mut first), Err(Dropped::UnknownKey));
    assert_eq!(open(&mut second), Ok(kept), "the other grant's sender is the same as before");
}

#[test]
fn ended_keys_senders_are_drained() {
    let keys = Withdrawable(RefCell::new([1, 2].into()));
    let mut opener = Opener::<()>::new(4);
    let (mut first, mut second) = (sealer(grant(1)), sealer(grant(2)));
    let gone = opener.open(0, &mut sealed(&mut first, b"x"), &keys).unwrap().session;
    opener.open(0, &mut sealed(&mut second, b"x"), &keys).unwrap();
    assert_eq!(opener.drain_forgotten(&keys).count(), 0);
    keys.0.borrow_mut().remove(&1);
    assert_eq!(opener.drain_forgotten(&keys).collect::<Vec<_>>(), [gone]);
    assert_eq!((opener.len(), opener.drain_forgotten(&keys).count()), (1, 0));
}

/// Key source that accepts known senders only.
struct Ending;

impl SealKeys for Ending {
    fn key(&self, _: KeyName) -> Option<venice_wire::SealKey> {
        None
    }

    fn is_accepted(&self, _: KeyName) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        7
    }
}

#[test]
fn known_senders_outlive_their_key() {
    let mut opener = Opener::<()>::new(4);
    let (mut known, mut stranger) = (sealer(grant(1)), sealer(grant(1)));
    let mut first = sealed(&mut known, b"x");
    let session = opener.open(0, &mut first, &SECRET).unwrap().session;
    let again = opener.open(0, &mut sealed(&mut known, b"y"), &Ending);
    assert_eq!(again.map(|opened| opened.session), Ok(session));
    let opened = opener.open(0, &mut sealed(&mut stranger, b"x"), &Ending);
    assert_eq!(opened, Err(Dropped::UnknownKey));
}

#[test]
fn evicts_longest_idle_sender() {
    let mut opener = Opener::<u32>::new(2);
    let mut senders: Vec<_> = (0..3).map(|_| sealer(grant(1))).collect();
    let mut sessions = Vec::new();
    for (at, now_ns) in [(0, 10), (1, 20), (0, 30), (2, 40)] {
        let mut datagram = sealed(&mut senders[at], b"x");
        sessions.push(opener.open(now_ns, &mut datagram, &SECRET).unwrap().session);
    }
    *opener.value_mut(sessions[0]).unwrap() = 7;
    assert_eq!(opener.value_mut(sessions[2]), Some(&mut 7), "the same sender");
    assert_eq!(opener.value_mut(sessions[1]), None, "silent since 20");
    assert_eq!(opener.value_mut(sessions[3]), Some(&mut 0));
}

#[test]
fn eviction_stays_within_largest_key() {
    let mut opener = Opener::<()>::new(6);
    let mut open = |sealer: &mut Sealer, now_ns| {
        let opened = opener.open(now_ns, &mut sealed(sealer, b"x"), &SECRET).unwrap();
        (opened.session, opened.is_first)
    };
    let mut quiet = [sealer(grant(1)), sealer(grant(1)), sealer(KeyName::Peer(NodeId(1)))];
    let sessions: Vec<_> = quiet.iter_mut().map(|quiet| open(quiet, 1).0).collect();
    for now_ns in 2..50 {
        open(&mut sealer(grant(2)), now_ns);
    }
    for (quiet, session) in quiet.iter_mut().zip(sessions) {
        assert_eq!(open(quiet, 60), (session, false), "idle longest, still known");
    }
    // One more sender also gets a place, from the key with most senders.
    let mut late = sealer(grant(3));
    let (session, _) = open(&mut late, 70);
    open(&mut sealer(grant(2)), 80);
    open(&mut sealer(grant(2)), 90);
    assert_eq!(open(&mut late, 100), (session, false));
}

proptest! {
    /// Datagrams come in any order, any number of times, and damaged: each is admitted at most
    /// once, and only as it was sent.
    #[test]
    fn admits_each_datagram_once(
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..20),
        deliveries in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..4, any::<prop::sample::Index>(), 1u8..=255), 1..80),
    ) {
        let mut sealer = sealer(grant(3));
        let mut opener = Opener::new(4);
        let datagrams: Vec<_> = texts.iter().map(|text| sealed(&mut sealer, text)).collect();
        let mut taken = BTreeSet::new();
        for (which, treatment, place, flip) in deliveries {
            let at = which.index(datagrams.len());
            let mut datagram = datagrams[at].clone();
            let harmed = match treatment {
                0 => { let place = place.index(datagram.len()); datagram[place] ^= flip; true }
                1 => { datagram.truncate(place.index(datagram.len())); true }
                _ => false,
            };
            match open(&mut opener, &datagram) {
                Ok(text) => {
                    prop_assert!(!harmed);
                    prop_assert_eq!(&text, &texts[at]);
                    prop_assert!(taken.insert(at), "taken twice");
                }
                Err(Dropped::Replayed) => prop_assert!(taken.contains(&at) || harmed),
                Err(_) => prop_assert!(harmed),
            }
        }
    }
}
