//! Sequence numbers of a link.

/// A position in a link's stream of frames. It wraps at 2³². Two positions can be compared if they
/// are less than 2³¹ apart; every send window is far smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// Returns the position `n` frames later.
    #[must_use]
    #[inline]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// Returns the number of frames from `earlier` to this position, around the wrap.
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// True if this position comes before `other`.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let last = Sequence(u32::MAX);
        let first = last.plus(1);
        assert_eq!(first, Sequence(0));
        assert!(last.is_before(first) && !first.is_before(last) && !first.is_before(first));
        assert_eq!(first.plus(4).since(last), 5);
    }
}
