//! The slabs of one donor: a fixed number, made when the agent starts of the machine's memory, where
//! they are locked, or of memory devices.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use venice_wire::SLAB_BYTES;

use super::{DonorError, MemoryDevice, Slab};

/// All slabs a donor lends, less those that are out. Shared by reference between threads.
///
/// A slab that comes back is never lent again: its memfd is dropped and a fresh one made in its
/// place. So a stale mapping kept by a past recipient shows that recipient's own old bytes and
/// nothing else, whatever the slab's successor holds. A place in a device is made a slab again when
/// nobody has it mapped any more.
#[derive(Debug)]
pub struct SlabPool {
    maker: Maker,
    /// Held for moments only: slabs are made and dropped outside of it.
    stock: Mutex<Stock>,
}

/// Where slabs come from.
#[derive(Debug)]
enum Maker {
    /// This machine's memory.
    Memory,
    /// The places of these devices.
    Devices(Vec<MemoryDevice>),
}

/// A slab's place in a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    device: usize,
    index: usize,
}

#[derive(Debug, Default)]
struct Stock {
    free: Vec<Slab>,
    lent: usize,
    /// Slabs that came back and are not replaced yet.
    missing: usize,
    /// Of devices: where no slab is that could be lent.
    vacant: VecDeque<Place>,
}

impl SlabPool {
    /// Makes as many slabs as fit into `lend_bytes` (rounded down).
    ///
    /// # Errors
    /// [`DonorError::TooSmall`] when not one slab fits; [`DonorError::ShortOfMemory`] when this
    /// machine has less memory available; [`DonorError::LockLimit`] when the limit on locked
    /// memory is lower.
    pub fn new(lend_bytes: u64) -> Result<Self, DonorError> {
        let count = lend_bytes / SLAB_BYTES;
        if count == 0 {
            return Err(DonorError::TooSmall { lend_bytes });
        }
        // Asked first: a machine that runs out while we lock pages kills somebody instead.
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

    /// All slabs of these devices, zeroed. Those that recipients of an agent before this one still have
    /// mapped are missing at first.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_devices(devices: Vec<MemoryDevice>) -> Result<Self, DonorError> {
        let places = |device: usize| {
            (0..devices[device].slab_count()).map(move |index| Place { device, index })
        };
        let vacant: VecDeque<Place> = (0..devices.len()).flat_map(places).collect();
        let stock = Stock { missing: vacant.len(), vacant, ..Stock::default() };
        let pool = Self { stock: Mutex::new(stock), maker: Maker::Devices(devices) };
        match pool.replenish() {
            Ok(()) | Err(DonorError::StillMapped { .. }) => Ok(pool),
            Err(error) => Err(error),
        }
    }

    /// Whether this machine's memory is more when slabs are given up.
    pub fn is_memory(&self) -> bool {
        matches!(self.maker, Maker::Memory)
    }

    /// Takes `count` slabs, or none at all. Does not wait for slabs in the making.
    pub fn take(&self, count: usize) -> Option<Vec<Slab>> {
        let mut stock = self.stock();
        let rest = stock.free.len().checked_sub(count)?;
        stock.lent += count;
        Some(stock.free.split_off(rest))
    }

    /// Takes back slabs that [`SlabPool::take`] gave out, and puts fresh zeroed ones in their
    /// place. This takes milliseconds a slab: call it where nobody waits.
    ///
    /// # Errors
    /// When fresh slabs could not be made. The pool is then smaller by those;
    /// [`SlabPool::replenish`] tries again.
    ///
    /// # Panics
    /// When more slabs come back than are out.
    pub fn give_back(&self, slabs: Vec<Slab>) -> Result<(), DonorError> {
        self.take_in(slabs);
        self.replenish()
    }

    /// Takes back slabs that [`SlabPool::take`] gave out, and leaves their memory to the kernel:
    /// they are missing until [`SlabPool::replenish`], or for good with
    /// [`SlabPool::give_up_missing`].
    ///
    /// # Panics
    /// When more slabs come back than are out.
    pub fn take_in(&self, slabs: Vec<Slab>) {
        let count = slabs.len();
        let places: Vec<Place> = slabs.iter().filter_map(Slab::place).collect();
        drop(slabs);
        let mut stock = self.stock();
        stock.vacant.extend(places);
        assert!(count <= stock.lent, "{count} slabs came back, {} are out", stock.lent);
        stock.lent -= count;
        stock.missing += count;
    }

