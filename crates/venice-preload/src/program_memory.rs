//! Reads of what the program passes to the calls that the shim replaces. A bad pointer is an
//! `EFAULT`, as it is of the kernel, and no signal in the shim.

use std::mem::MaybeUninit;

use venice_memory::paged::PAGE;
use venice_memory::paged::sys::{self, Errno, SysResult};

/// Reads a value.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// Any bytes must be a `T`.
pub unsafe fn read<T: Copy>(from: *const T) -> SysResult<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes of `value`.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
    read_bytes(from as usize, bytes)?;
    // SAFETY: forwarded to the caller.
    Ok(unsafe { value.assume_init() })
}

/// Fills a buffer.
///
/// # Errors
/// `EFAULT`.
pub fn read_bytes(from: usize, into: &mut [u8]) -> SysResult<()> {
    let copied = sys::copy_from(from, into)?;
    if copied == into.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Reads a string into a buffer, up to its zero, or as far as there is room.
///
/// # Errors
/// `EFAULT`.
pub fn read_string(from: usize, into: &mut [u8]) -> SysResult<&[u8]> {
    let mut len = 0;
    while len < into.len() {
        // No further than a page: the next one need not be there.
        let (at, start) = (from.wrapping_add(len), len);
        len = into.len().min(len + PAGE - at % PAGE);
        read_bytes(at, &mut into[start..len])?;
        if let Some(zero) = into[start..len].iter().position(|byte| *byte == 0) {
            return Ok(&into[..start + zero]);
        }
    }
    Ok(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_pointers_are_errors() {
        // SAFETY: any bytes are a number.
        assert_eq!(unsafe { read(16 as *const u64) }, Err(Errno::EFAULT));
        assert_eq!(read_string(16, &mut [0; 8]), Err(Errno::EFAULT));
        let value = 77;
        // SAFETY: as above.
        assert_eq!(unsafe { read(&raw const value) }, Ok(77));
    }

    #[test]
    fn strings_end_before_missing_page() {
        let at = sys::map_private(2 * PAGE).expect("memory") as usize;
        // SAFETY: the pages just mapped.
        unsafe {
            sys::unmap((at + PAGE) as *mut _, PAGE);
            ((at + PAGE - 4) as *mut [u8; 4]).write(*b"abc\0");
        }
        let mut room = [1; 16];
        assert_eq!(read_string(at + PAGE - 4, &mut room), Ok(&b"abc"[..]));
        assert_eq!(read_string(at + PAGE - 4, &mut room[..2]), Ok(&b"ab"[..]));
        assert_eq!(read_string(at + PAGE - 1, &mut room), Ok(&b""[..]));
    }
}
