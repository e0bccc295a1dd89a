//! Where in its budget a process lets pages leave.

/// Pages at which the evictor starts.
pub fn high_watermark(limit_pages: u64) -> u64 {
    limit_pages.saturating_sub(slack(limit_pages))
}

/// Pages at which it stops.
pub fn low_watermark(limit_pages: u64) -> u64 {
    limit_pages.saturating_sub(2 * slack(limit_pages))
}

fn slack(limit_pages: u64) -> u64 {
    (limit_pages / 32).clamp(64, 4096).min(limit_pages / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_leave_room_between_them() {
        for limit in [1024, 65_536, 1 << 24] {
            assert!(low_watermark(limit) < high_watermark(limit));
            assert!(high_watermark(limit) < limit);
            assert!(low_watermark(limit) > limit / 3);
        }
    }
}
