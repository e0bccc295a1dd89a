//! The text of an event.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use venice_control::EventRow;

use venice_cli::terminal;

/// Formats a time to the second, in UTC: `2026-11-28T08:00:00Z`.
pub fn time_text(time_ms: u64) -> String {
    let seconds = i64::try_from(time_ms / 1000).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok();
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "-".to_owned())
}

/// Formats the owner, `USER@NODE`; empty if there is none.
pub fn owner(row: &EventRow) -> String {
    match row.owner_node.as_str() {
        "" => row.owner_user.clone(),
        node => format!("{}@{node}", row.owner_user),
    }
}

/// Formats the rest of an event: the grant, its size and purpose, and the reason.
pub fn what(row: &EventRow) -> String {
    let grant = row.grant.map(|id| format!("grant {id}")).unwrap_or_default();
    let resource = match row.address.as_str() {
        "" => row.resource.clone(),
        address => format!("{}:{address}", row.resource),
    };
    let size = row.bytes.filter(|bytes| *bytes > 0).map(terminal::bytes).unwrap_or_default();
    let resource = [resource, size].join(" ").trim().to_owned();
    let by = match (row.by.as_str(), row.kind.as_str()) {
        ("", _) => String::new(),
        (by, "transferred") => format!("from {by}"),
        (by, "quota-set" | "quota-removed") => format!("by {by}"),
        (by, _) => format!("for {by}"),
    };
    let parts = [&grant, &resource, &row.purpose, &row.recipient, &by, &row.reason, &row.detail];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::EventKind;

    #[test]
    fn line_names_grant_and_reason() {
        let row = EventRow {
            grant: Some(7),
            resource: "memory".into(),
            bytes: Some(192 << 20),
            purpose: "python3".into(),
            by: "bob@n2".into(),
            ..EventRow::of(EventKind::Preempted)
        };
        assert_eq!(what(&row), "grant 7, memory 192MiB, python3, for bob@n2");
        let (reason, detail) = ("no-room".to_owned(), "no room for 4GiB".to_owned());
        let row =
            EventRow { bytes: Some(4 << 30), reason, detail, ..EventRow::of(EventKind::Refused) };
        assert_eq!(what(&row), "4GiB, no-room, no room for 4GiB");
        assert_eq!(what(&EventRow::of(EventKind::NodeDown)), "");
    }

    #[test]
    fn times_are_utc_seconds() {
        assert_eq!(time_text(0), "1970-01-01T00:00:00Z");
        assert_eq!(time_text(1_795_852_800_999), "2026-11-28T08:00:00Z");
        assert_eq!(time_text(u64::MAX), "-");
    }
}
