//! `venice events`: what happens in the rack.

mod follow;
mod line;
mod when;

pub use follow::Followed;
pub use line::{owner, time_text, what};

use std::time::Duration;

use clap::Args;
use serde_json::json;
use venice_control::{ControlError, EventFilter, EventKind, EventRequest, EventRow};

use crate::rack;
use crate::registry::block_on;
use venice_cli::terminal::{self, printable, remark};

/// Text below `venice events --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice events                               the events kept
  venice events --follow                      what happens from now on, until Ctrl-C
  venice events --follow --since 10m          the last ten minutes first
  venice events --node node3 --kind lost,node-down
  venice events --user ada --since 2026-11-28T08:00:00Z
  venice events --json | jq -c 'select(.kind == \"refused\") | {owner_user, reason, detail}'

Users see the events of nodes and of their own grants, requests and quotas; root on the Monitor Node's
machine sees all. The Monitor Node keeps in memory the newest 4096 that have an owner and 4096 others: a
restart begins a new list with monitor-started, and its numbers begin at 1. Of several Monitor Nodes each has a list of its own, with
the requests that it handled itself: all of those named are asked, and a column says whose an event is.
A reader that is too slow is told how many events it missed. Times are UTC, by the Monitor Node's clock.

--json prints an object a line: monitor, number, time_ms, kind, node, grant, owner_user, owner_node,
resource, address, bytes, recipient, purpose, by, reason, detail; events that were missed are
{monitor, kind: \"missed\", missed}.";

/// `venice events`
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Wait for further events, until Ctrl-C; without --since only new ones are shown
    #[arg(long, short)]
    follow: bool,
    /// Show events since then: 10m, 2h, 7d ago, or a time, 2026-11-28T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = when::since_ms)]
    since: Option<u64>,
    /// Show events of this node, and of owners on it
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Show events of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Show events of this kind (granted, released, lost, refused, node-down, ...); repeatable, or
    /// several with commas
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<EventKind>,
    /// Print an object a line
    #[arg(long)]
    json: bool,
}

impl EventsArgs {
    fn request(&self) -> EventRequest {
        let filter = EventFilter {
            node: self.node.clone().unwrap_or_default(),
            user: self.user.clone().unwrap_or_default(),
            kinds: self.kind.iter().map(|kind| kind.name().to_owned()).collect(),
            since_ms: self.since.unwrap_or(0),
        };
        let only_new = self.follow && self.since.is_none();
        EventRequest { filter, after: None, only_new, follow: self.follow }
    }
}

/// `venice events`
pub fn execute(args: &EventsArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addrs = rack::monitor_address(monitor)?;
    let addrs: Vec<&str> = addrs.split(',').collect();
    let printer = Printer { json: args.json, with_monitor: addrs.len() > 1 };
    let request = args.request();
    block_on(async {
        match args.follow {
            true => printer.follow(&addrs, request).await,
            false => printer.print_all(&addrs, request).await,
        }
    })?;
    Ok(0)
}

/// Prints events.
struct Printer {
    json: bool,
    /// True with several Monitor Nodes.
    with_monitor: bool,
}

impl Printer {
    /// Prints the events kept, of all Monitor Nodes in order of time.
    async fn print_all(&self, addrs: &[&str], request: EventRequest) -> anyhow::Result<()> {
        let mut rows: Vec<(&str, EventRow)> = Vec::new();
        let mut failed = Vec::new();
        for addr in addrs {
            match follow::kept(addr, request.clone()).await {
                Ok(found) => rows.extend(found.into_iter().map(|row| (*addr, row))),
                Err(error) => failed.push(error),
            }
        }
        if failed.len() == addrs.len()
            && let Some(error) = failed.pop()
        {
            return Err(error);
        }
        failed.iter().for_each(|error| remark(format!("venice: {error:#}")));
        if rows.is_empty() {
            explain_nothing(addrs, &request).await?;
        }
        rows.sort_by_key(|(_, row)| row.time_ms);
        self.head()?;
        rows.iter().try_for_each(|(addr, row)| self.row(addr, row))
    }