    /// Does without the slabs that are missing: the pool is smaller by as many.
    pub fn give_up_missing(&self) -> usize {
        std::mem::take(&mut self.stock().missing)
    }

    /// Makes the pool smaller by `count` free slabs, or by all that are free. Their memory is the
    /// kernel's again when they are dropped, which takes a millisecond each.
    pub fn withdraw(&self, count: usize) -> Vec<Slab> {
        let mut stock = self.stock();
        let rest = stock.free.len().saturating_sub(count);
        let withdrawn = stock.free.split_off(rest);
        stock.vacant.extend(withdrawn.iter().filter_map(Slab::place));
        withdrawn
    }

    /// Makes the pool larger by `count` slabs, or by as many as there is memory for; by how many.
    /// Nobody else may be replacing slabs meanwhile.
    pub fn grow(&self, count: usize) -> usize {
        self.stock().missing += count;
        match self.replenish() {
            Ok(()) => count,
            Err(_) => count - self.give_up_missing(),
        }
    }

    /// Makes the slabs that an earlier [`SlabPool::give_back`] could not.
    ///
    /// # Errors
    /// When there is still no memory for them; [`DonorError::StillMapped`] when all that is missing
    /// yet is mapped by somebody.
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
            // Out of the list first: the lock is not held while a slab is wiped.
            let Some(place) = self.stock().vacant.pop_back() else {
                break Err(DonorError::StillMapped { slabs: held.len() });
            };
            match devices[place.device].slab(place.index) {
                Ok(Some(slab)) => break Ok(slab.at(place)),
                Ok(None) => held.push(place),
                Err(error) => {
                    held.push(place);
                    break Err(error);
                }
            }
        };
        // In front: tried again when no other is left.
        held.into_iter().for_each(|place| self.stock().vacant.push_front(place));
        made
    }

    fn explain(&self, error: DonorError, missing: usize) -> DonorError {
        match &self.maker {
            Maker::Memory => explain(error, missing as u64 * SLAB_BYTES),
            Maker::Devices(_) => error,
        }
    }

    /// Slabs that can be taken now.
    pub fn free_slabs(&self) -> usize {
        self.stock().free.len()
    }

    /// Slabs in all: free, lent and missing.
    pub fn total_slabs(&self) -> usize {
        let stock = self.stock();
        stock.free.len() + stock.lent + stock.missing
    }

    /// Counts one missing slab as lent while it is being made, so that of two threads in here
    /// only one makes it.
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
        self.stock.lock().expect("no thread panics with the pool")
    }
}

/// Turns a failure to make or lock a slab into what the operator has to do about it.
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

/// What the kernel says can be allocated without swapping; `None` where it does not say.
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
    fn shrinks_by_what_is_free_and_grows_again() {
        let pool = SlabPool::new(3 * SLAB_BYTES).unwrap();
        let lent = pool.take(1).unwrap();
        assert_eq!(pool.withdraw(5).len(), 2);
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (0, 1));
        pool.take_in(lent);
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (0, 1));
        assert_eq!((pool.give_up_missing(), pool.total_slabs()), (1, 0));
        assert_eq!(pool.grow(3), 3);
        assert_eq!((pool.free_slabs(), pool.total_slabs()), (3, 3));
    }

    #[test]
    fn a_stale_mapping_and_the_next_lease_never_meet() {
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
    fn a_place_in_a_device_is_lent_again_when_nobody_has_it_mapped() {
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
        assert_eq!((pool.give_up_missing(), pool.grow(1)), (1, 0));
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
    fn impossible_sizes_are_refused() {
        assert!(matches!(SlabPool::new(SLAB_BYTES - 1), Err(DonorError::TooSmall { .. })));
        let huge = SlabPool::new(1 << 60).unwrap_err();
        assert!(matches!(huge, DonorError::ShortOfMemory { .. }), "{huge}");
        assert!(huge.to_string().contains("--lend"), "{huge}");
    }

    #[test]
    #[should_panic]
    fn more_slabs_back_than_out_is_our_bug() {
        let pool = SlabPool::new(SLAB_BYTES).unwrap();
        let _ = pool.give_back(vec![Slab::new().unwrap()]);
    }
}
