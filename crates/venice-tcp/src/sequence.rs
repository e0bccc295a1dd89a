//! Sequence numbers: 32 bits that wrap (RFC 9293, section 3.4). Two that are compared are less than
//! 2³¹ apart.

/// True if `a` precedes `b`.
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// True if `a` follows `b`.
pub(crate) fn after(a: u32, b: u32) -> bool {
    before(b, a)
}

/// Returns the later of two.
pub(crate) fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_wrap() {
        assert!(before(u32::MAX - 5, 3) && after(3, u32::MAX - 5));
        assert!(!before(7, 7) && !after(7, 7));
        assert_eq!(later(u32::MAX, 0), 0);
    }
}
