//! Sizes on the command line of donors.

use venice_wire::{ByteSize, SLAB_BYTES};

use venice_cli::terminal;

/// Reads what a donor lends: at least one slab, in whole slabs.
pub fn lend_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 < SLAB_BYTES {
        return Err(format!(
            "memory is lent in slabs of {}: give at least one",
            terminal::bytes(SLAB_BYTES)
        ));
    }
    Ok(ByteSize(size.0 / SLAB_BYTES * SLAB_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_slabs_only() {
        assert_eq!(lend_size("64MiB").unwrap(), ByteSize(64 << 20));
        assert_eq!(lend_size("65MiB").unwrap(), ByteSize(64 << 20));
        assert!(lend_size("1MiB").is_err());
        assert!(lend_size("0").is_err());
        assert!(lend_size("lots").is_err());
    }
}
