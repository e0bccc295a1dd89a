//! `venice quota`: how much memory and how many devices each user may have granted.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde_json::json;
use venice_control::{Limit, Limits, QuotaFor, QuotaRecord, QuotaRow, QuotaTable, ResourceKind};
use venice_wire::ByteSize;

use crate::listing::table_without;
use crate::name;
use crate::rack;
use crate::registry::{self, block_on};
use venice_cli::failure::Usage;
use venice_cli::terminal::{self, Align};

/// Text below `venice quota --help` and that of its commands.
pub const HELP: &str = "\
EXAMPLES:
  venice quota set ada memory=64GiB           ada's programs, on all nodes together
  venice quota set --default memory=8GiB      users without a quota of their own
  venice quota set root memory=unlimited      but not root
  venice quota set ada accelerator=2 nic=1 storage=500GiB
                                              devices, beside memory as it was
  venice quota set --default accelerator=1
  venice quota list
  venice quota remove ada
  venice quota remove --default

KIND is a kind of `venice resources`. LIMIT is a size of memory and storage, a number of devices that
are lent whole, or unlimited; 0 allows none. All grants of a user count: of programs, swap, arrays
and caches. Two copies count twice, coding K+M counts (K+M)/K, and memory that moves off a node counts
at both ends until it has moved. Grants of a killed program count until their leases expire. A quota
below the present use takes nothing away, but blocks new grants. `set` changes only the kinds it names;
kinds that a user's own quota never named follow the default. Users of the same name are the same user
on all nodes. Without quotas there is no limit.

set and remove require root on the Monitor Node's machine.";

/// `venice quota ...`
#[derive(Subcommand, Debug)]
pub enum QuotaCommand {
    /// Limit what a user may have granted at a time
    #[command(after_help = HELP)]
    Set(SetArgs),
    /// Remove a quota
    #[command(after_help = HELP)]
    Remove(RemoveArgs),
    /// List what each user has granted, and its quota
    #[command(after_help = HELP)]
    List(ListArgs),
}

/// `venice quota set`
#[derive(Args, Debug)]
#[command(override_usage = "venice quota set [OPTIONS] USER|--default KIND=LIMIT...")]
pub struct SetArgs {
    /// User whose programs are limited, then KIND=LIMIT of each kind; with --default only those
    #[arg(value_name = "USER|KIND=LIMIT", required = true)]
    words: Vec<String>,
    /// For users without a quota of their own
    #[arg(long)]
    default: bool,
    /// Print an object: user (null: the default), quota (the limits set, by kind; null: unlimited)
    #[arg(long)]
    json: bool,
}

impl SetArgs {
    /// Returns the user, `None` for the default, and the limits.
    fn parsed(&self) -> anyhow::Result<(Option<String>, Limits)> {
        let (user, limits) = match self.words.split_first() {
            Some((user, _)) if !self.default && user.contains('=') => {
                let said = format!("no user before {user:?}: name one, or --default");
                return Err(Usage(said).into());
            }
            Some((user, limits)) if !self.default => {
                (Some(name::check(user).map_err(Usage)?), limits)
            }
            _ => (None, &self.words[..]),
        };
        if limits.is_empty() {
            return Err(Usage("no limit: write for example memory=64GiB".into()).into());
        }
        let limits = limits.iter().map(|text| limit(text).map_err(Usage));
        let limits: Vec<_> = limits.collect::<Result<_, _>>()?;
        for (at, (kind, _)) in limits.iter().enumerate() {
            if limits[..at].iter().any(|(other, _)| other == kind) {
                return Err(Usage(format!("two limits of {kind}: write one")).into());
            }
        }
        Ok((user, limits.into_iter().collect()))
    }
}

/// `venice quota remove`
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// User whose quota is removed
    #[arg(value_name = "USER", value_parser = name::check, required_unless_present = "default", conflicts_with = "default")]
    user: Option<String>,
    /// Remove the default
    #[arg(long)]
    default: bool,
    /// Print an object: user (null: the default), removed
    #[arg(long)]
    json: bool,
}

/// `venice quota list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print an object: default (limits by kind), users (objects: user, is_own, used and quota by
    /// kind); a missing kind has no limit
    #[arg(long)]
    json: bool,
}

