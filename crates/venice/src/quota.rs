//! `venice quota`: how much memory and how many devices each user may have granted.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use venice_control::{Limit, Limits, QuotaFor, QuotaRecord, QuotaRow, QuotaTable};
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
  venice quota set ada 64GiB                  ada's programs, on all nodes together
  venice quota set --default 8GiB             users without a quota of their own
  venice quota set root unlimited             but not root
  venice quota set ada --accelerators 2 --nics 1 --storage 500GiB
                                              devices, beside memory as it was
  venice quota set --default --accelerators 1
  venice quota list
  venice quota remove ada
  venice quota remove --default

All grants of a user count: of programs, swap, arrays and caches. Two copies count twice, coding K+M
counts (K+M)/K, and memory that moves off a node counts at both ends until it has moved. Grants of a
killed program count until their leases expire. Accelerators and network cards are counted, storage by
size. A quota below the present use takes nothing away, but blocks new grants. `set` changes only the
kinds it names; kinds that a user's own quota never named follow the default. Users of the same name
are the same user on all nodes. Without quotas there is no limit.

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
pub struct SetArgs {
    /// User whose programs are limited
    #[arg(value_name = "USER", value_parser = name::check, required_unless_present = "default", conflicts_with = "default")]
    user: Option<String>,
    /// Memory: 64GiB; 0 allows none; `unlimited` exempts from the default
    #[arg(value_name = "SIZE", value_parser = limit)]
    size: Option<Limit>,
    /// For users without a quota of their own; SIZE is of memory
    #[arg(long, value_name = "SIZE", num_args = 0..=1)]
    default: Option<Option<ByteSize>>,
    /// Number of accelerators, or `unlimited`
    #[arg(long, value_name = "N", value_parser = count)]
    accelerators: Option<Limit>,
    /// Number of network cards, or `unlimited`
    #[arg(long, value_name = "N", value_parser = count)]
    nics: Option<Limit>,
    /// Amount of storage, or `unlimited`
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    storage: Option<Limit>,
    /// Print an object: user (null: the default), and of the limits set quota_bytes,
    /// quota_accelerators, quota_nics, quota_storage_bytes (null: unlimited)
    #[arg(long)]
    json: bool,
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
    /// Print an object: default_bytes, default_accelerators, default_nics, default_storage_bytes,
    /// users (objects: user, is_own, and used_... and quota_... of each kind); null is no limit
    #[arg(long)]
    json: bool,
}

fn limit(text: &str) -> Result<Limit, String> {
    if text == "unlimited" {
        return Ok(Limit::Unlimited);
    }
    let size: Result<ByteSize, _> = text.parse();
    size.map(|size| Limit::AtMost(size.0)).map_err(|error| format!("{error}, or `unlimited`"))
}

fn count(text: &str) -> Result<Limit, String> {
    if text == "unlimited" {
        return Ok(Limit::Unlimited);
    }
    let count = text.parse().map(Limit::AtMost);
    count.map_err(|_| format!("{text:?} is not a number: write for example 2, or `unlimited`"))
}

/// Runs the command.
pub fn execute(command: &QuotaCommand, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    match command {
        QuotaCommand::Set(args) => set(args, &addr)?,
        QuotaCommand::Remove(args) => remove(args, &addr)?,
        QuotaCommand::List(args) => list(args, &addr)?,
    }
    Ok(0)
}

fn set(args: &SetArgs, addr: &str) -> anyhow::Result<()> {
    let limits = said(args)?;
    let of = quota_for(args.user.as_ref());
    block_on(async {
        let mut registry = registry::connect(addr).await?;
        registry.set_quota(QuotaRecord { of, limits }).await
    })?;
    if args.json {
        return terminal::say_json(&object(args.user.as_ref(), &limits));
    }
    let amounts: Vec<String> = by_name(&limits).filter_map(|(.., of, it)| Some(of(it?))).collect();
    let is_limited = by_name(&limits).any(|(.., it)| it.and_then(Limit::at_most).is_some());
    let at_a_time = if is_limited { " at a time" } else { "" };
    let user = whose(args.user.as_ref());
    Ok(terminal::say(format!("{user} may borrow {}{at_a_time}.", amounts.join(", ")))?)
}

/// Returns the limits given on the command line.
fn said(args: &SetArgs) -> anyhow::Result<Limits> {
    let of_default = args.default.flatten().map(|size| Limit::AtMost(size.0));
    let limits = Limits {
        memory_bytes: args.size.or(of_default),
        accelerators: args.accelerators,
        nics: args.nics,
        storage_bytes: args.storage,
    };
    if limits == Limits::default() {
        let what = "missing limit: give SIZE, --accelerators N, --nics N or --storage SIZE";
        return Err(Usage(what.into()).into());
    }
    Ok(limits)
}

