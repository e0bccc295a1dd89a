//! Texts for the lifetime of certificates and for refused callers.

use std::time::{SystemTime, UNIX_EPOCH};

use venice_control::RefusedCounts;

/// Describes the time until `until_s`, in seconds since 1970, for people.
pub fn left(until_s: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match (until_s.checked_sub(now), now.saturating_sub(until_s)) {
        (Some(left), _) => span(left),
        (None, over) => format!("ended {} ago", span(over)),
    }
}

/// Describes the time since `then_s`, in seconds since 1970, for people.
pub fn ago(then_s: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{} ago", span(now.saturating_sub(then_s)))
}

fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        172_800..=63_071_999 => format!("{} days", seconds / 86_400),
        _ => format!("{} years", seconds / 31_536_000),
    }
}

/// Describes the callers that a TLS server has refused.
pub fn refused_text(refused: &RefusedCounts) -> String {
    let RefusedCounts { no_tls, no_certificate, expired, revoked, .. } = refused;
    let RefusedCounts { foreign, forbidden, bad_token, wrong_key, .. } = refused;
    let RefusedCounts { uncertified, too_many, .. } = refused;
    let counts = [
        (no_tls, "without TLS"),
        (no_certificate, "without a certificate"),
        (expired, "with an expired certificate"),
        (revoked, "with a revoked certificate"),
        (foreign, "of another rack or a retired authority"),
        (forbidden, "without permission"),
        (bad_token, "with a bad join token"),
        (wrong_key, "with a wrong grant key"),
        (uncertified, "closed for want of a certificate"),
        (too_many, "beyond a bound"),
    ];
    let told = counts.into_iter().filter(|(count, _)| **count > 0);
    let told: Vec<_> = told.map(|(count, what)| format!("{count} {what}")).collect();
    if told.is_empty() { "none".to_string() } else { told.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_certificate_says_ended() {
        assert!(left(5).starts_with("ended "));
        assert_eq!(span(86_400 * 30), "30 days");
    }

    #[test]
    fn refusals_are_listed_by_reason() {
        assert_eq!(refused_text(&RefusedCounts::default()), "none");
        let refused = RefusedCounts { expired: 2, bad_token: 1, ..RefusedCounts::default() };
        let text = "2 with an expired certificate, 1 with a bad join token";
        assert_eq!(refused_text(&refused), text);
    }
}
