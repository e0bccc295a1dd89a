//! The retained part of a host's standard error: whole lines, so many bytes a second, and the last lines.

/// Bytes of the last lines, for the report of a death.
const LAST_BYTES: usize = 512;
/// Longest line in bytes; a longer one is cut into several.
const MAX_LINE_BYTES: usize = 1024;

/// Bounded log of one host.
#[derive(Debug)]
pub(crate) struct LogBudget {
    bytes_per_s: u64,
    /// Bytes that may be kept now, in billionths.
    credit: u128,
    credited_ns: u64,
    /// Bytes dropped since the last line that was kept.
    dropped: u64,
    line: Vec<u8>,
    last: String,
}

/// Line of a log, without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub text: String,
    /// Bytes dropped before this line.
    pub dropped: u64,
}

impl LogBudget {
    /// Makes a log that keeps so many bytes a second, and as many at once.
    pub(crate) fn new(now_ns: u64, bytes_per_s: u32) -> Self {
        let bytes_per_s = u64::from(bytes_per_s);
        let credit = u128::from(bytes_per_s) * 1_000_000_000;
        let (line, last) = (Vec::new(), String::new());
        Self { bytes_per_s, credit, credited_ns: now_ns, dropped: 0, line, last }
    }

    /// Takes bytes; returns the lines that are kept of them.
    pub(crate) fn handle_bytes(&mut self, now_ns: u64, bytes: &[u8]) -> Vec<LogLine> {
        self.refill(now_ns);
        let mut kept = Vec::new();
        for byte in bytes {
            if *byte == b'\n' || self.line.len() >= MAX_LINE_BYTES {
                kept.extend(self.finish_line());
            }
            if *byte != b'\n' {
                self.line.push(*byte);
            }
        }
        kept
    }

    /// Returns the last line that has no end, if it is kept.
    pub(crate) fn handle_end(&mut self) -> Option<LogLine> {
        self.finish_line()
    }

    /// Returns the last lines: the end of what was written, kept or not.
    pub(crate) fn last_lines(&self) -> &str {
        self.last.trim()
    }

    fn refill(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.credited_ns);
        self.credited_ns = now_ns;
        let most = u128::from(self.bytes_per_s) * 1_000_000_000;
        let earned = u128::from(self.bytes_per_s) * u128::from(elapsed_ns);
        self.credit = (self.credit + earned).min(most);
    }

    fn finish_line(&mut self) -> Option<LogLine> {
        if self.line.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.line);
        let text: String = String::from_utf8_lossy(&bytes)
            .chars()
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        self.remember(&text);
        let price = bytes.len() as u128 * 1_000_000_000;
        if price > self.credit {
            self.dropped += bytes.len() as u64;
            return None;
        }
        self.credit -= price;
        Some(LogLine { text, dropped: std::mem::take(&mut self.dropped) })
    }

    fn remember(&mut self, text: &str) {
        if !self.last.is_empty() {
            self.last.push_str(" / ");
        }
        self.last.push_str(text);
        if self.last.len() > LAST_BYTES {
            let mut from = self.last.len() - LAST_BYTES;
            while !self.last.is_char_boundary(from) {
                from += 1;
            }
            self.last.drain(..from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_is_cut_to_budget() {
        let mut log = LogBudget::new(0, 1000);
        let flood = b"0123456789\n".repeat(1000);
        let kept = log.handle_bytes(0, &flood);
        assert_eq!(kept.len(), 100);
        let kept = log.handle_bytes(500_000_000, &flood);
        assert_eq!(kept.len(), 50);
        assert_eq!(kept[0].dropped, 9000);
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut log = LogBudget::new(0, 1000);
        let kept = log.handle_bytes(0, b"\x1b[31mred\x07\xff\n");
        assert_eq!(kept[0].text, "\u{fffd}[31mred\u{fffd}\u{fffd}");
        assert!(log.handle_bytes(0, b"no end").is_empty());
        assert_eq!(log.handle_end().unwrap().text, "no end");
        assert!(log.last_lines().ends_with(" / no end"));
    }

    #[test]
    fn endless_line_is_bounded() {
        let mut log = LogBudget::new(0, u32::MAX);
        let kept = log.handle_bytes(0, &[b'x'; 10_000]);
        assert_eq!(kept.len(), 9);
        assert!(log.line.len() <= MAX_LINE_BYTES && log.last.len() <= LAST_BYTES);
    }
}
