//! Notes of a core file, laid out as by `fs/binfmt_elf.c` of Linux on x86-64.

use std::collections::BTreeMap;

use super::elf;
use super::mappings::Mapping;
use super::stopped::Thread;
use crate::paged::{PAGE, shared_memory_at};

/// Registers and signals of a thread.
const NT_PRSTATUS: u32 = 1;
/// The process.
pub const NT_PRPSINFO: u32 = 3;
const NT_FPREGSET: u32 = 2;
const NT_AUXV: u32 = 6;
const NT_SIGINFO: u32 = 0x5349_4749;
const NT_FILE: u32 = 0x4649_4c45;
const NT_X86_XSTATE: u32 = 0x202;
/// Bytes of general registers.
pub const REGISTER_BYTES: usize = 216;
/// Bytes of `elf_prstatus` and `elf_prpsinfo`.
const STATUS_BYTES: usize = 336;
const PROCESS_BYTES: usize = 136;
/// Offset of the process id in `elf_prpsinfo`.
const PROCESS_ID_AT: usize = 24;

/// Facts about the whole process.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// Parent, process group and session.
    pub relatives: [u32; 3],
    /// User and group.
    pub ids: [u32; 2],
    /// State as a letter of `proc(5)`.
    pub state: u8,
    /// Nice value.
    pub nice: i8,
    /// Flags of the kernel.
    pub flags: u64,
    /// File name, at most 15 bytes.
    pub name: Vec<u8>,
    /// The arguments, separated by blanks.
    pub arguments: Vec<u8>,
    /// The auxiliary vector.
    pub auxv: Vec<u8>,
}

/// Encodes all notes: those of the process after the first thread's status, as the kernel does.
pub fn encode(process: &ProcessFacts, threads: &[Thread], mappings: &[Mapping]) -> Vec<u8> {
    let mut notes = Vec::new();
    for (index, thread) in threads.iter().enumerate() {
        add(&mut notes, b"CORE\0", NT_PRSTATUS, &status(process, thread));
        if index == 0 {
            add(&mut notes, b"CORE\0", NT_PRPSINFO, &process_info(process));
            add(&mut notes, b"CORE\0", NT_SIGINFO, &thread.siginfo);
            add(&mut notes, b"CORE\0", NT_AUXV, &process.auxv);
            add(&mut notes, b"CORE\0", NT_FILE, &files(mappings));
        }
        add(&mut notes, b"CORE\0", NT_FPREGSET, &thread.floating_point);
        if !thread.extended.is_empty() {
            add(&mut notes, b"LINUX\0", NT_X86_XSTATE, &thread.extended);
        }
    }
    notes
}

fn add(notes: &mut Vec<u8>, name: &[u8], kind: u32, body: &[u8]) {
    for word in [name.len() as u32, body.len() as u32, kind] {
        notes.extend(word.to_le_bytes());
    }
    for part in [name, body] {
        notes.extend(part);
        notes.resize(notes.len().next_multiple_of(4), 0);
    }
}

fn status(process: &ProcessFacts, thread: &Thread) -> Vec<u8> {
    let mut status = vec![0u8; STATUS_BYTES];
    put(&mut status, 12, &thread.signal.to_le_bytes());
    put(&mut status, 16, &thread.pending.to_le_bytes());
    put(&mut status, 24, &thread.blocked.to_le_bytes());
    let ids = [&[thread.id][..], &process.relatives].concat();
    for (index, id) in ids.iter().enumerate() {
        put(&mut status, 32 + 4 * index, &id.to_le_bytes());
    }
    put(&mut status, 112, &thread.registers);
    put(&mut status, 112 + REGISTER_BYTES, &1u32.to_le_bytes());
    status
}

