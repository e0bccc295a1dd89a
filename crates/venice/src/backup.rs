//! `venice backup` and `venice restore`: the Monitor Node's authority and tables, in one file.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use rustix::fs::{FileType, fstat};
use serde::Serialize;
use venice_control::client::records_at_socket;
use venice_control::identity::{Authority, IdentityError};
use venice_monitor::{Backup, BackupInfo, GivenRecords, IDENTITY_DIR, MonitorError};
use venice_recipient::local_rack;

use crate::daemon::{StoreArgs, told};
use crate::rack::RunDir;
use crate::registry::block_on;
use venice_cli::failure::usage;
use venice_cli::terminal::{self, printable};

/// Text below `venice backup --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice backup /root/rack.backup             of this machine's Monitor Node, running or not
  venice backup - | age -r KEY > rack.age     encrypted by another tool
  venice backup --list /root/rack.backup      time, rack and contents of a backup
  venice backup --state-dir /srv/venice /root/rack.backup

The file has the rack's authority with its PRIVATE KEY, the choice of its store, and its tables (nodes,
grants, quotas, revoked nodes): whoever reads it owns the rack. It is made with mode 0600; keep it
encrypted, and off this machine. A running Monitor Node hands out its tables at its socket, all of one
moment, to root and to its own user. `venice restore` reads the file.";

/// Text below `venice restore --help`.
pub const HELP_RESTORE: &str = "\
EXAMPLES:
  venice restore /root/rack.backup            into this machine's Monitor Node, which is stopped
  age -d -i KEY rack.age | venice restore -   decrypted by another tool
  venice restore --force /root/rack.backup    what is there is moved aside, not removed
  venice restore --state-dir /srv/venice /root/rack.backup

Start the Monitor Node afterwards at the address that it had: nodes reconnect by themselves, and grants
made or ended since the backup come back from the nodes that lend. Quotas and revocations made since do
not, and join tokens that were unused are void. Tables that are still in etcd are left alone.";

/// Largest backup that is read, in bytes: some million grants.
const LARGEST: u64 = 4 << 30;

/// The place of a Monitor Node.
#[derive(Args, Debug)]
struct StateArgs {
    /// Directory of the Monitor Node's authority and tables [default: that of this machine's `venice
    /// up`, else /var/lib/venice/monitor]
    #[arg(long, value_name = "DIR", env = "VENICE_STATE_DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

impl StateArgs {
    fn dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(dir) = &self.state_dir {
            return Ok(dir.clone());
        }
        let run_dir = RunDir::locate()?;
        let local = run_dir.monitor_state_dir();
        let is_up = run_dir.record_path().exists() || local.exists();
        Ok(if is_up { local } else { PathBuf::from("/var/lib/venice/monitor") })
    }
}

/// `venice backup`
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// File to make; - is standard output
    file: PathBuf,
    #[command(flatten)]
    state: StateArgs,
    /// Show the contents of FILE instead
    #[arg(long, conflicts_with = "state_dir")]
    list: bool,
    /// Print an object: format, venice, made_s (seconds since 1970), host, authority, address, store,
    /// nodes, grants, quotas, revocations, tokens
    #[arg(long)]
    json: bool,
}

/// `venice restore`
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// File made by `venice backup`; - is standard input
    file: PathBuf,
    #[command(flatten)]
    state: StateArgs,
    /// Move the state that is there to before-restore-N in the state directory
    #[arg(long)]
    force: bool,
    /// Print an object: backup (as `venice backup --json`), state_dir, store, kept_tables,
    /// dropped_tokens, moved_to
    #[arg(long)]
    json: bool,
}

