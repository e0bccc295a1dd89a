//! The names of shared objects in `/proc/PID/maps` and in core files: each has the number of its
//! first page.

use super::super::PAGE;
use super::super::page_table::PageNumber;

const PREFIX: &str = "venice-shared-";

/// Returns the name of an object that the supervisor has at `address`.
pub fn shared_memory_name(address: usize) -> String {
    format!("{PREFIX}{address:x}")
}

/// Parses the path of a mapping, as the kernel shows it. Returns the number of the object's first
/// page; `None`: it is no shared object.
pub fn shared_memory_at(path: &[u8]) -> Option<PageNumber> {
    let name = std::str::from_utf8(path).ok()?.strip_prefix("/memfd:")?.strip_prefix(PREFIX)?;
    let address = name.strip_suffix(" (deleted)").unwrap_or(name);
    usize::from_str_radix(address, 16).ok().map(|address| address / PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_first_page() {
        let path = format!("/memfd:{} (deleted)", shared_memory_name(0x7f12_3000));
        assert_eq!(shared_memory_at(path.as_bytes()), Some(0x7f123));
        assert_eq!(shared_memory_at(b"/memfd:venice-slab (deleted)"), None);
        assert_eq!(shared_memory_at(b"/memfd:venice-shared-x (deleted)"), None);
        assert_eq!(shared_memory_at(b"/dev/shm/venice-shared-7000"), None);
    }
}
