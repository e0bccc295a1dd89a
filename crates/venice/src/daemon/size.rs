//! Sizes on the command lines of donors.

use venice_wire::{ByteSize, SLAB_BYTES};

use venice_cli::terminal;

/// Parses an amount to lend: at least one slab, rounded down to whole slabs.
pub fn lend_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 < SLAB_BYTES {
        return Err(format!(
            "memory is lent in slabs of {}: give one or more",
            terminal::bytes(SLAB_BYTES)
        ));
    }
    Ok(ByteSize(size.0 / SLAB_BYTES * SLAB_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lend_size_rounds_to_slabs() {
        assert_eq!(lend_size("64MiB").unwrap(), ByteSize(64 << 20));
        assert_eq!(lend_size("65MiB").unwrap(), ByteSize(64 << 20));
        assert!(lend_size("1MiB").is_err());
        assert!(lend_size("0").is_err());
        assert!(lend_size("lots").is_err());
    }
}
