//! A page-aligned buffer.

/// Page-aligned bytes, like a slab's. The relative alignment of source and target within a page
/// determines the processor's copy speed: on some, a target a few bytes further than its source
/// halves it. All systems therefore get the same alignment.
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
fn buffer_is_aligned_and_full_length() {
    let mut buffer = PageAligned::new(10_000, 7);
    assert_eq!((buffer.as_ptr() as usize % PAGE_BYTES, buffer.len()), (0, 10_000));
    buffer[9_999] = 1;
    assert_eq!(buffer.iter().filter(|byte| **byte == 7).count(), 9_999);
}
