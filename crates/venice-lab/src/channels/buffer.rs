//! A buffer that starts where a page starts.

/// Bytes of memory whose first lies at the start of a page, as a slab's does. Where source and target
/// of a copy lie against each other within a page decides how fast the processor copies: on some, a
/// target a few bytes further than its source halves the speed. So everybody gets the same.
#[derive(Debug)]
pub(super) struct PageAligned {
    bytes: Vec<u8>,
    start: usize,
}

const PAGE_BYTES: usize = 4096;

impl PageAligned {
    pub(super) fn new(len: usize, fill: u8) -> Self {
        let bytes = vec![fill; len + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        Self { bytes, start }
    }
}

impl std::ops::Deref for PageAligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.bytes.len() - PAGE_BYTES + self.start]
    }
}

impl std::ops::DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - PAGE_BYTES + self.start;
        &mut self.bytes[self.start..end]
    }
}

#[test]
fn it_starts_at_a_page_and_is_as_long_as_asked() {
    let mut buffer = PageAligned::new(10_000, 7);
    assert_eq!((buffer.as_ptr() as usize % PAGE_BYTES, buffer.len()), (0, 10_000));
    buffer[9_999] = 1;
    assert_eq!(buffer.iter().filter(|byte| **byte == 7).count(), 9_999);
}
