//! Datagrams of some senders, as they are, bent, repeated or out of order, and any bytes, to an opener
//! with little room whose keys come and go: nothing panics, what opens was sealed, is what was
//! sealed, and opens once as long as its sender is remembered.
#![no_main]

use std::cell::Cell;
use std::collections::BTreeSet;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use venice_ports::seal::{Opener, SealKeys, Sealer, SessionId, node_key};
use venice_wire::{
    GrantId, KeyName, NodeSecret, SEAL_OVERHEAD_BYTES, SEALED_HEADER_BYTES, SealAlgorithm, SealKey,
};

const SECRET: NodeSecret = NodeSecret([0x51; 32]);
/// Senders there may be, and those that the opener remembers.
const SENDERS: usize = 6;
const REMEMBERED: usize = 4;

#[derive(Arbitrary, Debug)]
enum Step {
    Any(Vec<u8>),
    Seal { sender: u8, len: u8 },
    Deliver { which: u8 },
    Bend { which: u8, at: u16, bits: u8 },
    Cut { which: u8, len: u16 },
    Withdraw { grant: u8 },
    Advance { ns: u16 },
}

/// Keys of three grants, of which any may be gone.
struct Keys {
    gone: Cell<u8>,
    generation: Cell<u64>,
}

impl SealKeys for Keys {
    fn key(&self, name: KeyName) -> Option<SealKey> {
        let is_good = matches!(name, KeyName::Grant(grant) if grant.0 < 3)
            && self.gone.get() & 1 << name.id() == 0;
        is_good.then(|| node_key(&SECRET, name))
    }

    fn generation(&self) -> u64 {
        self.generation.get()
    }
}

/// What a sender has sealed.
struct Sealed {
    bytes: Vec<u8>,
    text: Vec<u8>,
    name: KeyName,
}

fn sender(number: usize) -> (Sealer, KeyName) {
    let name = KeyName::Grant(GrantId(number as u64 % 3));
    let algorithm = [SealAlgorithm::Aes256Gcm, SealAlgorithm::ChaCha20Poly1305][number % 2];
    (Sealer::with_algorithm(algorithm, name, &node_key(&SECRET, name)).expect("a sealer"), name)
}

fn seal((sealer, name): &mut (Sealer, KeyName), len: usize, fill: u8) -> Sealed {
    let text = vec![fill; len];
    let mut bytes = vec![0; len + SEAL_OVERHEAD_BYTES];
    bytes[SEALED_HEADER_BYTES..][..len].copy_from_slice(&text);
    sealer.seal(&mut bytes, len).expect("this is no forked child");
    Sealed { bytes, text, name: *name }
}

fuzz_target!(|steps: Vec<Step>| {
    let keys = Keys { gone: Cell::new(0), generation: Cell::new(1) };
    let mut senders: Vec<_> = (0..SENDERS).map(sender).collect();
    let (mut sealed, mut now_ns) = (Vec::<Sealed>::new(), 0u64);
    let mut opener = Opener::<u8>::new(REMEMBERED);
    let mut opened = BTreeSet::<(SessionId, u64)>::new();
    for step in steps.into_iter().take(100) {
        let pick = |which: u8| (!sealed.is_empty()).then(|| usize::from(which) % sealed.len());
        let mut bytes = match step {
            Step::Any(bytes) => bytes,
            Step::Seal { sender, len } => {
                let fill = sealed.len() as u8;
                let sender = &mut senders[usize::from(sender) % SENDERS];
                sealed.push(seal(sender, len.into(), fill));
                continue;
            }
            Step::Deliver { which } => {
                let Some(at) = pick(which) else { continue };
                sealed[at].bytes.clone()
            }
            Step::Bend { which, at: place, bits } => {
                let Some(at) = pick(which) else { continue };
                let mut bytes = sealed[at].bytes.clone();
                let place = usize::from(place) % bytes.len();
                bytes[place] ^= bits;
                bytes
            }
            Step::Cut { which, len } => {
                let Some(at) = pick(which) else { continue };
                let mut bytes = sealed[at].bytes.clone();
                bytes.truncate(len.into());
                bytes
            }
            Step::Withdraw { grant } => {
                keys.gone.set(keys.gone.get() ^ 1 << (grant % 3));
                keys.generation.set(keys.generation.get() + 1);
                continue;
            }
            Step::Advance { ns } => {
                now_ns += u64::from(ns);
                continue;
            }
        };
        let came = bytes.clone();
        let Ok(found) = opener.open(now_ns, &mut bytes, &keys) else { continue };
        let original = sealed.iter().find(|each| each.bytes == came);
        let original = original.expect("only what was sealed opens, and as it was");
        assert_eq!(bytes[found.payload], original.text);
        assert_eq!(found.header.key, original.name);
        assert!(keys.key(original.name).is_some(), "a key that is gone opens nothing");
        assert!(opened.insert((found.session, found.header.counter)), "each opens once");
        assert!(opener.value_mut(found.session).is_some() && opener.len() <= REMEMBERED);
    }
});