/// Makes or lists a backup.
pub fn execute(args: &BackupArgs) -> anyhow::Result<i32> {
    if args.list {
        let info = read(&args.file)?.info();
        show(&info, args.json)?;
        return Ok(0);
    }
    let is_pipe = args.file.as_os_str() == "-";
    if is_pipe {
        check_stdout()?;
        if args.json {
            return Err(usage("--json and - both use standard output: give a file"));
        }
    }
    let dir = args.state.dir()?;
    let choice = args.state.store.choice();
    let backup = block_on(async {
        let given = of_running(&dir).await?;
        Backup::read(&dir, &choice, given).await.map_err(told_of_state)
    })?;
    match is_pipe {
        true => terminal::say_bytes(&backup.to_bytes())?,
        false => write(&args.file, &backup.to_bytes())?,
    }
    let info = backup.info();
    if args.json {
        terminal::say_json(&info)?;
        return Ok(0);
    }
    terminal::remark(format!(
        "{}: {}; it contains the private key of the rack's authority: keep it encrypted, and off this \
         machine",
        if is_pipe { "backup".to_owned() } else { args.file.display().to_string() },
        contents(&info)
    ));
    Ok(0)
}

/// Restores a backup.
pub fn restore(args: &RestoreArgs) -> anyhow::Result<i32> {
    let backup = read(&args.file)?;
    let dir = args.state.dir()?;
    let choice = args.state.store.choice();
    let restored =
        block_on(async { backup.restore(&dir, &choice, args.force).await.map_err(told_of_server) });
    let restored = restored?;
    if args.json {
        let shown = Shown {
            backup: restored.info,
            state_dir: dir.display().to_string(),
            store: restored.store,
            kept_tables: restored.has_kept_tables,
            dropped_tokens: restored.dropped_tokens,
            moved_to: restored.moved_to.map(|path| path.display().to_string()),
        };
        return terminal::say_json(&shown).map(|()| 0);
    }
    if let Some(path) = &restored.moved_to {
        terminal::say(format!("Moved what was there to {}.", path.display()))?;
    }
    terminal::say(format!("Restored into {}: {}.", dir.display(), contents(&restored.info)))?;
    if restored.has_kept_tables {
        terminal::say(format!("{} has the rack's tables: left as they are.", restored.store))?;
    }
    if restored.dropped_tokens > 0 {
        terminal::say(format!(
            "{} unused join tokens are void: make new ones with `venice token new`.",
            restored.dropped_tokens
        ))?;
    }
    terminal::say(
        "Start the Monitor Node at the address that it had (`systemctl start venice-monitor`; `venice up` \
         for its own rack). Nodes reconnect by themselves; then check `venice nodes`, `venice quota \
         list` and `venice identity`.",
    )?;
    Ok(0)
}

#[derive(Serialize)]
struct Shown {
    backup: BackupInfo,
    state_dir: String,
    store: String,
    kept_tables: bool,
    dropped_tokens: usize,
    moved_to: Option<String>,
}

/// Returns the records of a running Monitor Node with that state directory.
async fn of_running(dir: &Path) -> anyhow::Result<Option<GivenRecords>> {
    let Ok(authority) = Authority::open(&dir.join(IDENTITY_DIR)) else { return Ok(None) };
    let mut failure = None;
    for socket in local_rack::monitor_sockets() {
        match records_at_socket(&socket).await {
            Ok(Some(found)) if found.authority == authority.fingerprint() => {
                return Ok(Some(found.records));
            }
            Ok(_) => {}
            Err(why) => failure = Some(anyhow!("{}: {why}", socket.display())),
        }
    }
    // Another rack's Monitor Node may have failed; without one the store is free.
    if let Some(why) = failure {
        terminal::remark(format!("no tables from a running Monitor Node: {why}"));
    }
    Ok(None)
}

fn told_of_server(error: MonitorError) -> anyhow::Error {
    match error {
        MonitorError::Store(venice_monitor::StoreError::Locked { path }) => anyhow!(
            "a Monitor Node uses {}: stop it first (`systemctl stop venice-monitor`), then repeat this",
            path.display()
        ),
        error => told(error),
    }
}

