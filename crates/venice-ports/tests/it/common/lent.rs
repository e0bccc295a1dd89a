//! Plain memory that is granted as an agent grants its slabs: accesses copy, and bulk reads are
//! answered from where the bytes are.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

use venice_fabric::{GrantedMemory, LendingMemory, Lent, Refusal};
use venice_wire::{Checksum, GrantId, GrantKey};

/// A handle of such memory.
#[derive(Clone)]
pub struct LentBytes(Arc<Bytes>);

#[derive(Debug)]
struct Bytes(Box<[UnsafeCell<u8>]>);

// SAFETY: bytes are copied in and out, and fed to checksums that fit nothing if somebody writes to
// them meanwhile.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl LentBytes {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Bytes(bytes.into_iter().map(UnsafeCell::new).collect())))
    }
}

impl Bytes {
    fn check(&self, at: u64, len: usize) -> Result<usize, Refusal> {
        let range = at as usize..at as usize + len;
        self.0.get(range).map(|_| at as usize).ok_or(Refusal::OutOfRange)
    }
}

impl LendingMemory for Bytes {
    fn copy_to(&self, offset: usize, into: &mut [u8]) {
        let from = self.0[offset..offset + into.len()].as_ptr().cast::<u8>();
        // SAFETY: in bounds (just sliced); `into` is somebody else's.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn feed(&self, range: Range<usize>, checksum: &mut Checksum) {
        let cells = &self.0[range];
        // SAFETY: as many bytes as there are cells. Who writes to them meanwhile spoils the checksum.
        let bytes = unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) };
        checksum.update(bytes);
    }

    fn address(&self, offset: usize) -> *const u8 {
        self.0[offset].get()
    }
}

impl GrantedMemory for LentBytes {
    fn read(&mut self, _: GrantId, _: GrantKey, at: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let at = self.0.check(at, into.len())?;
        self.0.copy_to(at, into);
        Ok(())
    }

    fn lend(
        &mut self,
        _: GrantId,
        _: GrantKey,
        at: u64,
        len: usize,
    ) -> Result<Option<Lent>, Refusal> {
        let at = self.0.check(at, len)?;
        Ok(Some(Lent::new(Arc::clone(&self.0) as Arc<dyn LendingMemory>, at..at + len)))
    }

    fn write(&mut self, _: GrantId, _: GrantKey, at: u64, from: &[u8]) -> Result<(), Refusal> {
        let at = self.0.check(at, from.len())?;
        let to = self.0.0[at..at + from.len()].as_ptr().cast::<u8>().cast_mut();
        // SAFETY: in bounds (just sliced), inside cells; `from` is somebody else's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}
