//! Checkpoints: the state of a point that runs, as a file from which it goes on.
//!
//! | bytes | contents |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | number of the form |
//! | 4 | CRC-32 (IEEE 802.3) of all that follows |
//! | 8 | length of the head |
//! | | the head: a [`Head`] as TOML |
//! | | the state, in a form of the world's own |
//!
//! All numbers are little-endian.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::keys;

/// First bytes of a checkpoint.
pub const MAGIC: [u8; 8] = *b"VENICECP";
/// The form that this version writes.
pub const FORMAT: u32 = 1;
/// Bytes before the head.
const PREFIX: usize = 24;

/// The run that a state belongs to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Version of Venice.
    pub version: String,
    /// Name of the world.
    pub world: String,
    /// The captured link; empty: none is.
    pub link: String,
    /// Seconds that the point took on the machine so far.
    pub wall_s: f64,
    /// The whole configuration of the point, its seed included.
    pub config: Table,
}

/// A file that a point cannot go on from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCheckpoint {
    /// It begins with other bytes.
    #[error("no checkpoint of Venice")]
    Foreign,
    /// It was written by another version.
    #[error("a checkpoint of form {0}, and this version reads {FORMAT}")]
    Form(u32),
    /// It was cut off, or bytes have changed.
    #[error("damaged: its checksum does not fit")]
    Damaged,
    /// Its checksum fits, and its content is none.
    #[error("damaged: {0}")]
    Content(String),
    /// It is of another run.
    #[error("of another run: {what} is {found}, here {wanted}")]
    OtherRun {
        /// The difference: the version, the world, the link, or a key.
        what: String,
        /// Its value in the file.
        found: String,
        /// Its value in this run.
        wanted: String,
    },
}

/// Writes a checkpoint.
pub fn encode(head: &Head, state: &[u8]) -> Vec<u8> {
    let text = toml::to_string(head).expect("tables with keys of text");
    let mut file = Vec::with_capacity(PREFIX + text.len() + state.len());
    file.extend(MAGIC);
    file.extend(FORMAT.to_le_bytes());
    file.extend([0; 4]);
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
    file.extend(state);
    let sum = crc32fast::hash(&file[16..]);
    file[12..16].copy_from_slice(&sum.to_le_bytes());
    file
}

/// Reads a checkpoint: its head, and the state.
///
/// # Errors
/// If it is none, is damaged, or has another version's form.
pub fn decode(file: &[u8]) -> Result<(Head, &[u8]), BadCheckpoint> {
    let Some(rest) = file.strip_prefix(&MAGIC) else {
        return Err(BadCheckpoint::Foreign);
    };
    let (form, rest) = rest.split_first_chunk().ok_or(BadCheckpoint::Damaged)?;
    let form = u32::from_le_bytes(*form);
    if form != FORMAT {
        return Err(BadCheckpoint::Form(form));
    }
    let (sum, body) = rest.split_first_chunk().ok_or(BadCheckpoint::Damaged)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(BadCheckpoint::Damaged);
    }
    let content = |why: String| BadCheckpoint::Content(why);
    let (length, body) =
        body.split_first_chunk().ok_or_else(|| content("it has no head".into()))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let parts = body.split_at_checked(length);
    let (head, state) = parts.ok_or_else(|| content("its head is too long".into()))?;
    let head = std::str::from_utf8(head).map_err(|error| content(error.to_string()))?;
    let head = toml::from_str(head).map_err(|error| content(error.message().to_owned()))?;
    Ok((head, state))
}

impl Head {
    /// Checks that a state of this head belongs to a run whose head is `wanted`.
    ///
    /// # Errors
    /// With the first difference.
    pub fn check(&self, wanted: &Self) -> Result<(), BadCheckpoint> {
        let differ = |what: &str, found: &str, wanted: &str| match found == wanted {
            true => Ok(()),
            false => Err(BadCheckpoint::OtherRun {
                what: what.to_owned(),
                found: shown(found),
                wanted: shown(wanted),
            }),
        };
        differ("the version of Venice", &self.version, &wanted.version)?;
        differ("the world", &self.world, &wanted.world)?;
        differ("the captured link", &self.link, &wanted.link)?;
        let (found, wanted) = (keys::leaves(&self.config), keys::leaves(&wanted.config));
        for (key, _) in found.iter().chain(&wanted) {
            differ(key, &value_of(&found, key), &value_of(&wanted, key))?;
        }
        Ok(())
    }
}

fn value_of(leaves: &[(String, &Value)], key: &str) -> String {
    let found = leaves.iter().find(|(name, _)| name == key);
    found.map(|(_, value)| keys::text_of(value)).unwrap_or_default()
}

fn shown(value: &str) -> String {
    if value.is_empty() { "none".to_owned() } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> Head {
        let config = toml::from_str("seed = 7\n[net]\nrate = '1Gbps'\n").unwrap();
        let (version, world) = ("1.2.3".to_owned(), "warehouse".to_owned());
        Head { version, world, link: String::new(), wall_s: 1.5, config }
    }

    #[test]
    fn file_has_head_and_state() {
        let file = encode(&head(), b"state");
        assert_eq!(decode(&file), Ok((head(), &b"state"[..])));
        assert_eq!(decode(&encode(&head(), b"")), Ok((head(), &b""[..])));
        let mut newer = file;
        newer[8] = 9;
        assert_eq!(decode(&newer), Err(BadCheckpoint::Form(9)));
    }

    #[test]
    fn other_runs_are_named() {
        let wanted = head();
        assert_eq!(head().check(&wanted), Ok(()));
        let mut slower = head();
        slower.config["net"] = toml::from_str("rate = '10Mbps'").unwrap();
        let mut less = head();
        less.config.remove("net");
        let linked = Head { link: "host:3".into(), ..head() };
        let newer = Head { version: "1.2.4".into(), ..head() };
        for (found, said) in [
            (slower, "net.rate is 10Mbps, here 1Gbps"),
            (less, "net.rate is none, here 1Gbps"),
            (linked, "the captured link is host:3, here none"),
            (newer, "the version of Venice is 1.2.4, here 1.2.3"),
        ] {
            let wrong = found.check(&wanted).unwrap_err().to_string();
            assert!(wrong.contains(said), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn damage_is_found(state in prop::collection::vec(any::<u8>(), 0..300), at in any::<usize>(), bit in 0..8u8, cut in any::<bool>()) {
            let mut file = encode(&head(), &state);
            let at = at % file.len();
            match cut {
                true => file.truncate(at),
                false => file[at] ^= 1 << bit,
            }
            prop_assert!(decode(&file).is_err());
        }

        #[test]
        fn nonsense_never_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&body);
            let sum = crc32fast::hash(&body).to_le_bytes();
            let _ = decode(&[&MAGIC[..], &FORMAT.to_le_bytes(), &sum, &body].concat());
        }
    }
}
