//! What a process has asked for and seen, written down so that its death takes nothing away.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use venice_ports::monotonic_ns;
use venice_sim::scenario::Kind;

/// Who wrote a note: one life of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// What it is.
    pub role: Role,
    /// Its node.
    pub node: u16,
    /// Counts its lives.
    pub life: u32,
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The parent of all.
    Rack,
    /// Lends.
    Donor,
    /// Borrows.
    Program,
}

/// Something that happened, and when by CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at_ns: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// The rack: a region of zeros will be lent.
    Lent {
        /// Its number.
        region: u32,
        /// What the bytes written to it follow from.
        salt: u64,
    },
    /// The rack: accesses to the region may be refused from here on.
    Ended {
        /// Which.
        region: u32,
    },
    /// The rack: a process was killed; what it had under way will never be heard of.
    Died {
        /// Which.
        process: Source,
    },
    /// The rack: the last fault is over.
    Calm,
    /// The rack has lost patience.
    Stuck {
        /// What for.
        why: String,
    },
    /// A program asks for an access.
    Asked {
        /// Its number in this life of the program.
        token: u64,
        /// Where.
        region: u32,
        /// Counts the links to the donor.
        lane: u32,
        /// What.
        kind: Kind,
        /// The first byte.
        at: u32,
        /// How many.
        len: u32,
        /// Which write of the region, if it is one.
        write: u32,
    },
    /// A program asks for an atomic.
    AskedAtomic {
        /// Its number in this life of the program.
        token: u64,
        /// Where.
        region: u32,
        /// Counts the links to the donor.
        lane: u32,
        /// Which of the region's words.
        word: u32,
        /// What must be there for `operand` to take its place; `None`: `operand` is added.
        expected: Option<u64>,
        /// What is added or put there.
        operand: u64,
    },
    /// The access was not asked for after all.
    Withdrawn {
        /// Which.
        token: u64,
    },
    /// An access succeeded.
    Done {
        /// Which.
        token: u64,
        /// What a read brought.
        data: Bytes,
    },
    /// An access failed.
    Failed {
        /// Which.
        token: u64,
        /// Why, in kind.
        why: Why,
        /// Why, in words.
        text: String,
    },
    /// A program's link to a donor is down, or could not be made.
    Down {
        /// Why.
        text: String,
    },
    /// A program is told that its donor has taken memory back.
    Revoked {
        /// Which.
        region: u32,
    },
    /// A program asks for a QPair.
    Began {
        /// What its messages will say they belong to.
        conversation: u32,
    },
    /// The next message of a conversation is about to be sent.
    Sent {
        /// Which.
        conversation: u32,
        /// From the program to the donor; else back.
        is_there: bool,
    },
    /// A message came out of a QPair.
    Received {
        /// Numbers the QPairs of this process.
        end: u32,
        /// From the program to the donor; else back.
        is_there: bool,
        /// The whole of it.
        data: Bytes,
    },
    /// A QPair ended before it was asked to.
    Closed {
        /// Which.
        conversation: u32,
        /// Why.
        text: String,
    },
    /// A program asks for a QPair of a stream.
    StreamBegan {
        /// The number that its bytes begin with.
        stream: u32,
        /// The node it leads to.
        donor: u16,
    },
    /// More bytes of a stream are about to be sent.
    StreamSent {
        /// Which.
        stream: u32,
        /// From the program to the donor; else back.
        is_there: bool,
        /// How many more.
        len_bytes: u32,
    },
    /// The sending of a stream is about to be ended.
    StreamEnded {
        /// Which.
        stream: u32,
        /// From the program to the donor; else back.
        is_there: bool,
    },
    /// Bytes came out of a stream.
    StreamRead {
        /// A donor's own number for it; for a program the stream.
        end: u32,
        /// From the program to the donor; else back.
        is_there: bool,
        /// What.
        data: Bytes,
    },
    /// And then the end of the sending.
    StreamEndSeen {
        /// A donor's own number for it; for a program the stream.
        end: u32,
        /// From the program to the donor; else back.
        is_there: bool,
    },
    /// A stream ended before its time.
    StreamClosed {
        /// Which.
        stream: u32,
        /// Why.
        text: String,
    },
    /// A donor stores bytes for a recipient.
    Stored {
        /// Where.
        region: u32,
        /// The first byte.
        at: u32,
        /// What.
        data: Bytes,
    },
    /// At the end: what a donor lends, and what is in it.
    Holds {
        /// Which.
        region: u32,
        /// All of it.
        data: Bytes,
    },
    /// At the end: what came to a node's relay that there was no credit for.
    Overruns {
        /// How many packets.
        packets: u64,
    },
    /// At the end: what a program has mapped.
    Uses {
        /// Which.
        region: u32,
    },
}

/// Why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The donor knows no such grant.
    UnknownGrant,
    /// The donor refused it for another reason.
    Refused,
    /// The donor is down.
    Down,
    /// A posted write before a fence that failed: it may be another that went wrong.
    Uncertain,
    /// The window was given back meanwhile.
    Unmapped,
    /// Something that must never happen.
    Wrong,
}

/// Bytes, written as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Bytes(pub Vec<u8>);

/// Where a process writes its notes.
#[derive(Debug)]
pub struct Notebook {
    file: Mutex<File>,
}

impl Notebook {
    /// A new one for a process of the rack in this folder.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(folder: &Path, source: Source) -> Result<Self> {
        let path = path(folder, source);
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self { file: Mutex::new(file) })
    }

    /// Writes down what happens now. It is in the kernel's hands when this returns.
    ///
    /// # Panics
    /// When the file system is full.
    pub fn note(&self, what: What) {
        let mut file = self.file.lock().expect("nobody panics while writing");
        let note = Note { at_ns: monotonic_ns(), what };
        let mut line = serde_json::to_vec(&note).expect("plain data");
        line.push(b'\n');
        file.write_all(&line).expect("room for notes");
    }
}

/// The notes of a process so far. A line that its death cut short does not count.
///
/// # Errors
/// When they cannot be read.
pub fn read(folder: &Path, source: Source) -> Result<Vec<Note>> {
    let path = path(folder, source);
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line| serde_json::from_str(line).context("a note");
    whole.lines().map(parse).collect()
}

fn path(folder: &Path, source: Source) -> PathBuf {
    let Source { role, node, life } = source;
    folder.join(format!("{role:?}-{node}-{life}.notes").to_lowercase())
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |n: u8| char::from(DIGITS[usize::from(n)]);
        bytes.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }
}

impl TryFrom<String> for Bytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digit = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.map(Self).ok_or_else(|| "not hexadecimal".into())
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_back_but_for_what_was_cut_short() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source { role: Role::Donor, node: 3, life: 1 };
        let notebook = Notebook::create(folder.path(), source).unwrap();
        let stored = What::Stored { region: 1, at: 2, data: Bytes(vec![0, 0xff, 0x1a]) };
        notebook.note(What::Calm);
        notebook.note(stored.clone());
        std::fs::OpenOptions::new()
            .append(true)
            .open(path(folder.path(), source))
            .and_then(|mut file| file.write_all(b"{\"at_ns\":1"))
            .unwrap();
        let notes = read(folder.path(), source).unwrap();
        assert_eq!(notes.iter().map(|note| &note.what).collect::<Vec<_>>(), [&What::Calm, &stored]);
        assert!(notes[0].at_ns <= notes[1].at_ns);
    }
}
