//! Reads and writes fields of byte slices whose length has been checked.

/// Writes `bytes` at offset `at`. Panics if the field does not lie inside `into`.
pub(crate) fn put<const N: usize>(into: &mut [u8], at: usize, bytes: [u8; N]) {
    into[at..at + N].copy_from_slice(&bytes);
}

/// Reads the `N` bytes at offset `at`. Panics if they do not lie inside `bytes`.
pub(crate) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}
