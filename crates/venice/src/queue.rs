//! `venice queue`: queued requests for memory or devices.

use venice_control::QueueRow;

use crate::listing::ListArgs;
use crate::rack;
use crate::registry::{self, block_on};
use venice_cli::terminal::{self, Align};

/// Text below `venice queue --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice queue
  venice queue --json | jq '.[0] | {owner_user, bytes, free_bytes, waited_s}'
  venice run --wait 10m --remote 4GiB --local 1GiB -- ./simulate
                                              waits in the queue
  venice get accelerator --wait 2h -- ./train the same for a device

Queued requests for memory or devices (--wait), in the order of service: by priority, then by arrival.
FREE is what the donors have that the request may use; for storage, the most that one device has;
accelerators and network cards are counted. BACKFILLED is what was granted past the request to later
ones: once that is as much as the request asks for, all it may use is kept for it. PREEMPTING is what
grants of lower priority are giving back for it (--preempt). NEEDS: room; a device; the user's quota;
or donors, if they had room but did not complete the grant.";

/// `venice queue`
pub fn execute(args: &ListArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let rows = block_on(async { registry::connect(&addr).await?.queue().await })?;
    match args.json {
        true => terminal::say_json(&rows)?,
        false => terminal::say(table(&rows))?,
    }
    Ok(0)
}

fn table(rows: &[QueueRow]) -> String {
    let columns = [
        ("rank", Align::Right),
        ("id", Align::Right),
        ("owner", Align::Left),
        ("recipient", Align::Left),
        ("wants", Align::Left),
        ("priority", Align::Right),
        ("waited", Align::Right),
        ("left", Align::Right),
        ("free", Align::Right),
        ("backfilled", Align::Right),
        ("preempting", Align::Right),
        ("needs", Align::Left),
        ("donors", Align::Left),
        ("purpose", Align::Left),
    ];
    let line = |row: &QueueRow| {
        let donors = if row.donors.is_empty() { "any".to_owned() } else { row.donors.join(",") };
        vec![
            row.rank.to_string(),
            row.id.to_string(),
            format!("{}@{}", row.owner_user, row.owner_node),
            row.recipient.clone(),
            wants(row),
            row.priority.to_string(),
            terminal::seconds(row.waited_s),
            terminal::seconds(row.left_s),
            amount(row, row.free_bytes, row.free_devices),
            amount(row, row.backfilled_bytes, row.backfilled_devices),
            amount(row, row.preempting_bytes, row.preempting_devices),
            row.needs.clone(),
            donors,
            row.purpose.clone(),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}

/// Describes the wanted memory or device in a word or two.
fn wants(row: &QueueRow) -> String {
    let size = terminal::bytes(row.bytes);
    let mut text = match row.kind.as_str() {
        "memory" | "" => size,
        "storage" => format!("{size} storage"),
        kind if row.bytes == 0 => kind.to_owned(),
        kind => format!("{kind} of {size}"),
    };
    if !row.capabilities.is_empty() {
        text.push(':');
        text.push_str(&row.capabilities.join(","));
    }
    text
}

/// Formats bytes, or the number of devices that are lent whole.
fn amount(row: &QueueRow, bytes: u64, devices: u32) -> String {
    match row.kind.as_str() {
        "accelerator" | "nic" => devices.to_string(),
        _ => terminal::bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_row_per_request() {
        let row = QueueRow {
            id: 7,
            rank: 1,
            owner_user: "ada".into(),
            owner_node: "node1".into(),
            recipient: "host/12".into(),
            purpose: "job".into(),
            kind: "memory".into(),
            capabilities: vec![],
            bytes: 2 << 30,
            copies: 2,
            donors: vec!["node2".into(), "node3".into()],
            priority: 100,
            waited_s: 61.0,
            left_s: 9.0,
            free_bytes: 16 << 20,
            backfilled_bytes: 0,
            preempting_bytes: 0,
            free_devices: 0,
            backfilled_devices: 0,
            preempting_devices: 0,
            needs: "room".into(),
        };
        let (kind, capabilities) = ("accelerator".to_owned(), vec!["cuda".to_owned()]);
        let device =
            QueueRow { kind, capabilities, bytes: 0, preempting_devices: 1, ..row.clone() };
        let shown = table(&[device]);
        let words: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[4..6], ["accelerator:cuda", "100"], "{shown}");
        assert_eq!(words[12..16], ["0", "0", "1", "room"], "{shown}");
        let shown = table(&[row]);
        let words: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[..6], ["1", "7", "ada@node1", "host/12", "2GiB", "100"]);
        assert!(shown.contains("node2,node3  job"), "{shown}");
    }
}
