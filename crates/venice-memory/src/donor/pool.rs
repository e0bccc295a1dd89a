//! The slabs of one donor: a fixed number, created when the agent starts, from the machine's
//! memory, where they are locked, or from memory devices.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use venice_wire::SLAB_BYTES;

use super::{DonorError, MemoryDevice, Slab};

/// The slabs that a donor lends and has not granted. Shared by reference between threads.
///
/// A returned slab is never lent again: its memfd is dropped and a fresh one created in its slot.
/// A stale mapping kept by a past recipient therefore shows only that recipient's own old bytes,
/// whatever the slab's successor holds. A slab of a device is lent again once no process maps it
/// any more.
#[derive(Debug)]
pub struct SlabPool {
    maker: Maker,
    /// Held for moments only: slabs are created and dropped outside of the lock.
    stock: Mutex<Stock>,
}

/// The source of slabs.
#[derive(Debug)]
enum Maker {
    /// This machine's memory.
    Memory,
    /// The slabs of these devices.
    Devices(Vec<MemoryDevice>),
}

/// The position of a slab in the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceSlot {
    device: usize,
    index: usize,
}

#[derive(Debug, Default)]
struct Stock {
    free: Vec<Slab>,
    lent: usize,
    /// Returned slabs that are not replaced yet.
    missing: usize,
    /// The positions in devices without a slab that could be lent.
    vacant: VecDeque<DeviceSlot>,
}

impl SlabPool {
    /// Creates as many slabs as fit into `lend_bytes` (rounded down).
    ///
    /// # Errors
    /// [`DonorError::TooSmall`] if no slab fits; [`DonorError::ShortOfMemory`] if this machine has
    /// less memory available; [`DonorError::LockLimit`] if the limit on locked memory is lower.
    pub fn new(lend_bytes: u64) -> Result<Self, DonorError> {
        let count = lend_bytes / SLAB_BYTES;
        if count == 0 {
            return Err(DonorError::TooSmall { lend_bytes });
        }
        // Checked first: on a machine that runs out of memory while pages are locked, the OOM
        // killer kills some process.
        let need_bytes = count * SLAB_BYTES;
        if let Some(available_bytes) = available_bytes()
            && available_bytes < need_bytes
        {
            return Err(DonorError::ShortOfMemory { need_bytes, available_bytes });
        }
        let free = (0..count).map(|_| Slab::new()).collect::<Result<Vec<_>, _>>();
        let free = free.map_err(|error| explain(error, need_bytes))?;
        Ok(Self { stock: Mutex::new(Stock { free, ..Stock::default() }), maker: Maker::Memory })
    }

    /// The pool of a node that lends no memory.
    pub fn empty() -> Self {
        Self { stock: Mutex::default(), maker: Maker::Memory }
    }

    /// Creates all slabs of these devices, zeroed. Slabs that recipients of an earlier agent still
    /// map are missing at first.
    ///
    /// # Errors
    /// [`DonorError`] if the kernel refuses a slab.
    pub fn of_devices(devices: Vec<MemoryDevice>) -> Result<Self, DonorError> {
        let slots = |device: usize| {
            (0..devices[device].slab_count()).map(move |index| DeviceSlot { device, index })
        };
        let vacant: VecDeque<DeviceSlot> = (0..devices.len()).flat_map(slots).collect();
        let stock = Stock { missing: vacant.len(), vacant, ..Stock::default() };
        let pool = Self { stock: Mutex::new(stock), maker: Maker::Devices(devices) };
        match pool.replenish() {
            Ok(()) | Err(DonorError::StillMapped { .. }) => Ok(pool),
            Err(error) => Err(error),
        }
    }

    /// True if dropping slabs frees memory of this machine.
    pub fn is_memory(&self) -> bool {
        matches!(self.maker, Maker::Memory)
    }

    /// Takes `count` slabs, or none. Does not wait for slabs that are being created.
    pub fn take(&self, count: usize) -> Option<Vec<Slab>> {
        let mut stock = self.stock();
        let rest = stock.free.len().checked_sub(count)?;
        stock.lent += count;
        Some(stock.free.split_off(rest))
    }

    /// Returns slabs of [`SlabPool::take`] and replaces them by fresh zeroed ones. This takes
    /// milliseconds for each slab: call it on a thread without latency demands.
    ///
    /// # Errors
    /// [`DonorError`] if a fresh slab could not be created. The pool is then smaller;
    /// [`SlabPool::replenish`] tries again.
    ///
    /// # Panics
    /// If more slabs come back than were taken.
    pub fn give_back(&self, slabs: Vec<Slab>) -> Result<(), DonorError> {
        self.take_in(slabs);
        self.replenish()
    }