    /// Prints events as they come; returns only an error.
    async fn follow(&self, addrs: &[&str], request: EventRequest) -> anyhow::Result<()> {
        let node = &request.filter.node;
        if is_unknown(addrs, node).await {
            remark(format!("venice: {}", ControlError::UnknownNode(node.clone())));
        }
        let mut followed = Followed::start(addrs, &request);
        self.head()?;
        loop {
            let (addr, news) = followed.next().await?;
            for row in &news.rows {
                self.row(&addr, row)?;
            }
            if news.missed > 0 {
                self.missed(&addr, news.missed)?;
            }
        }
    }

    fn head(&self) -> anyhow::Result<()> {
        if !self.json {
            let cells = ["TIME", "EVENT", "NODE", "OWNER", "WHAT"].map(str::to_owned);
            terminal::say(self.line("MONITOR", &cells))?;
        }
        Ok(())
    }

    fn row(&self, addr: &str, row: &EventRow) -> anyhow::Result<()> {
        if self.json {
            let mut value = serde_json::to_value(row)?;
            value["monitor"] = addr.into();
            return terminal::say_json_line(&value);
        }
        let cells = [
            time_text(row.time_ms),
            row.kind.clone(),
            dash(&row.node),
            dash(&line::owner(row)),
            what(row),
        ];
        terminal::say(self.line(addr, &cells))?;
        Ok(())
    }

    fn missed(&self, addr: &str, missed: u64) -> anyhow::Result<()> {
        match self.json {
            true => terminal::say_json_line(
                &json!({ "monitor": addr, "kind": "missed", "missed": missed }),
            )?,
            false => remark(format!(
                "venice: {missed} events of {addr} are missing: they were no longer kept"
            )),
        }
        Ok(())
    }

    /// Formats a line. Columns have a least width, since later lines are not known yet.
    fn line(&self, addr: &str, [time, kind, node, owner, what]: &[String; 5]) -> String {
        let monitor = match self.with_monitor {
            true => format!("{addr:<21}  "),
            false => String::new(),
        };
        let line = format!("{monitor}{time:<20}  {kind:<15}  {node:<8}  {owner:<14}  {what}");
        printable(line.trim_end())
    }
}

/// Explains that no event is of the wanted node or user: the name may be mistyped.
///
/// # Errors
/// The rack has no such node.
async fn explain_nothing(addrs: &[&str], request: &EventRequest) -> anyhow::Result<()> {
    let EventFilter { node, user, .. } = &request.filter;
    if is_unknown(addrs, node).await {
        return Err(ControlError::UnknownNode(node.clone()).into());
    }
    let wanted = [("node", node), ("user", user)].into_iter().filter(|(_, name)| !name.is_empty());
    let wanted: Vec<_> = wanted.map(|(what, name)| format!("{what} {}", printable(name))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let filter = EventFilter { node: String::new(), user: String::new(), ..request.filter.clone() };
    let others = EventRequest { filter, ..request.clone() };
    let mut count = 0;
    for addr in addrs {
        count += follow::kept(addr, others.clone()).await.map_or(0, |rows| rows.len());
    }
    let wanted = wanted.join(" and ");
    remark(format!("venice: none of the {count} other events that you may see is of {wanted}"));
    Ok(())
}

/// True if a Monitor Node answers and does not know the node.
async fn is_unknown(addrs: &[&str], node: &str) -> bool {
    if node.is_empty() {
        return false;
    }
    for addr in addrs {
        if let Ok(nodes) = follow::nodes(addr).await {
            return nodes.iter().all(|row| row.name != node);
        }
    }
    false
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// Pause between two attempts to reach a Monitor Node.
const PAUSE: Duration = Duration::from_secs(1);