/// Parses `KIND=LIMIT`.
fn limit(text: &str) -> Result<(ResourceKind, Limit), String> {
    let (kind, amount) =
        text.split_once('=').ok_or_else(|| format!("invalid limit {text:?}: write KIND=LIMIT"))?;
    let kind: ResourceKind = kind.parse().map_err(|error| format!("{error}"))?;
    if amount == "unlimited" {
        return Ok((kind, Limit::Unlimited));
    }
    let limit = match kind.is_divisible() {
        true => ByteSize::parse_with_unit(amount).map(|it| it.0).map_err(|error| error.to_string()),
        false => amount.parse().map_err(|_| format!("{amount:?} is not a number")),
    };
    let limit = limit.map_err(|error| format!("{kind}: {error}; `unlimited` lifts a limit"))?;
    Ok((kind, Limit::AtMost(limit)))
}

/// Runs the command.
pub fn execute(command: &QuotaCommand, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = || rack::monitor_address(monitor);
    match command {
        QuotaCommand::Set(args) => set(args, addr)?,
        QuotaCommand::Remove(args) => remove(args, &addr()?)?,
        QuotaCommand::List(args) => list(args, &addr()?)?,
    }
    Ok(0)
}

fn set(args: &SetArgs, addr: impl Fn() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let (user, limits) = args.parsed()?;
    let addr = addr()?;
    let record = QuotaRecord { of: quota_for(user.as_ref()), limits: limits.clone() };
    block_on(async { registry::connect(&addr).await?.set_quota(record).await })?;
    if args.json {
        let quota: BTreeMap<_, _> = limits.iter().map(|(kind, it)| (kind, it.at_most())).collect();
        return terminal::say_json(&json!({ "user": user, "quota": quota }));
    }
    let is_limited = limits.iter().any(|(_, limit)| limit.at_most().is_some());
    let at_a_time = if is_limited { " at a time" } else { "" };
    Ok(terminal::say(format!("{} may borrow {}{at_a_time}.", whose(user.as_ref()), text(&limits)))?)
}