    /// Returns slabs of [`SlabPool::take`] and leaves their memory to the kernel. They are missing
    /// until [`SlabPool::replenish`], or for good after [`SlabPool::give_up_missing`].
    ///
    /// # Panics
    /// If more slabs come back than were taken.
    pub fn take_in(&self, slabs: Vec<Slab>) {
        let count = slabs.len();
        let slots: Vec<DeviceSlot> = slabs.iter().filter_map(Slab::slot).collect();
        drop(slabs);
        let mut stock = self.stock();
        stock.vacant.extend(slots);
        assert!(count <= stock.lent, "{count} slabs returned, only {} taken", stock.lent);
        stock.lent -= count;
        stock.missing += count;
    }

    /// Shrinks the pool by the missing slabs, by `most` at most, and returns their number. Others may
    /// wait for the rest.
    pub fn give_up_missing(&self, most: usize) -> usize {
        let mut stock = self.stock();
        let count = stock.missing.min(most);
        stock.missing -= count;
        count
    }

    /// Shrinks the pool by `count` free slabs, or by all free ones, and returns them. Dropping them
    /// returns their memory to the kernel and takes a millisecond for each.
    pub fn withdraw(&self, count: usize) -> Vec<Slab> {
        let mut stock = self.stock();
        let rest = stock.free.len().saturating_sub(count);
        let withdrawn = stock.free.split_off(rest);
        stock.vacant.extend(withdrawn.iter().filter_map(Slab::slot));
        withdrawn
    }

    /// Grows the pool by `count` slabs, or by as many as there is memory for, and returns their
    /// number. No other thread may replace slabs meanwhile.
    pub fn grow(&self, count: usize) -> usize {
        self.stock().missing += count;
        match self.replenish() {
            Ok(()) => count,
            Err(_) => count - self.give_up_missing(count),
        }
    }

    /// Creates the missing slabs.
    ///
    /// # Errors
    /// [`DonorError`] if there is still no memory for them; [`DonorError::StillMapped`] if all
    /// missing slabs are still mapped by their last recipients.
    pub fn replenish(&self) -> Result<(), DonorError> {
        while self.claim_missing() {
            match self.make() {
                Ok(slab) => {
                    let mut stock = self.stock();
                    stock.free.push(slab);
                    stock.lent -= 1;
                }
                Err(error) => {
                    let mut stock = self.stock();
                    stock.lent -= 1;
                    stock.missing += 1;
                    let missing = stock.missing;
                    drop(stock);
                    return Err(self.explain(error, missing));
                }
            }
        }
        Ok(())
    }

    fn make(&self) -> Result<Slab, DonorError> {
        let Maker::Devices(devices) = &self.maker else { return Slab::new() };
        let mut held = Vec::new();
        let made = loop {
            // Taken from the list first, so that the lock is not held while a slab is zeroed.
            let Some(slot) = self.stock().vacant.pop_back() else {
                break Err(DonorError::StillMapped { slabs: held.len() });
            };
            match devices[slot.device].slab(slot.index) {
                Ok(Some(slab)) => break Ok(slab.at(slot)),
                Ok(None) => held.push(slot),
                Err(error) => {
                    held.push(slot);
                    break Err(error);
                }
            }
        };
        // At the front: tried again when no other is left.
        held.into_iter().for_each(|slot| self.stock().vacant.push_front(slot));
        made
    }

    fn explain(&self, error: DonorError, missing: usize) -> DonorError {
        match &self.maker {
            Maker::Memory => explain(error, missing as u64 * SLAB_BYTES),
            Maker::Devices(_) => error,
        }
    }

    /// The number of slabs that can be taken now.
    pub fn free_slabs(&self) -> usize {
        self.stock().free.len()
    }

    /// The number of all slabs: free, lent and missing.
    pub fn total_slabs(&self) -> usize {
        let stock = self.stock();
        stock.free.len() + stock.lent + stock.missing
    }

    /// Counts one missing slab as lent while it is being created, so that only one of two threads
    /// creates it.
    fn claim_missing(&self) -> bool {
        let mut stock = self.stock();
        let any = stock.missing > 0;
        if any {
            stock.missing -= 1;
            stock.lent += 1;
        }
        any
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().expect("slab pool not poisoned")
    }
}

/// Turns an error of creating or locking a slab into one with its remedy.
fn explain(error: DonorError, need_bytes: u64) -> DonorError {
    if let Some(available_bytes) = available_bytes()
        && available_bytes < SLAB_BYTES
    {
        return DonorError::ShortOfMemory { need_bytes, available_bytes };
    }
    let limit_bytes = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match (&error, limit_bytes) {
        (DonorError::Lock { .. }, Some(limit_bytes)) if limit_bytes < need_bytes => {
            DonorError::LockLimit { need_bytes, limit_bytes }
        }
        _ => error,
    }
}

