//! Model checks of the ring algorithm with loom: every interleaving of two threads, and every value
//! that the memory model lets a load see.
#![allow(missing_docs, dead_code)]

#[path = "../../src/ring/algorithm.rs"]
mod algorithm;

use algorithm::{Flag, Reader, Record, RingMemory, Writer, lines_of};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Bytes of a record of one line, and of one of two lines.
const ONE_LINE: usize = 40;
const TWO_LINES: usize = 200;

/// State of one ring, shared by two threads. The payload is a number in each line, in a cell that
/// loom checks for races; it overwrites words, as in the real ring.
struct Shared {
    words: Vec<AtomicU64>,
    payload: Vec<UnsafeCell<u64>>,
    head: AtomicU64,
    flags: [AtomicBool; 2],
    /// The two doorbells: true if rung.
    bells: [(Mutex<bool>, Condvar); 2],
}

#[derive(Clone)]
struct Memory(Arc<Shared>);

impl Memory {
    fn new(lines: u64, spare: u64) -> Self {
        let bell = || (Mutex::new(false), Condvar::new());
        Self(Arc::new(Shared {
            words: (0..lines).map(|_| AtomicU64::new(0)).collect(),
            payload: (0..lines + spare).map(|_| UnsafeCell::new(0)).collect(),
            head: AtomicU64::new(0),
            flags: [AtomicBool::new(false), AtomicBool::new(false)],
            bells: [bell(), bell()],
        }))
    }

    /// Fills a record's lines with `value`.
    fn fill(&self, line: u64, lines: u64, value: u64) {
        for each in line..line + lines {
            self.0.payload[each as usize].with_mut(|cell| {
                // SAFETY: loom checks that no other thread has access.
                unsafe { *cell = value }
            });
            if each > line
                && let Some(word) = self.0.words.get(each as usize)
            {
                word.store(u64::MAX, Ordering::Relaxed);
            }
        }
    }

    fn check(&self, record: Record, value: u64) {
        for each in record.line..record.line + lines_of(record.len_bytes) {
            let found = self.0.payload[each as usize].with(|cell| {
                // SAFETY: loom checks that no thread writes meanwhile.
                unsafe { *cell }
            });
            assert_eq!(found, value, "line {each}");
        }
    }

    fn ring(&self, bell: Flag) {
        let (rung, signal) = &self.0.bells[bell as usize];
        *rung.lock().unwrap() = true;
        signal.notify_one();
    }

    fn wait_for_ring(&self, bell: Flag) {
        let (rung, signal) = &self.0.bells[bell as usize];
        let mut rung = rung.lock().unwrap();
        while !*rung {
            rung = signal.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl RingMemory for Memory {
    fn word(&self, line: u64) -> u64 {
        self.0.words[line as usize].load(Ordering::Acquire)
    }
    fn clear_word(&self, line: u64) {
        self.0.words[line as usize].store(0, Ordering::Relaxed);
    }
    fn publish_word(&self, line: u64, word: u64) {
        self.0.words[line as usize].store(word, Ordering::Release);
    }
    fn head(&self) -> u64 {
        self.0.head.load(Ordering::Acquire)
    }
    fn publish_head(&self, head: u64) {
        self.0.head.store(head, Ordering::Release);
    }
    fn set_flag(&self, flag: Flag, raised: bool) {
        self.0.flags[flag as usize].store(raised, Ordering::Relaxed);
    }
    fn is_raised(&self, flag: Flag) -> bool {
        self.0.flags[flag as usize].load(Ordering::Relaxed)
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Writes the records numbered `numbers`, sleeping when there is no room, and announces them
/// together.
fn write(writer: &mut Writer<Memory>, numbers: std::ops::Range<u64>, len: fn(u64) -> usize) {
    for number in numbers {
        let line = loop {
            if let Some(line) = writer.reserve().unwrap() {
                break line;
            }
            announce(writer);
            if writer.prepare_sleep().unwrap() {
                writer.memory().wait_for_ring(Flag::WriterSleeps);
            }
        };
        writer.memory().fill(line, lines_of(len(number)), number + 1);
        writer.publish(len(number));
    }
    announce(writer);
}

fn announce(writer: &mut Writer<Memory>) {
    if writer.announce() {
        writer.memory().ring(Flag::ReaderSleeps);
    }
}

/// Reads the records numbered `numbers`, sleeping when there is none.
fn read(reader: &mut Reader<Memory>, numbers: std::ops::Range<u64>, len: fn(u64) -> usize) {
    for number in numbers {
        let record = loop {
            if let Some(record) = reader.peek().unwrap() {
                break record;
            }
            if reader.prepare_sleep().unwrap() {
                reader.memory().wait_for_ring(Flag::ReaderSleeps);
                reader.wake_up();
            }
        };
        assert_eq!(record.len_bytes, len(number));
        reader.memory().check(record, number + 1);
        if reader.consume(record) {
            reader.memory().ring(Flag::WriterSleeps);
        }
    }
}

/// One case for the model checker.
#[derive(Clone, Copy)]
struct Case {
    lines: u64,
    longest: usize,
    /// Length of each record.
    len: fn(u64) -> usize,
    /// Records written and read by one thread alone first, to leave the start of the ring.
    before: u64,
    /// Records in the ring when the second thread starts.
    ahead: u64,
    /// Records that the second thread writes.
    count: u64,
    /// Records that the first thread reads meanwhile.
    meanwhile: u64,
}

fn check(case: Case) {
    let Case { lines, longest, len, before, ahead, count, meanwhile } = case;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = Memory::new(lines, lines_of(longest));
        let mut writer = Writer::new(memory.clone(), lines, longest);
        let mut reader = Reader::new(memory, lines, longest);
        for number in 0..before {
            write(&mut writer, number..number + 1, len);
            read(&mut reader, number..number + 1, len);
        }
        let (written, end) = (before + ahead, before + ahead + count);
        write(&mut writer, before..written, len);
        let thread = thread::spawn(move || write(&mut writer, written..end, len));
        read(&mut reader, before..before + meanwhile, len);
        thread.join().unwrap();
        read(&mut reader, before + meanwhile..end, len);
        assert_eq!(reader.peek(), Ok(None), "every byte was written");
    });
}

const SMALL: Case = Case {
    lines: 4,
    longest: ONE_LINE,
    len: |_| ONE_LINE,
    before: 0,
    ahead: 0,
    count: 2,
    meanwhile: 2,
};

/// Neither side misses the other's wake-up, and no record is read before it is written.
#[test]
fn empty_ring_wakes_reader() {
    check(SMALL);
}

/// Four lines hold at most three records: the writer must wait for room, and overwrites lines of
/// the lap before.
#[test]
fn full_ring_wakes_writer() {
    check(Case { before: 1, ahead: 1, count: 3, meanwhile: 4, ..SMALL });
}

/// Sixteen lines; the reader releases two at a time, and they are overwritten at once.
#[test]
fn released_lines_were_read() {
    check(Case { lines: 16, before: 2, ahead: 14, count: 3, meanwhile: 2, ..SMALL });
}

/// Records of one and of two lines; one of them runs on into the spare line behind the ring.
#[test]
fn records_cross_ring_end() {
    let len = |number| if number % 2 == 0 { TWO_LINES } else { ONE_LINE };
    check(Case { lines: 8, longest: TWO_LINES, len, before: 4, count: 3, meanwhile: 3, ..SMALL });
}
