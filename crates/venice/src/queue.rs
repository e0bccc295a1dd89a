//! `venice queue`: queued requests.

use venice_control::{QueueRow, QueuedWant};

use crate::listing::ListArgs;
use crate::rack;
use crate::registry::{self, block_on};
use venice_cli::terminal::{self, Align};

/// Text below `venice queue --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice queue
  venice queue --json | jq '.[0] | {owner_user, wants, waited_s}'
  venice run --wait 10m --remote 4GiB --local 1GiB -- ./simulate
                                              waits in the queue
  venice get accelerator --wait 2h -- ./train the same for a device

Queued requests (--wait), in the order of service: by priority, then by arrival. A request may have
several wants; FREE, BACKFILLED and PREEMPTING then have a number of each. FREE is what the donors have
that the request may use; for storage, the most that one device has; devices that are lent whole are
counted. BACKFILLED is what was granted past the request to later
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
            joined(row, |want| want.want().to_string()),
            row.priority.to_string(),
            terminal::seconds(row.waited_s),
            terminal::seconds(row.left_s),
            amounts(row, |want| want.free),
            amounts(row, |want| want.backfilled),
            amounts(row, |want| want.preempting),
            row.needs.clone(),
            donors,
            row.purpose.clone(),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}

fn joined(row: &QueueRow, text: impl Fn(&QueuedWant) -> String) -> String {
    row.wants.iter().map(text).collect::<Vec<_>>().join(" + ")
}

/// Formats an amount of each want.
fn amounts(row: &QueueRow, of: impl Fn(&QueuedWant) -> u64) -> String {
    joined(row, |want| match want.kind.is_divisible() {
        true => terminal::bytes(of(want)),
        false => of(want).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::ResourceKind;

    #[test]
    fn table_has_row_per_request() {
        let memory = QueuedWant {
            kind: ResourceKind::Memory,
            capabilities: vec![],
            bytes: 2 << 30,
            count: 2,
            wanted: 4 << 30,
            free: 16 << 20,
            backfilled: 0,
            preempting: 0,
        };
        let (kind, capabilities) = (ResourceKind::Accelerator, vec!["cuda".to_owned()]);
        let (bytes, count, free) = (0, 1, 0);
        let device =
            QueuedWant { kind, capabilities, bytes, count, free, preempting: 1, ..memory.clone() };
        let row = QueueRow {
            id: 7,
            rank: 1,
            owner_user: "ada".into(),
            owner_node: "node1".into(),
            recipient: "host/12".into(),
            purpose: "job".into(),
            wants: vec![memory, device],
            donors: vec!["node2".into(), "node3".into()],
            priority: 100,
            waited_s: 61.0,
            left_s: 9.0,
            needs: "room".into(),
        };
        let shown = table(&[row]);
        let line = shown.lines().nth(1).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[..4], ["1", "7", "ada@node1", "host/12"]);
        assert!(line.contains("memory=2x2GiB + accelerator:cuda"), "{shown}");
        assert!(line.contains("16MiB + 0") && line.contains("0B + 1"), "{shown}");
        assert!(shown.contains("node2,node3  job"), "{shown}");
    }
}
