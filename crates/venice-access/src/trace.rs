//! Access traces: what a program's run asked of memory, recorded once and replayed at will.
//!
//! ```text
//! 8 bytes   "VENTRACE"
//! 2 bytes   form, little-endian: 1
//! rest      zlib (RFC 1950, so with a checksum), in it numbers in LEB128:
//!           bytes and ways of the filter, pages, instructions, number of accesses,
//!           length of the origin, the origin in UTF-8,
//!           then three columns: a byte for each kind, instructions since the access before,
//!           difference of the lines (zigzag)
//! ```

use std::io::Read;

use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use venice_simkernel::units::Bytes;

use crate::cache::{CacheConfig, LINE_BYTES};

const MAGIC: &[u8; 8] = b"VENTRACE";
const FORM: u16 = 1;

/// Bytes of a page, the unit in which a trace counts its memory.
pub const PAGE_BYTES: u64 = 4096;
/// Lines of a page.
pub const LINES_OF_PAGE: u64 = PAGE_BYTES / LINE_BYTES;

/// The most accesses of a trace.
pub const MOST_ACCESSES: u64 = 1 << 24;
/// The most pages of a trace: 64 GiB.
const MOST_PAGES: u64 = 1 << 24;
/// The most instructions of a trace.
const MOST_INSTRUCTIONS: u64 = 1 << 48;
/// The longest origin, in bytes.
const MOST_ORIGIN: u64 = 4096;
/// The most bytes of an access in the columns.
const MOST_ACCESS_BYTES: u64 = 1 + 2 * 10;

/// The kind of an access that passed the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fills a line for a load: the program waits for it.
    Load,
    /// Fills a line for a store: the store waits, the program does not.
    Store,
    /// Writes a dirty line back.
    WriteBack,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Instructions that the program executed since the access before.
    pub gap: u64,
    /// The line, counted from the start of the data.
    pub line: u64,
    /// The kind.
    pub kind: Kind,
}

/// The recorded accesses of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessTrace {
    /// The program that was recorded, with its parameters.
    pub origin: String,
    /// The cache that the accesses missed.
    pub filter: CacheConfig,
    /// Pages of data; each line is in one of them.
    pub pages: u64,
    /// Instructions of the recorded part.
    pub instructions: u64,
    /// The accesses, in the program's order.
    pub accesses: Vec<Access>,
}

/// A file that is no usable access trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTrace {
    /// It does not begin as one.
    #[error("not an access trace: record one with `venice sim record`")]
    NotATrace,
    /// Another version wrote it.
    #[error("an access trace of form {0}; this version reads form {FORM}: record it anew")]
    Form(u16),
    /// Bytes are missing, damaged or too many.
    #[error("damaged access trace: {0}")]
    Damaged(&'static str),
}

use BadTrace::Damaged;

impl AccessTrace {
    /// Writes it as a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let origin = self.origin.as_bytes();
        let filter = [self.filter.bytes.0, self.filter.ways.into()];
        let sizes = [self.pages, self.instructions, self.accesses.len() as u64];
        filter.into_iter().chain(sizes).for_each(|number| put(&mut body, number));
        put(&mut body, origin.len() as u64);
        body.extend_from_slice(origin);
        body.extend(self.accesses.iter().map(|access| access.kind as u8));
        self.accesses.iter().for_each(|access| put(&mut body, access.gap));
        let mut before = 0;
        for access in &self.accesses {
            let difference = access.line.wrapping_sub(before) as i64;
            put(&mut body, ((difference << 1) ^ (difference >> 63)) as u64);
            before = access.line;
        }
        let mut file = [&MAGIC[..], &FORM.to_le_bytes()].concat();
        let mut encoder = ZlibEncoder::new(&body[..], Compression::best());
        encoder.read_to_end(&mut file).expect("memory can be read");
        file
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it is no access trace, or a damaged one.
    pub fn decode(file: &[u8]) -> Result<Self, BadTrace> {
        let rest = file.strip_prefix(MAGIC).ok_or(BadTrace::NotATrace)?;
        let (form, rest) = rest.split_first_chunk().ok_or(Damaged("it ends early"))?;
        match u16::from_le_bytes(*form) {
            FORM => {}
            other => return Err(BadTrace::Form(other)),
        }
        let most = MOST_ACCESSES * MOST_ACCESS_BYTES + 2 * MOST_ORIGIN;
        let mut body = Vec::new();
        let read = ZlibDecoder::new(rest).take(most).read_to_end(&mut body);
        read.map_err(|_| Damaged("its bytes cannot be decompressed"))?;
        Self::from_body(&mut &body[..])
    }

    fn from_body(body: &mut &[u8]) -> Result<Self, BadTrace> {
        let bytes = Bytes(take(body)?);
        let ways = u32::try_from(take(body)?).map_err(|_| Damaged("its filter is no cache"))?;
        let filter = CacheConfig { bytes, ways };
        filter.sets().ok_or(Damaged("its filter is no cache"))?;
        let pages = at_most(take(body)?, MOST_PAGES)?;
        let instructions = at_most(take(body)?, MOST_INSTRUCTIONS)?;
        let count = at_most(take(body)?, MOST_ACCESSES)? as usize;
        let length = at_most(take(body)?, MOST_ORIGIN)? as usize;
        let origin = split(body, length)?.to_vec();
        let origin = String::from_utf8(origin).map_err(|_| Damaged("its origin is no text"))?;
        let kinds = split(body, count)?;
        let mut gaps = Vec::with_capacity(count);
        for _ in 0..count {
            gaps.push(at_most(take(body)?, instructions)?);
        }
        let mut accesses = Vec::with_capacity(count);
        let mut line = 0u64;
        for (kind, gap) in kinds.iter().zip(gaps) {
            let zigzag = take(body)?;
            line = line.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
            if line / LINES_OF_PAGE >= pages {
                return Err(Damaged("a line lies outside its pages"));
            }
            accesses.push(Access { gap, line, kind: kind_of(*kind)? });
        }
        let executed = accesses.iter().try_fold(0u64, |sum, access| sum.checked_add(access.gap));
        if executed.is_none_or(|sum| sum > instructions) {
            return Err(Damaged("its accesses take more than all its instructions"));
        }
        match body {
            [] => Ok(Self { origin, filter, pages, instructions, accesses }),
            _ => Err(Damaged("bytes are left at its end")),
        }
    }
}

