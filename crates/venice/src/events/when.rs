//! Times on the command line.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::identity::duration;

/// Parses a time as milliseconds since 1970: a duration before now, `10m`, or RFC 3339,
/// `2026-11-28T08:00:00Z`.
pub fn since_ms(text: &str) -> Result<u64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if let Ok(ago) = duration(text) {
        return Ok(now.saturating_sub(ago).as_millis() as u64);
    }
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
        format!("{text:?} is no time: write 10m, 2h or 7d, or for example 2026-11-28T08:00:00Z")
    })?;
    Ok(u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_duration_or_time() {
        assert_eq!(since_ms("1970-01-01T00:00:02Z"), Ok(2000));
        assert_eq!(since_ms("1970-01-01T01:00:02+01:00"), Ok(2000));
        let (hour, minute) = (since_ms("1h").unwrap(), since_ms("1m").unwrap());
        assert!(hour < minute);
        for wrong in ["", "yesterday", "2026-11-28", "10"] {
            assert!(since_ms(wrong).is_err(), "{wrong}");
        }
    }
}