type Named = (&'static str, fn(Limit) -> String, Option<Limit>);

/// Iterates over the limits, with their names in JSON and their formatters.
fn by_name(limits: &Limits) -> impl Iterator<Item = Named> {
    let Limits { memory_bytes, accelerators, nics, storage_bytes } = *limits;
    let memory = |limit: Limit| limit.at_most().map_or("unlimited memory".into(), terminal::bytes);
    let storage = |limit: Limit| match limit.at_most() {
        Some(bytes) => format!("{} of storage", terminal::bytes(bytes)),
        None => "unlimited storage".into(),
    };
    let all: [Named; 4] = [
        ("bytes", memory, memory_bytes),
        ("accelerators", |limit| devices(limit, "accelerator"), accelerators),
        ("nics", |limit| devices(limit, "network card"), nics),
        ("storage_bytes", storage, storage_bytes),
    ];
    all.into_iter()
}

fn devices(limit: Limit, what: &str) -> String {
    match limit.at_most() {
        Some(1) => format!("1 {what}"),
        Some(count) => format!("{count} {what}s"),
        None => format!("unlimited {what}s"),
    }
}

fn object(user: Option<&String>, limits: &Limits) -> Value {
    let mut object = Map::from_iter([("user".to_owned(), json!(user))]);
    for (name, _, limit) in by_name(limits) {
        if let Some(limit) = limit {
            object.insert(format!("quota_{name}"), json!(limit.at_most()));
        }
    }
    Value::Object(object)
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
    let columns = [
        ("user", Align::Left),
        ("used", Align::Right),
        ("quota", Align::Right),
        ("left", Align::Right),
        ("accelerators", Align::Right),
        ("nics", Align::Right),
        ("storage", Align::Right),
        ("source", Align::Left),
    ];
    let limit = |bytes: Option<u64>| bytes.map_or("-".to_owned(), terminal::bytes);
    let line = |row: &QuotaRow| {
        let is_limited = row.quota_bytes.is_some()
            || row.quota_accelerators.is_some()
            || row.quota_nics.is_some()
            || row.quota_storage_bytes.is_some();
        let whose = match row.is_own {
            true => "own",
            false if is_limited => "default",
            false => "-",
        };
        let left = row.quota_bytes.map(|quota| quota.saturating_sub(row.used_bytes));
        let count = |used, quota| of(used, quota, |count| count.to_string());
        vec![
            row.user.clone(),
            terminal::bytes(row.used_bytes),
            limit(row.quota_bytes),
            limit(left),
            count(row.used_accelerators, row.quota_accelerators),
            count(row.used_nics, row.quota_nics),
            of(row.used_storage_bytes, row.quota_storage_bytes, terminal::bytes),
            whose.to_owned(),
        ]
    };
    let optional = ["accelerators", "nics", "storage"];
    let table = table_without(&optional, &columns, quotas.users.iter().map(line).collect());
    format!("{table}\nUsers without a quota of their own may borrow {}.", of_others(quotas))
}

/// Formats a cell: the used part of a quota.
fn of(used: u64, quota: Option<u64>, text: impl Fn(u64) -> String) -> String {
    match quota {
        Some(quota) => format!("{} of {}", text(used), text(quota)),
        None if used > 0 => text(used),
        None => "-".to_owned(),
    }
}

fn of_others(quotas: &QuotaTable) -> String {
    let limits = Limits {
        memory_bytes: quotas.default_bytes.map(Limit::AtMost),
        accelerators: quotas.default_accelerators.map(Limit::AtMost),
        nics: quotas.default_nics.map(Limit::AtMost),
        storage_bytes: quotas.default_storage_bytes.map(Limit::AtMost),
    };
    let amounts: Vec<String> = by_name(&limits).filter_map(|(.., of, it)| Some(of(it?))).collect();
    match amounts.is_empty() {
        true => "without limit".to_owned(),
        false => format!("{} at a time", amounts.join(", ")),
    }
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
    fn limit_parses_size_or_unlimited() {
        assert_eq!(limit("64MiB"), Ok(Limit::AtMost(64 << 20)));
        assert_eq!(limit("0"), Ok(Limit::AtMost(0)));
        assert_eq!(limit("unlimited"), Ok(Limit::Unlimited));
        assert_eq!(count("2"), Ok(Limit::AtMost(2)));
        assert!(count("2GiB").unwrap_err().contains("is not a number"));
        let said = limit("much").unwrap_err();
        assert!(said.contains("much") && said.contains("unlimited"), "{said}");
    }

    #[test]
    fn table_shows_use_and_quota() {
        let row = |user: &str, used: u64, quota_bytes, is_own| QuotaRow {
            user: user.into(),
            used_bytes: used << 20,
            quota_bytes,
            is_own,
            ..QuotaRow::default()
        };
        let users = vec![
            row("ada", 96, Some(64 << 20), true),
            row("bob", 16, Some(32 << 20), false),
            row("root", 8, None, true),
        ];
        let quotas = QuotaTable { default_bytes: Some(32 << 20), users, ..QuotaTable::default() };
        let shown = table(&quotas);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = shown.lines().map(words).collect();
        assert_eq!(lines[1], ["ada", "96MiB", "64MiB", "0B", "own"]);
        assert_eq!(lines[2], ["bob", "16MiB", "32MiB", "16MiB", "default"]);
        assert_eq!(lines[3], ["root", "8MiB", "-", "-", "own"]);
        assert!(shown.ends_with("may borrow 32MiB at a time."), "{shown}");

        let mut users = quotas.users;
        (users[0].used_accelerators, users[0].quota_accelerators) = (1, Some(2));
        users[1].used_storage_bytes = 5 << 20;
        let (default_accelerators, default_storage_bytes) = (Some(1), Some(1 << 30));
        let quotas = QuotaTable {
            default_bytes: Some(32 << 20),
            default_accelerators,
            default_storage_bytes,
            users,
            ..QuotaTable::default()
        };
        let shown = table(&quotas);
        assert!(shown.contains("ACCELERATORS") && !shown.contains("NICS"), "{shown}");
        assert!(shown.contains("1 of 2") && shown.contains("5MiB  default"), "{shown}");
        let others = "may borrow 32MiB, 1 accelerator, 1GiB of storage at a time.";
        assert!(shown.ends_with(others), "{shown}");
    }
}
