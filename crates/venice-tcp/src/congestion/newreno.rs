//! RFC 5681. The increase is [`super::Window::avoid`].

/// Returns half the window, at least two segments (equation 4).
pub(super) fn threshold(cwnd: u32) -> u32 {
    (cwnd / 2).max(2)
}
