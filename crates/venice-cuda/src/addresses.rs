//! Addresses of devices in this process: each range that a donor gives is reserved here, so that no
//! other device and no memory of the program has the same addresses. An address tells its device, and
//! a program that touches memory of a device faults as it does with the vendor's driver.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Unit of reservations: drivers divide such pieces among small allocations.
pub const GRANULE: u64 = 2 << 20;

/// Owner and number of allocations of each reserved granule.
static RESERVED: Mutex<BTreeMap<u64, (u64, u64)>> = Mutex::new(BTreeMap::new());

/// Other memory has these addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

fn granules(address: u64, bytes: u64) -> RangeInclusive<u64> {
    address / GRANULE..=address.saturating_add(bytes.max(1) - 1) / GRANULE
}

fn map(granule: u64) -> Result<(), Taken> {
    let at = std::ptr::with_exposed_provenance_mut::<c_void>((granule * GRANULE) as usize);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: it takes the place of no other mapping.
    match unsafe { mmap_anonymous(at, GRANULE as usize, ProtFlags::empty(), flags) } {
        Ok(made) if made == at => Ok(()),
        Ok(made) => {
            // A kernel without the flag puts it elsewhere.
            unmap_at(made);
            Err(Taken)
        }
        Err(Errno::EXIST) => Err(Taken),
        // Beyond what a process can have, or more than it may have: nothing of it is there either.
        Err(_) => Ok(()),
    }
}

fn unmap_at(at: *mut c_void) {
    // SAFETY: made by `map`, and nothing points into it.
    let _ = unsafe { munmap(at, GRANULE as usize) };
}

/// Reserves the addresses of an allocation.
///
/// # Errors
/// [`Taken`]: nothing is reserved.
pub fn reserve(owner: u64, address: u64, bytes: u64) -> Result<(), Taken> {
    let mut all = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    for granule in granules(address, bytes) {
        let reserved = match all.get_mut(&granule) {
            Some((of, count)) if *of == owner => {
                *count += 1;
                Ok(())
            }
            Some(_) => Err(Taken),
            None => map(granule).map(|()| {
                all.insert(granule, (owner, 1));
            }),
        };
        if reserved.is_err() {
            let first = *granules(address, bytes).start();
            (first..granule).for_each(|granule| give_back(&mut all, granule));
            return Err(Taken);
        }
    }
    Ok(())
}

/// Gives the addresses of an allocation back.
pub fn release(address: u64, bytes: u64) {
    let mut all = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    granules(address, bytes).for_each(|granule| give_back(&mut all, granule));
}

fn give_back(all: &mut BTreeMap<u64, (u64, u64)>, granule: u64) {
    let Some((_, count)) = all.get_mut(&granule) else { return };
    *count -= 1;
    if *count == 0 {
        all.remove(&granule);
        unmap_at(std::ptr::with_exposed_provenance_mut((granule * GRANULE) as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_addresses_are_refused() {
        const AT: u64 = 0x2345_0000_0000;
        assert_eq!(reserve(1, AT, 3 * GRANULE), Ok(()));
        assert_eq!(reserve(1, AT + 512, 16), Ok(()));
        assert_eq!(reserve(2, AT - GRANULE, 2 * GRANULE), Err(Taken));
        release(AT, 3 * GRANULE);
        assert_eq!(reserve(2, AT, 16), Err(Taken));
        assert_eq!(reserve(2, AT + GRANULE, 16), Ok(()));
        release(AT + 512, 16);
        assert_eq!(reserve(2, AT, 16), Ok(()));
        let own = Box::new([0_u8; 64]);
        assert_eq!(reserve(1, own.as_ptr() as u64, 16), Err(Taken));
        release(AT, 16);
        release(AT + GRANULE, 16);
    }
}