fn process_info(process: &ProcessFacts) -> Vec<u8> {
    let mut info = vec![0u8; PROCESS_BYTES];
    let letters = b"RSDTZW";
    info[0] = letters.iter().position(|it| *it == process.state).unwrap_or(0) as u8;
    info[1] = process.state;
    info[3] = process.nice as u8;
    put(&mut info, 8, &process.flags.to_le_bytes());
    let ids = [&process.ids[..], &[process.pid], &process.relatives].concat();
    for (index, id) in ids.iter().enumerate() {
        put(&mut info, 16 + 4 * index, &id.to_le_bytes());
    }
    put(&mut info, 40, &process.name[..process.name.len().min(15)]);
    put(&mut info, 56, &process.arguments[..process.arguments.len().min(79)]);
    info
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Lists the mapped files, but for memory that is left out: debuggers look for each file.
fn files(mappings: &[Mapping]) -> Vec<u8> {
    let files: Vec<&Mapping> =
        mappings.iter().filter(|it| it.is_file() && !it.is_left_out()).collect();
    let mut note = Vec::new();
    let word = |note: &mut Vec<u8>, word: u64| note.extend(word.to_le_bytes());
    word(&mut note, files.len() as u64);
    word(&mut note, PAGE as u64);
    for file in &files {
        word(&mut note, file.start);
        word(&mut note, file.end);
        word(&mut note, file.offset / PAGE as u64);
    }
    for file in &files {
        note.extend(&file.path);
        note.push(0);
    }
    note
}

/// Finds the process id in the notes of a core file.
pub fn process_id(notes: &[u8]) -> Option<u32> {
    let info = bodies(notes, NT_PRPSINFO).find(|body| body.len() >= PROCESS_BYTES)?;
    Some(elf::u32_at(info, PROCESS_ID_AT))
}

/// Finds the mappings of the run's shared memory in the notes of a core file: the first address of
/// each, and the number of its page there.
pub fn shared_pages(notes: &[u8]) -> BTreeMap<u64, usize> {
    bodies(notes, NT_FILE).next().and_then(shared_of).unwrap_or_default()
}

fn shared_of(files: &[u8]) -> Option<BTreeMap<u64, usize>> {
    let word = |at: usize| {
        let bytes = files.get(at * 8..at * 8 + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    };
    let count = usize::try_from(word(0)?).ok()?;
    let names = files.get(count.checked_mul(24)?.checked_add(16)?..)?;
    let mut shared = BTreeMap::new();
    for (index, name) in names.split(|byte| *byte == 0).take(count).enumerate() {
        if let Some(first) = shared_memory_at(name) {
            let (start, offset_pages) = (word(2 + 3 * index)?, word(4 + 3 * index)?);
            shared.insert(start, first + offset_pages as usize);
        }
    }
    Some(shared)
}

/// Returns the contents of the notes of one type, as far as they are whole.
fn bodies(notes: &[u8], wanted: u32) -> impl Iterator<Item = &[u8]> {
    let mut rest = notes;
    let next = move || {
        let head = rest.get(..12)?;
        let (name, body, kind) = (elf::u32_at(head, 0), elf::u32_at(head, 4), elf::u32_at(head, 8));
        let body_at = 12 + (name as usize).next_multiple_of(4);
        let bytes = rest.get(body_at..body_at + body as usize)?;
        rest = rest.get(body_at + (body as usize).next_multiple_of(4)..).unwrap_or_default();
        Some((kind, bytes))
    };
    std::iter::from_fn(next).filter(move |(kind, _)| *kind == wanted).map(|(_, it)| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_id_found_among_notes() {
        let thread = Thread {
            id: 4712,
            registers: vec![7; REGISTER_BYTES],
            siginfo: vec![0; 128],
            floating_point: vec![0; 512],
            extended: vec![0; 832],
            ..Thread::default()
        };
        let process = ProcessFacts {
            pid: 4711,
            name: b"a-name-of-many-letters".to_vec(),
            ..ProcessFacts::default()
        };
        let notes = encode(&process, &[thread.clone(), thread], &[]);
        assert_eq!(process_id(&notes), Some(4711));
        assert_eq!(notes.len() % 4, 0);
        assert_eq!(process_id(&notes[..300]), None);
        assert!(shared_pages(&notes).is_empty());
    }

    #[test]
    fn shared_memory_found_among_files() {
        let mapping = |start: u64, path: &[u8], offset| Mapping {
            start,
            end: start + 0x4000,
            inode: 7,
            path: path.to_vec(),
            offset,
            ..Mapping::default()
        };
        let mappings = [
            mapping(0x1000, b"/lib/x.so", 0x9000),
            mapping(0x8000, b"/memfd:venice-shared-7000000 (deleted)", 0x2000),
        ];
        let notes = encode(&ProcessFacts::default(), &[Thread::default()], &mappings);
        assert_eq!(shared_pages(&notes), BTreeMap::from([(0x8000, 0x7002)]));
        for len in 0..notes.len() {
            shared_pages(&notes[..len]);
        }
    }
}
