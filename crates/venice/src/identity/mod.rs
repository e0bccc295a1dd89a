//! Membership of the rack: `venice init`, `join`, `token`, `node`, `identity`.

mod init;
mod join;
mod node;
mod rotate;
mod show;
mod token;

use std::time::Duration;

pub use init::{HELP as HELP_INIT, InitArgs, execute as init};
pub use join::{HELP as HELP_JOIN, JoinArgs, execute as join};
pub use node::{HELP as HELP_NODE, NodeCommand, execute as node};
use rotate::execute as rotate;
pub use show::{HELP as HELP_IDENTITY, IdentityArgs, execute as show};
pub use token::{HELP as HELP_TOKEN, TokenCommand, execute as token};

/// Parses `90s`, `30min` (or `30m`), `12h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match &text[digits.len()..] {
        "s" => 1,
        "min" | "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("missing unit: write for example 90s, 30min, 12h, 7d".to_string()),
    };
    let count: u64 = digits.parse().map_err(|_| format!("{text:?} is not a time such as 12h"))?;
    match count.checked_mul(unit_s).filter(|seconds| *seconds > 0) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err(format!("{text:?} is not a time such as 12h")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_needs_unit() {
        assert_eq!(duration("12h"), Ok(Duration::from_secs(43_200)));
        assert_eq!(duration("30min"), Ok(Duration::from_secs(1800)));
        for wrong in ["", "12", "h", "0s", "-1h", "12 h", "99999999999999999999d", "1w"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
