//! `venice queue`: who waits for memory or a device.

use venice_control::QueueRow;

use crate::listing::ListArgs;
use crate::rack;
use crate::registry::{self, block_on};
use crate::terminal::{self, Align};

/// Text below `venice queue --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice queue
  venice queue --json | jq '.[0] | {owner_user, bytes, free_bytes, waited_s}'
  venice run --wait 10m --remote 4GiB --local 1GiB -- ./simulate
                                              how one gets there
  venice get accelerator --wait 2h -- ./train the same for a device

Those who wait for room, or for a device (--wait), in the order they are served: higher priorities
first, then who came first. Free is what the donors have that a request may use, of storage what one
device has; accelerators and network cards are counted. While it waits, requests behind it may pass,
with as much as it asks for itself, all together (passed): then all it may use is kept for it. Called
back is what grants of lower priority are to give back for it (--preempt). Needs: room; a device; the
quota of its user; or donors, where these had room and did not do their share.";

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
        ("place", Align::Right),
        ("id", Align::Right),
        ("owner", Align::Left),
        ("recipient", Align::Left),
        ("wants", Align::Left),
        ("priority", Align::Right),
        ("waited", Align::Right),
        ("left", Align::Right),
        ("free", Align::Right),
        ("passed", Align::Right),
        ("called back", Align::Right),
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

/// What is waited for, in a word or two.
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

/// Bytes, or devices that are lent whole.
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
    fn each_of_those_who_wait_has_a_line() {
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