/// The memory that can be allocated without swapping, bytes, as the kernel estimates it; `None` if
/// the kernel does not report it.
pub fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::super::memory_device::tests::{device, soon};
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use venice_ports::shm::MappedSlab;

    #[test]
    fn takes_all_or_nothing() {
        let pool = SlabPool::new(2 * SLAB_BYTES + 17).unwrap();
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (2, 2));
        assert!(pool.take(3).is_none());
        assert_eq!(pool.free_slabs(), 2);
        let slabs = pool.take(2).unwrap();
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (0, 2));
        pool.give_back(slabs).unwrap();
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (2, 2));
    }

    #[test]
    fn shrinks_by_free_slabs_and_regrows() {
        let pool = SlabPool::new(3 * SLAB_BYTES).unwrap();
        let lent = pool.take(1).unwrap();
        assert_eq!(pool.withdraw(5).len(), 2);
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (0, 1));
        pool.take_in(lent);
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (0, 1));
        assert_eq!((pool.give_up_missing(1), pool.total_slabs()), (1, 0));
        assert_eq!(pool.grow(3), 3);
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (3, 3));
    }

    #[test]
    fn stale_mapping_is_isolated() {
        let pool = SlabPool::new(SLAB_BYTES).unwrap();
        let slabs = pool.take(1).unwrap();
        slabs[0].write(0, b"old secret");
        let (file, len) = (slabs[0].file().unwrap(), SLAB_BYTES as usize);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let stale = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file, 0).unwrap()
        };
        pool.give_back(slabs).unwrap();

        let next = pool.take(1).unwrap();
        let mut seen = [1u8; 10];
        next[0].read(0, &mut seen);
        assert_eq!(seen, [0; 10], "the next recipient sees nothing of the last one");
        next[0].write(0, b"new secret");
        // SAFETY: `stale` is mapped, readable and writable, and 10 bytes long at least.
        unsafe {
            assert_eq!(std::slice::from_raw_parts(stale.cast::<u8>(), 10), b"old secret");
            stale.cast::<u8>().write(b'X');
        }
        next[0].read(0, &mut seen);
        assert_eq!(&seen, b"new secret", "the last recipient cannot touch it");
        // SAFETY: our own mapping, not used any more.
        unsafe { munmap(stale, len).unwrap() };
    }

    #[test]
    fn device_slab_relends_after_unmapping() {
        let (_file, device) = device(2);
        let pool = SlabPool::of_devices(vec![device]).unwrap();
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (2, 2));
        let slabs = pool.take(2).unwrap();
        slabs[0].write(0, b"old secret");
        let recipients = slabs[0].file().unwrap();
        let stale = MappedSlab::map(&recipients, SLAB_BYTES as usize).unwrap();
        drop(recipients);
        let held = pool.give_back(slabs).unwrap_err();
        assert!(matches!(held, DonorError::StillMapped { .. }), "{held}");
        soon("one is held", || {
            matches!(pool.replenish(), Err(DonorError::StillMapped { slabs: 1 })).then_some(())
        });
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (1, 2));
        assert_eq!((pool.give_up_missing(1), pool.grow(1)), (1, 0));
        let free = pool.take(1).unwrap();
        assert!(pool.take(1).is_none());
        drop(stale);
        let again = soon("the other is free", || {
            pool.grow(1);
            pool.take(1)
        });
        let mut seen = [1u8; 10];
        again[0].read(0, &mut seen);
        assert_eq!(seen, [0; 10]);
        pool.take_in([free, again].into_iter().flatten().collect());
        soon("both are free", || pool.replenish().ok());
        assert_eq!((pool.withdraw(1).len(), pool.free_slabs(), pool.total_slabs()), (1, 1, 1));
        soon("both are there", || (pool.grow(1) == 1).then_some(()));
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (2, 2));
    }

    #[test]
    fn missing_slabs_of_others_stay() {
        let (_file, device) = device(3);
        let pool = SlabPool::of_devices(vec![device]).unwrap();
        let slabs = pool.take(3).unwrap();
        let stale: Vec<MappedSlab> = slabs
            .iter()
            .map(|slab| MappedSlab::map(&slab.file().unwrap(), SLAB_BYTES as usize).unwrap())
            .collect();
        pool.take_in(slabs);
        assert_eq!((pool.give_up_missing(1), pool.total_slabs()), (1, 2));
        assert_eq!((pool.grow(1), pool.total_slabs()), (0, 2), "two are not its own");
        drop(stale);
        soon("the two are there", || pool.replenish().ok());
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (2, 2));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(matches!(SlabPool::new(SLAB_BYTES - 1), Err(DonorError::TooSmall { .. })));
        let huge = SlabPool::new(1 << 60).unwrap_err();
        assert!(matches!(huge, DonorError::ShortOfMemory { .. }), "{huge}");
        assert!(huge.to_string().contains("--lend"), "{huge}");
    }

    #[test]
    #[should_panic]
    fn returning_untaken_slab_panics() {
        let pool = SlabPool::new(SLAB_BYTES).unwrap();
        let _ = pool.give_back(vec![Slab::new().unwrap()]);
    }
}
