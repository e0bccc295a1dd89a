//! Byte offsets of members of the kernel's structures, from its type information (BTF).
//!
//! Source: `Documentation/bpf/btf.rst` of Linux.

use std::ops::Range;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// Bytes of a type's name, kind and size.
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
/// Nesting of structures without names that is followed.
const MOST_NESTED: u32 = 8;

const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const RESTRICT: u32 = 11;
const FUNCTION_PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const DATA_SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const ENUM_64: u32 = 19;

/// The type information of a kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    strings: &'a [u8],
    /// Types by their number, less one.
    types: Vec<Type<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Type<'a> {
    name: u32,
    kind: u32,
    /// True if offsets of members hold the size of a bit field too.
    has_bit_fields: bool,
    /// Its size, or the number of the type it stands for.
    size_or_type: u32,
    members: &'a [u8],
}

impl<'a> Btf<'a> {
    /// Parses the contents of `/sys/kernel/btf/vmlinux`. `None`: they are malformed.
    pub fn parse(text: &'a [u8]) -> Option<Btf<'a>> {
        let header: &[u8] = text.get(..HEADER_BYTES)?;
        if u16::from_le_bytes([header[0], header[1]]) != MAGIC {
            return None;
        }
        let word = |at| u32_at(header, at).map(|word| word as usize);
        let first = word(4)?;
        let section = |at: usize| -> Option<&'a [u8]> {
            let start = first.checked_add(word(at)?)?;
            text.get(start..start.checked_add(word(at + 4)?)?)
        };
        let (mut rest, strings) = (section(8)?, section(16)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            let (found, len) = Type::parse(rest)?;
            types.push(found);
            rest = &rest[len..];
        }
        Some(Btf { strings, types })
    }

    /// Returns the bytes of a member of a structure.
    pub fn member(&self, structure: &str, member: &str) -> Option<Range<usize>> {
        let mut named = self.types.iter().filter(|it| it.kind == STRUCT && !it.members.is_empty());
        let found = named.find(|it| self.name(it.name) == Some(structure.as_bytes()))?;
        self.member_of(found, member, MOST_NESTED)
    }

    /// Returns the size of a structure in bytes.
    pub fn size(&self, structure: &str) -> Option<usize> {
        let mut named = self.types.iter().filter(|it| it.kind == STRUCT && !it.members.is_empty());
        let found = named.find(|it| self.name(it.name) == Some(structure.as_bytes()))?;
        Some(found.size_or_type as usize)
    }

    fn member_of(&self, structure: &Type<'_>, member: &str, nested: u32) -> Option<Range<usize>> {
        for bytes in structure.members.chunks_exact(MEMBER_BYTES) {
            let (name, kind, at) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?);
            let at = (if structure.has_bit_fields { at & 0xff_ffff } else { at } / 8) as usize;
            let target = self.resolve(kind);
            if self.name(name)? == member.as_bytes() {
                let bytes = target.filter(|it| matches!(it.kind, INT | STRUCT | UNION));
                return Some(
                    at..at + bytes.map_or(size_of::<u64>(), |it| it.size_or_type as usize),
                );
            }
            let inner = target.filter(|it| matches!(it.kind, STRUCT | UNION) && nested > 0);
            if let Some(inner) = inner.filter(|_| self.name(name).is_some_and(<[u8]>::is_empty))
                && let Some(found) = self.member_of(inner, member, nested - 1)
            {
                return Some(at + found.start..at + found.end);
            }
        }
        None
    }

    /// Returns the type behind its other names and its qualifiers.
    fn resolve(&self, mut number: u32) -> Option<&Type<'a>> {
        for _ in 0..self.types.len() {
            let found = self.types.get((number as usize).checked_sub(1)?)?;
            if !(TYPEDEF..=RESTRICT).contains(&found.kind) {
                return Some(found);
            }
            number = found.size_or_type;
        }
        None
    }

    fn name(&self, offset: u32) -> Option<&'a [u8]> {
        self.strings.get(offset as usize..)?.split(|byte| *byte == 0).next()
    }
}

impl<'a> Type<'a> {
    /// Parses the first type of `text`; returns its length too.
    fn parse(text: &'a [u8]) -> Option<(Type<'a>, usize)> {
        let (name, info, size_or_type) = (u32_at(text, 0)?, u32_at(text, 4)?, u32_at(text, 8)?);
        let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
        let more_bytes = match kind {
            INT | VARIABLE | DECLARATION_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | DATA_SECTION | ENUM_64 => count * MEMBER_BYTES,
            ENUM | FUNCTION_PROTOTYPE => count * 8,
            _ => 0,
        };
        let more = text.get(TYPE_BYTES..TYPE_BYTES + more_bytes)?;
        let members = if matches!(kind, STRUCT | UNION) { more } else { &[] };
        let has_bit_fields = info >> 31 != 0;
        let found = Type { name, kind, has_bit_fields, size_or_type, members };
        Some((found, TYPE_BYTES + more_bytes))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().expect("four bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `struct s { int a; struct { T b; }; }` with `typedef int T`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0s\0a\0b\0T\0";
        let mut types: Vec<u32> = Vec::new();
        let info = |kind: u32, count: u32| kind << 24 | count;
        types.extend([1, info(INT, 0), 4, 32]); // 1: int
        types.extend([11, info(TYPEDEF, 0), 1]); // 2: T
        types.extend([0, info(STRUCT, 1), 4, 9, 2, 0]); // 3: { T b; }
        types.extend([5, info(STRUCT, 2), 8, 7, 1, 0, 0, 3, 32]); // 4: s
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut text = MAGIC.to_le_bytes().to_vec();
        text.extend([1, 0]);
        let words = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        text.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        text.extend(types);
        text.extend(strings);
        text
    }

    #[test]
    fn nested_member_is_found() {
        let text = sample();
        let btf = Btf::parse(&text).unwrap();
        assert_eq!(btf.member("s", "a"), Some(0..4));
        assert_eq!(btf.member("s", "b"), Some(4..8));
        assert_eq!(btf.size("s"), Some(8));
        assert_eq!((btf.member("s", "c"), btf.member("t", "a")), (None, None));
    }

    #[test]
    fn own_kernel_is_parsed() {
        let Ok(text) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("SKIPPED own_kernel_is_parsed: no bpf");
            return;
        };
        let btf = Btf::parse(&text).unwrap();
        assert!(btf.member("task_struct", "files").is_some());
        assert!(btf.member("pipe_inode_info", "tail").is_some());
        assert!(btf.size("pipe_buffer").is_some_and(|bytes| bytes >= 40));
    }

    proptest! {
        #[test]
        fn malformed_text_is_refused(
            changes in prop::collection::vec((0usize..200, any::<u8>()), 0..8),
            len in 0usize..200,
        ) {
            let mut text = sample();
            for (at, byte) in changes {
                if let Some(place) = text.get_mut(at) {
                    *place = byte;
                }
            }
            text.truncate(len);
            if let Some(btf) = Btf::parse(&text) {
                let _ = (btf.member("s", "b"), btf.size("s"));
            }
        }
    }
}