fn told_of_state(error: MonitorError) -> anyhow::Error {
    const WHO: &str = "run this as root or as the Monitor Node's user, on its machine";
    match error {
        MonitorError::Identity(IdentityError::NoAuthority { dir }) => anyhow!(
            "no Monitor Node's authority in {}: {WHO}, with the --state-dir or the VENICE_RUN_DIR of \
             that Monitor Node",
            dir.display()
        ),
        MonitorError::Identity(IdentityError::File { path, source })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            anyhow!("{}: {source}: {WHO}", path.display())
        }
        MonitorError::Store(venice_monitor::StoreError::Locked { path }) => anyhow!(
            "{} is in use by a Monitor Node whose socket is not found here: stop it, or run this as \
             root or as its user, with the VENICE_RUN_DIR of its socket",
            path.display()
        ),
        error => told(error),
    }
}

/// Refuses a terminal, and a file that others may read.
fn check_stdout() -> anyhow::Result<()> {
    const KEY: &str = "a backup contains the authority's private key";
    if io::stdout().is_terminal() {
        return Err(usage(format!("{KEY}: give a file, or a pipe (venice backup - | age -r KEY)")));
    }
    let found = fstat(io::stdout())?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if is_file && found.st_mode & 0o077 != 0 {
        let said =
            format!("{KEY}, and others may read that file: `umask 077` first, or give its name");
        return Err(usage(said));
    }
    Ok(())
}

/// Writes a new file for its owner only, whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if path.symlink_metadata().is_ok() {
        bail!("{} exists: give another name, or remove it", path.display());
    }
    let failed = || format!("writing {}", path.display());
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir).with_context(failed)?;
    let mode = file.as_file().metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!(
            "{} is on a file system on which others may read every file, and a backup contains the \
             authority's private key: choose another place, or encrypt it (venice backup - | age ...)",
            path.display()
        );
    }
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).with_context(failed)?;
    file.persist_noclobber(path).map_err(|error| error.error).with_context(failed)?;
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(failed)
}

fn read(path: &Path) -> anyhow::Result<Backup> {
    let mut bytes = Vec::new();
    let mut read = |from: &mut dyn Read| from.take(LARGEST + 1).read_to_end(&mut bytes);
    let mut is_public = false;
    if path.as_os_str() == "-" {
        read(&mut io::stdin().lock()).context("reading the backup")?;
    } else {
        let failed = || format!("reading {}", path.display());
        let mut file = File::open(path).with_context(failed)?;
        let found = file.metadata()?;
        read(&mut file).with_context(failed)?;
        is_public = found.permissions().mode() & 0o004 != 0 && !found.file_type().is_char_device();
    }
    if bytes.len() as u64 > LARGEST {
        bail!("{} is too large for a backup", path.display());
    }
    let backup = Backup::from_bytes(&bytes).map_err(told)?;
    if is_public {
        terminal::remark(format!(
            "{} is readable by everybody, with the authority's private key in it: chmod 600, and \
             rotate the authority if somebody may have read it",
            path.display()
        ));
    }
    Ok(backup)
}

fn show(info: &BackupInfo, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return terminal::say_json(info);
    }
    let (made_s, host) = (info.made_s, printable(&info.host));
    let age = crate::certificate_text::ago(made_s);
    let store = info.store.as_deref().map_or("rack.redb in the state directory".into(), printable);
    terminal::say(format!(
        "made        {age}, on {host}, by Venice {}\n\
         authority   {}\n\
         address     {}\n\
         store       {store}\n\
         contents    {}",
        printable(&info.venice),
        printable(&info.authority),
        printable(info.address.as_deref().unwrap_or("not recorded")),
        contents(info)
    ))?;
    Ok(())
}

fn contents(info: &BackupInfo) -> String {
    let counts = [
        (info.nodes, "nodes"),
        (info.grants, "grants"),
        (info.quotas, "quotas"),
        (info.revocations, "revoked nodes"),
        (info.tokens, "join tokens"),
    ];
    let counts = counts.map(|(count, what)| format!("{count} {what}"));
    format!("the authority, {}", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn backup_file_is_private() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("rack.backup");
        write(&path, b"x").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = write(&path, b"y").unwrap_err().to_string();
        assert!(again.contains("exists"), "{again}");
        assert_eq!(fs::read(&path).unwrap(), b"x");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }
}