/// Lists limits in words.
fn text(limits: &Limits) -> String {
    let of = |(kind, limit): (ResourceKind, Limit)| match limit.at_most() {
        Some(amount) => kind.amount_text(amount),
        None => format!("unlimited {}", kind.spec().plural),
    };
    limits.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn remove(args: &RemoveArgs, addr: &str) -> anyhow::Result<()> {
    let of = quota_for(args.user.as_ref());
    block_on(async { registry::connect(addr).await?.remove_quota(of).await })?;
    if args.json {
        return terminal::say_json(&serde_json::json!({ "user": args.user, "removed": true }));
    }
    let left = match args.user {
        Some(_) => "the default applies, if there is one",
        None => "users without a quota have no limit",
    };
    Ok(terminal::say(format!("Removed: {left}."))?)
}

fn list(args: &ListArgs, addr: &str) -> anyhow::Result<()> {
    let quotas = block_on(async { registry::connect(addr).await?.quotas().await })?;
    match args.json {
        true => terminal::say_json(&quotas),
        false => Ok(terminal::say(table(&quotas))?),
    }
}

fn table(quotas: &QuotaTable) -> String {
    let kinds = ResourceKind::GRANTED.map(|kind| (kind.name(), Align::Right));
    let columns: Vec<_> =
        [("user", Align::Left)].into_iter().chain(kinds).chain([("source", Align::Left)]).collect();
    let line = |row: &QuotaRow| {
        let source = match row.is_own {
            true => "own",
            false if !row.quota.is_empty() => "default",
            false => "-",
        };
        let cells = ResourceKind::GRANTED.map(|kind| {
            cell(kind, row.used.get(&kind).copied().unwrap_or(0), row.quota.get(&kind).copied())
        });
        [row.user.clone()].into_iter().chain(cells).chain([source.to_owned()]).collect()
    };
    let optional = ResourceKind::GRANTED.map(ResourceKind::name);
    let table = table_without(&optional, &columns, quotas.users.iter().map(line).collect());
    format!("{table}\nUsers without a quota of their own may borrow {}.", of_others(quotas))
}

/// Formats a cell: the used part of a quota.
fn cell(kind: ResourceKind, used: u64, quota: Option<u64>) -> String {
    let text = |amount: u64| match kind.is_divisible() {
        true => terminal::bytes(amount),
        false => amount.to_string(),
    };
    match quota {
        Some(quota) => format!("{} of {}", text(used), text(quota)),
        None if used > 0 => text(used),
        None => "-".to_owned(),
    }
}

fn of_others(quotas: &QuotaTable) -> String {
    if quotas.default.is_empty() {
        return "without limit".to_owned();
    }
    let limits = quotas.default.iter().map(|(kind, most)| (*kind, Limit::AtMost(*most)));
    format!("{} at a time", text(&limits.collect()))
}

fn quota_for(user: Option<&String>) -> QuotaFor {
    user.map_or(QuotaFor::Others, |user| QuotaFor::User(user.clone()))
}

fn whose(user: Option<&String>) -> &str {
    user.map_or("Each user without a quota of its own", |user| user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_parses_amount_or_unlimited() {
        let memory = ResourceKind::Memory;
        assert_eq!(limit("memory=64MiB"), Ok((memory, Limit::AtMost(64 << 20))));
        assert_eq!(limit("memory=0"), Ok((memory, Limit::AtMost(0))));
        assert!(limit("memory=5").unwrap_err().contains("missing unit"));
        assert_eq!(limit("memory=unlimited"), Ok((memory, Limit::Unlimited)));
        assert_eq!(limit("accelerator=2"), Ok((ResourceKind::Accelerator, Limit::AtMost(2))));
        assert!(limit("accelerator=2GiB").unwrap_err().contains("is not a number"));
        assert!(limit("gpu=2").unwrap_err().contains("expected memory"));
        assert!(limit("64GiB").unwrap_err().contains("KIND=LIMIT"));
        let said = limit("memory=much").unwrap_err();
        assert!(said.contains("much") && said.contains("unlimited"), "{said}");
    }

    #[test]
    fn set_names_user_or_default() {
        let parsed = |words: &[&str], default| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            SetArgs { words, default, json: false }.parsed()
        };
        let (user, limits) = parsed(&["ada", "memory=1GiB", "nic=1"], false).unwrap();
        assert_eq!((user.as_deref(), limits.iter().count()), (Some("ada"), 2));
        let (user, limits) = parsed(&["memory=1GiB"], true).unwrap();
        assert_eq!((user, limits.iter().count()), (None, 1));
        let error = |words: &[&str], default| parsed(words, default).unwrap_err().to_string();
        assert!(error(&["ada"], false).contains("no limit"));
        assert!(error(&["memory=1GiB"], false).contains("no user before"));
        assert!(error(&["ada", "memory=1GiB"], true).contains("KIND=LIMIT"));
    }

    #[test]
    fn table_shows_use_and_quota() {
        let memory = ResourceKind::Memory;
        let row = |user: &str, used: u64, quota: Option<u64>, is_own| QuotaRow {
            user: user.into(),
            is_own,
            used: [(memory, used << 20)].into(),
            quota: quota.map(|quota| (memory, quota)).into_iter().collect(),
        };
        let users = vec![
            row("ada", 96, Some(64 << 20), true),
            row("bob", 16, Some(32 << 20), false),
            row("root", 8, None, true),
        ];
        let mut quotas = QuotaTable { default: [(memory, 32 << 20)].into(), users };
        let shown = table(&quotas);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = shown.lines().map(words).collect();
        assert_eq!(lines[1], ["ada", "96MiB", "of", "64MiB", "own"]);
        assert_eq!(lines[2], ["bob", "16MiB", "of", "32MiB", "default"]);
        assert_eq!(lines[3], ["root", "8MiB", "own"]);
        assert!(shown.ends_with("may borrow 32MiB of memory at a time."), "{shown}");

        quotas.users[0].used.insert(ResourceKind::Accelerator, 1);
        quotas.users[0].quota.insert(ResourceKind::Accelerator, 2);
        quotas.users[1].used.insert(ResourceKind::Storage, 5 << 20);
        quotas.default.extend([(ResourceKind::Accelerator, 1), (ResourceKind::Storage, 1 << 30)]);
        let shown = table(&quotas);
        assert!(shown.contains("ACCELERATOR") && !shown.contains("NIC"), "{shown}");
        assert!(shown.contains("1 of 2") && shown.contains("5MiB  default"), "{shown}");
        let others = "may borrow 32MiB of memory, 1 accelerator, 1GiB of storage at a time.";
        assert!(shown.ends_with(others), "{shown}");
    }
}
