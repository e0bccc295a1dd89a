//! Notes of a process about its requests and results, written at once so that its death loses none.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use venice_ports::monotonic_ns;
use venice_sim::scenario::Kind;

/// Author of a note: one life of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// Its role.
    pub role: Role,
    /// Its node.
    pub node: u16,
    /// Number of its life.
    pub life: u32,
}

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The parent of all.
    Rack,
    /// A donor.
    Donor,
    /// A program.
    Program,
}

/// An event with its time by CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Time in nanoseconds.
    pub at_ns: u64,
    /// The event.
    #[serde(flatten)]
    pub what: What,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// The rack: a region of zeros will be lent.
    Lent {
        /// Its number.
        region: u32,
        /// Salt of the bytes written to it.
        salt: u64,
    },
    /// The rack: accesses to the region may be refused from here on.
    Ended {
        /// The region.
        region: u32,
    },
    /// The rack: a process was killed; its outstanding accesses never complete.
    Died {
        /// The process.
        process: Source,
    },
    /// The rack: the last fault is over.
    Calm,
    /// The rack: a timeout.
    Stuck {
        /// Its cause.
        why: String,
    },
    /// A program requests an access.
    Asked {
        /// Its number in this life of the program.
        token: u64,
        /// The region.
        region: u32,
        /// Number of links to the donor so far.
        lane: u32,
        /// Kind of access.
        kind: Kind,
        /// The first byte.
        at: u32,
        /// Length in bytes.
        len: u32,
        /// Number of the region's write, for a write.
        write: u32,
    },
    /// A program requests an atomic.
    AskedAtomic {
        /// Its number in this life of the program.
        token: u64,
        /// The region.
        region: u32,
        /// Number of links to the donor so far.
        lane: u32,
        /// Index of the region's word.
        word: u32,
        /// Value that `operand` replaces if it is there; `None`: `operand` is added.
        expected: Option<u64>,
        /// Value added or stored.
        operand: u64,
    },
    /// The access was not requested after all.
    Withdrawn {
        /// The access.
        token: u64,
    },
    /// An access succeeded.
    Done {
        /// The access.
        token: u64,
        /// Bytes of a read.
        data: Bytes,
    },
    /// An access failed.
    Failed {
        /// The access.
        token: u64,
        /// Kind of the failure.
        why: Why,
        /// Error text.
        text: String,
    },
    /// A program's link to a donor is down, or could not be made.
    Down {
        /// Error text.
        text: String,
    },
    /// A program is notified that its donor has taken memory back.
    Revoked {
        /// The region.
        region: u32,
    },
    /// A program requests a QPair.
    Began {
        /// Number in its messages.
        conversation: u32,
    },
    /// The next message of a conversation is about to be sent.
    Sent {
        /// The conversation.
        conversation: u32,
        /// True from the program to the donor; false for the way back.
        is_there: bool,
    },
    /// A message came out of a QPair.
    Received {
        /// Number of the QPair in this process.
        end: u32,
        /// True from the program to the donor; false for the way back.
        is_there: bool,
        /// The whole message.
        data: Bytes,
    },
    /// A QPair ended without a request.
    Closed {
        /// The conversation.
        conversation: u32,
        /// Error text.
        text: String,
    },
    /// A program requests a QPair of a stream.
    StreamBegan {
        /// Number at the beginning of its bytes.
        stream: u32,
        /// Its donor's node.
        donor: u16,
    },
    /// More bytes of a stream are about to be sent.
    StreamSent {
        /// The stream.
        stream: u32,
        /// True from the program to the donor; false for the way back.
        is_there: bool,
        /// Number of further bytes.
        len_bytes: u32,
    },
    /// The sending of a stream is about to be ended.
    StreamEnded {
        /// The stream.
        stream: u32,
        /// True from the program to the donor; false for the way back.
        is_there: bool,
    },
    /// Bytes came out of a stream.
    StreamRead {
        /// A donor's own number for it; for a program the stream.
        end: u32,
        /// True from the program to the donor; false for the way back.
        is_there: bool,
        /// The bytes.
        data: Bytes,
    },
    /// The end of the sending came out of a stream.
    StreamEndSeen {
        /// A donor's own number for it; for a program the stream.
        end: u32,
        /// True from the program to the donor; false for the way back.
        is_there: bool,
    },
    /// A stream ended early.
    StreamClosed {
        /// The stream.
        stream: u32,
        /// Error text.
        text: String,
    },
    /// A donor stores bytes for a recipient.
    Stored {
        /// The region.
        region: u32,
        /// The first byte.
        at: u32,
        /// The bytes.
        data: Bytes,
    },
    /// At the end: a grant of a donor, and its contents.
    Holds {
        /// The region.
        region: u32,
        /// All its bytes.
        data: Bytes,
    },
    /// At the end: packets that reached a node's relay without credit.
    Overruns {
        /// Number of packets.
        packets: u64,
    },
    /// At the end: a region that a program has mapped.
    Uses {
        /// The region.
        region: u32,
    },
}

/// Cause of a failed access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The donor does not know the grant.
    UnknownGrant,
    /// The donor refused it for another reason.
    Refused,
    /// The donor is down.
    Down,
    /// A posted write before a failed fence: another one may have failed.
    Uncertain,
    /// The window was unmapped meanwhile.
    Unmapped,
    /// An error that must never happen.
    Wrong,
}

/// Bytes, written as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Bytes(pub Vec<u8>);

/// The notes file of a process.
#[derive(Debug)]
pub struct Notebook {
    file: Mutex<File>,
}

impl Notebook {
    /// Creates one for a process of the rack in this folder.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(folder: &Path, source: Source) -> Result<Self> {
        let path = path(folder, source);
        let file =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { file: Mutex::new(file) })
    }

    /// Writes a note. The kernel has it when this returns.
    ///
    /// # Panics
    /// When the file system is full.
    pub fn note(&self, what: What) {
        let mut file = self.file.lock().expect("a thread panicked while it wrote a note");
        let note = Note { at_ns: monotonic_ns(), what };
        let mut line = serde_json::to_vec(&note).expect("a note has only plain data");
        line.push(b'\n');
        file.write_all(&line).expect("room for notes");
    }
}

/// Returns the notes of a process so far. A line cut short by its death does not count.
///
/// # Errors
/// When they cannot be read.
pub fn read(folder: &Path, source: Source) -> Result<Vec<Note>> {
    let path = path(folder, source);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line| serde_json::from_str(line).context("cannot parse a note");
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
    fn notes_survive_a_cut_line() {
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
