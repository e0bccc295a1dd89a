//! ELF headers of a core file: encoded and decoded (`elf(5)`).

/// Bytes of an ELF header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a program header.
pub const SEGMENT_BYTES: usize = 56;
/// Bytes of a section header.
pub const SECTION_BYTES: usize = 64;
/// Segment without meaning.
pub const PT_NULL: u32 = 0;
/// Segment of memory.
pub const PT_LOAD: u32 = 1;
/// Segment of notes.
pub const PT_NOTE: u32 = 4;
/// In place of a number of segments that needs more than 16 bits.
const PN_XNUM: usize = 0xffff;
const ET_CORE: u16 = 4;
const EM_X86_64: u16 = 62;
/// 64-bit, little-endian, version 1, System V.
const IDENT: [u8; 16] = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0";

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its type.
    pub kind: u32,
    /// Readable 4, writable 2, executable 1.
    pub flags: u32,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// First address.
    pub address: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Alignment, bytes.
    pub align: u64,
}

impl Segment {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_BYTES);
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        let words = [self.offset, self.address, 0, self.file_bytes, self.memory_bytes, self.align];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    /// Decodes one of [`SEGMENT_BYTES`] bytes.
    pub fn decode(bytes: &[u8]) -> Segment {
        let word = |at| u64_at(bytes, at);
        Segment {
            kind: u32_at(bytes, 0),
            flags: u32_at(bytes, 4),
            offset: word(8),
            address: word(16),
            file_bytes: word(32),
            memory_bytes: word(40),
            align: word(48),
        }
    }
}

/// The place of the program headers in a core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Offset of the first.
    pub segments_at: u64,
    /// Offset of the section header with their number, if 16 bits are too few.
    pub section_at: Option<u64>,
    /// Their number, unless it is in the section header.
    pub count: usize,
}

/// Encodes the header of a core file with `count` segments right behind it, and the section header
/// that goes behind them where there are 65535 or more.
pub fn encode_head(count: usize) -> (Vec<u8>, Vec<u8>) {
    let is_extended = count >= PN_XNUM;
    let section_at = if is_extended { HEADER_BYTES + count * SEGMENT_BYTES } else { 0 };
    let mut head = IDENT.to_vec();
    head.extend(ET_CORE.to_le_bytes());
    head.extend(EM_X86_64.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    let words = [0, HEADER_BYTES as u64, section_at as u64];
    head.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    head.extend(0u32.to_le_bytes());
    let section_bytes = if is_extended { SECTION_BYTES } else { 0 };
    let halves = [
        HEADER_BYTES,
        SEGMENT_BYTES,
        count.min(PN_XNUM),
        section_bytes,
        section_bytes / SECTION_BYTES,
        0,
    ];
    head.extend(halves.iter().flat_map(|half| (*half as u16).to_le_bytes()));
    let mut section = Vec::new();
    if is_extended {
        section.resize(SECTION_BYTES, 0);
        section[44..48].copy_from_slice(&(count as u32).to_le_bytes());
    }
    (head, section)
}

/// Decodes the header of a core file; `Err` has the reason why it is none of this machine's.
pub fn decode_head(bytes: &[u8]) -> Result<Head, &'static str> {
    if bytes.len() < HEADER_BYTES || bytes[..6] != IDENT[..6] {
        return Err("no ELF header");
    }
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    if half(16) != ET_CORE || half(18) != EM_X86_64 {
        return Err("another type of ELF file");
    }
    let (segments_at, section_at) = (u64_at(bytes, 32), u64_at(bytes, 40));
    let count = half(56) as usize;
    let section_at = (count == PN_XNUM).then_some(section_at);
    Ok(Head { segments_at, section_at, count })
}

/// Decodes the number of segments from the first section header.
pub fn count_in_section(section: &[u8]) -> usize {
    u32_at(section, 44) as usize
}

/// Decodes the little-endian word at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_segments_use_section() {
        for (count, is_extended) in [(3, false), (0xfffe, false), (0xffff, true), (70_000, true)] {
            let (head, section) = encode_head(count);
            let decoded = decode_head(&head).unwrap();
            assert_eq!((head.len(), decoded.segments_at), (HEADER_BYTES, HEADER_BYTES as u64));
            assert_eq!(decoded.section_at.is_some(), is_extended);
            let count_read = if is_extended { count_in_section(&section) } else { decoded.count };
            assert_eq!(count_read, count);
        }
        assert!(decode_head(&[0; HEADER_BYTES]).is_err());
    }

    #[test]
    fn segment_survives_encoding() {
        let segment = Segment {
            kind: PT_LOAD,
            flags: 6,
            offset: 1 << 33,
            address: 0x7f00_0000_0000,
            file_bytes: 8192,
            memory_bytes: 12288,
            align: 4096,
        };
        assert_eq!(Segment::decode(&segment.encode()), segment);
    }
}
