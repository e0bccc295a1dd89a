//! The mappings of this process (`/proc/self/maps`, `proc_pid_maps(5)`). Nothing here allocates: it
//! may be read in a signal handler.

use super::sys;

/// A mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// First address behind it.
    pub end: usize,
    /// It may be read.
    pub is_readable: bool,
    /// It may be written to.
    pub is_writable: bool,
    /// It is of a file, or has a name like `[stack]`.
    pub is_named: bool,
}

impl Mapping {
    /// True if it may be touched.
    pub fn is_usable(&self) -> bool {
        self.is_readable || self.is_writable
    }
}

/// A column of a line: `START-END rwxp OFFSET DEVICE INODE NAME`.
#[derive(Clone, Copy)]
enum Column {
    Start,
    End,
    Protection,
    Rest,
}

/// Calls `each` for every mapping in the order of the addresses, until it returns false.
pub fn for_each(mut each: impl FnMut(Mapping) -> bool) {
    let Ok(maps) = sys::open_readonly(b"/proc/self/maps\0") else { return };
    let mut text = [0u8; 4096];
    let mut line = Line::default();
    'maps: while let Ok(len_bytes @ 1..) = sys::read(maps, &mut text) {
        for &byte in &text[..len_bytes] {
            if let Some(mapping) = line.take(byte)
                && !each(mapping)
            {
                break 'maps;
            }
        }
    }
    sys::close(maps);
}

/// A line, read byte by byte.
struct Line {
    column: Column,
    number: usize,
    mapping: Mapping,
}

impl Default for Line {
    fn default() -> Self {
        Line { column: Column::Start, number: 0, mapping: Mapping::default() }
    }
}

impl Line {
    /// Takes the next byte; returns the mapping at the end of its line.
    fn take(&mut self, byte: u8) -> Option<Mapping> {
        match (self.column, byte) {
            (_, b'\n') => return Some(std::mem::take(self).mapping),
            (Column::Start, b'-') => {
                self.mapping.start = std::mem::take(&mut self.number);
                self.column = Column::End;
            }
            (Column::End, b' ') => {
                self.mapping.end = self.number;
                self.column = Column::Protection;
            }
            (Column::Start | Column::End, digit) => {
                let digit = char::from(digit).to_digit(16).unwrap_or(0);
                self.number = self.number << 4 | digit as usize;
            }
            (Column::Protection, b'r') => self.mapping.is_readable = true,
            (Column::Protection, b'w') => self.mapping.is_writable = true,
            (Column::Protection, b' ') => self.column = Column::Rest,
            (Column::Rest, b'/' | b'[') => self.mapping.is_named = true,
            (Column::Protection | Column::Rest, _) => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_becomes_mapping() {
        let mut line = Line::default();
        let text =
            b"7ffc1000-7ffc3000 rw-p 00000000 00:00 0    [stack]\n1000-2000 ---p 0 00:00 0\n";
        let read: Vec<_> = text.iter().filter_map(|byte| line.take(*byte)).collect();
        let stack = Mapping {
            start: 0x7ffc_1000,
            end: 0x7ffc_3000,
            is_readable: true,
            is_writable: true,
            is_named: true,
        };
        let reserved = Mapping { start: 0x1000, end: 0x2000, ..Mapping::default() };
        assert_eq!(read, [stack, reserved]);
    }

    #[test]
    fn own_stack_is_found() {
        let word = 0u8;
        let stack = &raw const word as usize;
        let mut is_found = false;
        for_each(|mapping| {
            is_found = (mapping.start..mapping.end).contains(&stack) && mapping.is_writable;
            !is_found
        });
        assert!(is_found);
    }
}
