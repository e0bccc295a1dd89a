//! Bytes of Python objects, by the buffer protocol.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Returns the bytes of `buffer` during a call that releases the interpreter's lock. Like Python's
/// own `readinto` and `write`: a program that changes them from another thread meanwhile gets a
/// mixture.
pub fn bytes(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    let (start, len_bytes) = place(buffer)?;
    // SAFETY: the exporter keeps `len_bytes` bytes there while the buffer is held.
    Ok(unsafe { slice(start, len_bytes) })
}

/// Like [`bytes`], to be filled.
pub fn room(buffer: &mut PyBuffer<u8>) -> PyResult<&mut [u8]> {
    if buffer.readonly() {
        return Err(PyTypeError::new_err("read-only buffer: a writable one is needed"));
    }
    let (start, len_bytes) = place(buffer)?;
    if len_bytes == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `bytes`, and it is writable.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, len_bytes) })
}

fn place(buffer: &PyBuffer<u8>) -> PyResult<(*mut u8, usize)> {
    if !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err("non-contiguous buffer: its bytes must be contiguous"));
    }
    Ok((buffer.buf_ptr().cast(), buffer.len_bytes()))
}

/// Returns the slice.
///
/// # Safety
/// `len_bytes` bytes must be at `start`, or `len_bytes` is 0.
unsafe fn slice<'a>(start: *const u8, len_bytes: usize) -> &'a [u8] {
    if len_bytes == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(start, len_bytes) }
}
