//! `venice quota`: how much each user may have borrowed.

use clap::{Args, Subcommand};
use venice_control::{QuotaFor, QuotaRecord, QuotaRow, QuotaTable};
use venice_wire::ByteSize;

use crate::failure::Usage;
use crate::rack;
use crate::registry::{self, block_on};
use crate::terminal::{self, Align};

/// Texts below `venice quota --help`, and those of its commands.
pub const HELP: &str = "\
EXAMPLES:
  venice quota set ada 64GiB                  ada's programs, on all nodes together
  venice quota set --default 8GiB             each user who has no quota of its own
  venice quota set root unlimited             but not root
  venice quota list
  venice quota remove ada
  venice quota remove --default

All that a user has of the donors counts, for programs, swap, arrays and caches alike: two copies
count twice, coding K+M counts (K+M)/K, and what moves off a node counts at both ends until it has
moved. What a killed program had counts until its leases end. A quota that is less than what is used
takes nothing away; nothing more is granted then. Users of one name are one user on whatever nodes.
Without quotas everybody may borrow what there is.

set and remove are for root on the Monitor Node's machine.";

/// `venice quota ...`
#[derive(Subcommand, Debug)]
pub enum QuotaCommand {
    /// Say how much a user may have borrowed at a time
    #[command(after_help = HELP)]
    Set(SetArgs),
    /// Take a quota away
    #[command(after_help = HELP)]
    Remove(RemoveArgs),
    /// List who has borrowed how much, and may have
    #[command(after_help = HELP)]
    List(ListArgs),
}

/// `venice quota set`
#[derive(Args, Debug)]
pub struct SetArgs {
    /// Whose programs
    #[arg(value_name = "USER", required_unless_present = "default", conflicts_with = "default")]
    user: Option<String>,
    /// How much: 64GiB; 0 is nothing; `unlimited` exempts from the default
    #[arg(value_name = "SIZE", required_unless_present = "default", value_parser = limit)]
    size: Option<Limit>,
    /// For each user who has no quota of its own
    #[arg(long, value_name = "SIZE")]
    default: Option<ByteSize>,
    /// Print an object: user (null: the default), quota_bytes (null: unlimited)
    #[arg(long)]
    json: bool,
}

/// `venice quota remove`
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// Whose
    #[arg(value_name = "USER", required_unless_present = "default", conflicts_with = "default")]
    user: Option<String>,
    /// That of users who have none of their own
    #[arg(long)]
    default: bool,
    /// Print an object: user (null: the default), removed
    #[arg(long)]
    json: bool,
}

/// `venice quota list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print an object: default_bytes, users (objects: user, used_bytes, quota_bytes, is_own); no
    /// limit is null
    #[arg(long)]
    json: bool,
}

/// As much as this, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<u64>);

fn limit(text: &str) -> Result<Limit, String> {
    if text == "unlimited" {
        return Ok(Limit(None));
    }
    let size: Result<ByteSize, _> = text.parse();
    size.map(|size| Limit(Some(size.0))).map_err(|error| format!("{error}, or `unlimited`"))
}

/// Sets, removes or lists.
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
    let bytes = match (args.size, args.default) {
        (Some(Limit(bytes)), None) => bytes,
        (None, Some(size)) => Some(size.0),
        _ => return Err(Usage("give a USER and a SIZE, or --default SIZE".into()).into()),
    };
    let of = quota_for(args.user.as_ref());
    block_on(async {
        let mut registry = registry::connect(addr).await?;
        registry.set_quota(QuotaRecord { of, bytes }).await
    })?;
    if args.json {
        return terminal::say_json(&serde_json::json!({ "user": args.user, "quota_bytes": bytes }));
    }
    let amount = bytes.map_or("what there is".to_owned(), |bytes| {
        format!("{} at a time", terminal::bytes(bytes))
    });
    Ok(terminal::say(format!("{} may borrow {amount}.", whose(args.user.as_ref())))?)
}

fn remove(args: &RemoveArgs, addr: &str) -> anyhow::Result<()> {
    let of = quota_for(args.user.as_ref());
    block_on(async { registry::connect(addr).await?.remove_quota(of).await })?;
    if args.json {
        return terminal::say_json(&serde_json::json!({ "user": args.user, "removed": true }));
    }
    let left = match args.user {
        Some(_) => "the default applies, if there is one",
        None => "who has no quota may borrow what there is",
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
        ("whose", Align::Left),
    ];
    let limit = |bytes: Option<u64>| bytes.map_or("-".to_owned(), terminal::bytes);
    let line = |row: &QuotaRow| {
        let whose = match (row.is_own, row.quota_bytes) {
            (true, _) => "its own",
            (false, Some(_)) => "the default",
            (false, None) => "-",
        };
        let left = row.quota_bytes.map(|quota| quota.saturating_sub(row.used_bytes));
        let used = terminal::bytes(row.used_bytes);
        vec![row.user.clone(), used, limit(row.quota_bytes), limit(left), whose.to_owned()]
    };
    let table = terminal::table(&columns, quotas.users.iter().map(line).collect());
    let others = match quotas.default_bytes {
        Some(bytes) => format!("{} at a time", terminal::bytes(bytes)),
        None => "what there is".to_owned(),
    };
    format!("{table}\nWho has no quota of its own may borrow {others}.")
}

fn quota_for(user: Option<&String>) -> QuotaFor {
    user.map_or(QuotaFor::Others, |user| QuotaFor::User(user.clone()))
}

fn whose(user: Option<&String>) -> &str {
    user.map_or("Each user who has no quota of its own", |user| user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_size_or_none() {
        assert_eq!(limit("64MiB"), Ok(Limit(Some(64 << 20))));
        assert_eq!(limit("0"), Ok(Limit(Some(0))));
        assert_eq!(limit("unlimited"), Ok(Limit(None)));
        let said = limit("much").unwrap_err();
        assert!(said.contains("much") && said.contains("unlimited"), "{said}");
    }

    #[test]
    fn each_user_stands_beside_what_it_may_have() {
        let row = |user: &str, used: u64, quota_bytes, is_own| QuotaRow {
            user: user.into(),
            used_bytes: used << 20,
            quota_bytes,
            is_own,
        };
        let users = vec![
            row("ada", 96, Some(64 << 20), true),
            row("bob", 16, Some(32 << 20), false),
            row("root", 8, None, true),
        ];
        let shown = table(&QuotaTable { default_bytes: Some(32 << 20), users });
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = shown.lines().map(words).collect();
        assert_eq!(lines[1], ["ada", "96MiB", "64MiB", "0B", "its", "own"]);
        assert_eq!(lines[2], ["bob", "16MiB", "32MiB", "16MiB", "the", "default"]);
        assert_eq!(lines[3], ["root", "8MiB", "-", "-", "its", "own"]);
        assert!(shown.ends_with("may borrow 32MiB at a time."), "{shown}");
    }
}