fn kind_of(byte: u8) -> Result<Kind, BadTrace> {
    match byte {
        0 => Ok(Kind::Load),
        1 => Ok(Kind::Store),
        2 => Ok(Kind::WriteBack),
        _ => Err(Damaged("an access is of no known kind")),
    }
}

fn put(to: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn take(from: &mut &[u8]) -> Result<u64, BadTrace> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first().ok_or(Damaged("it ends early"))?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Damaged("a number is too long"))
}

fn split<'a>(from: &mut &'a [u8], length: usize) -> Result<&'a [u8], BadTrace> {
    let (bytes, rest) = from.split_at_checked(length).ok_or(Damaged("it ends early"))?;
    *from = rest;
    Ok(bytes)
}

fn at_most(number: u64, most: u64) -> Result<u64, BadTrace> {
    if number <= most { Ok(number) } else { Err(Damaged("a number is too large")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace_of(parts: Vec<(u64, u64, u8)>) -> AccessTrace {
        let accesses: Vec<Access> = parts
            .into_iter()
            .map(|(gap, line, kind)| Access { gap, line, kind: kind_of(kind).unwrap() })
            .collect();
        AccessTrace {
            origin: "a test".into(),
            filter: CacheConfig { bytes: Bytes(32 << 10), ways: 4 },
            pages: 1 << 10,
            instructions: accesses.iter().map(|access| access.gap).sum::<u64>() + 7,
            accesses,
        }
    }

    fn traces() -> impl Strategy<Value = AccessTrace> {
        prop::collection::vec((0..1u64 << 40, 0..LINES_OF_PAGE << 10, 0..3u8), 0..200)
            .prop_map(trace_of)
    }

    /// Compresses a body as `encode` does.
    fn file_of(body: &[u8]) -> Vec<u8> {
        let mut file = [&MAGIC[..], &FORM.to_le_bytes()].concat();
        ZlibEncoder::new(body, Compression::fast()).read_to_end(&mut file).unwrap();
        file
    }

    proptest! {
        #[test]
        fn file_round_trips(trace in traces()) {
            prop_assert_eq!(AccessTrace::decode(&trace.encode()), Ok(trace));
        }

        #[test]
        fn cut_file_is_refused(trace in traces(), cut in 0.0..1.0) {
            let file = trace.encode();
            let length = (file.len() as f64 * cut) as usize;
            prop_assert!(AccessTrace::decode(&file[..length]).is_err());
        }

        #[test]
        fn flipped_bit_changes_nothing(trace in traces(), at in any::<prop::sample::Index>(), bit in 0..8) {
            let mut file = trace.encode();
            let at = at.index(file.len());
            file[at] ^= 1u8 << bit;
            // Some bits of zlib's form mean nothing: how hard it tried, and what fills its last byte.
            let read = AccessTrace::decode(&file);
            prop_assert!(read.is_err() || read == Ok(trace));
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = AccessTrace::decode(&bytes);
            let _ = AccessTrace::decode(&[&MAGIC[..], &FORM.to_le_bytes(), &bytes].concat());
        }

        /// Bodies with a right checksum: every bound is the decoder's own.
        #[test]
        fn any_body_is_survived(trace in traces(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let file = trace.encode();
            let mut body = Vec::new();
            ZlibDecoder::new(&file[10..]).read_to_end(&mut body).unwrap();
            let at = at.index(body.len());
            body[at] = byte;
            if let Ok(read) = AccessTrace::decode(&file_of(&body)) {
                prop_assert!(read.accesses.iter().all(|one| one.line / LINES_OF_PAGE < read.pages));
                prop_assert_eq!(AccessTrace::decode(&read.encode()), Ok(read));
            }
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let error = |file: &[u8]| AccessTrace::decode(file).unwrap_err().to_string();
        assert!(error(b"").contains("not an access trace"));
        assert!(error(b"VENTRACE\x09\0").contains("form 9"));
        assert!(error(b"VENTRACE").contains("ends early"));
        assert!(error(b"VENTRACE\x01\0hello").contains("cannot be decompressed"));
        // Filter of 64 bytes in one way, so many pages, instructions and accesses, no origin.
        let body = |numbers: [u64; 4], columns: &[u8]| {
            let mut body = Vec::new();
            [64, 1].into_iter().chain(numbers).for_each(|number| put(&mut body, number));
            file_of(&[&body[..], columns].concat())
        };
        assert!(error(&body([1, 5, 1, 0], &[3, 0, 0])).contains("no known kind"));
        assert!(error(&body([1, 5, 1, 0], &[0, 6, 0])).contains("too large"));
        assert!(error(&body([1, 5, 2, 0], &[0, 0, 3, 3, 0, 0])).contains("more than all"));
        assert!(error(&body([0, 5, 1, 0], &[0, 1, 0])).contains("outside its pages"));
        assert!(error(&body([1, 5, 1, 0], &[0, 1, 0, 9])).contains("left at its end"));
        assert!(error(&body([1, 5, 1 << 30, 0], &[])).contains("too large"));
        assert!(AccessTrace::decode(&body([1, 5, 1, 0], &[0, 5, 0])).is_ok());
    }
}
