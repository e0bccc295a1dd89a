//! Finds the runs: the status sockets in the directories of runs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use venice_recipient::runs::conversation::{self, ConversationError};
use venice_recipient::runs::{
    ANOTHER_USERS, Answer, FarPages, Identity, Question, RunRow, RunsDir, state_of,
};

use crate::rack::RunDir;
use venice_cli::terminal::remark;

/// Timeout of a question about a run's state.
const ROW_WITHIN: Duration = Duration::from_secs(5);
/// Timeout of a change of budget: with --mode swap the kernel moves the pages first.
const LIMIT_WITHIN: Duration = Duration::from_secs(300);

/// Returns the directory of this user's runs.
pub fn own() -> anyhow::Result<RunsDir> {
    Ok(RunDir::locate()?.runs_dir())
}

/// Returns the directories of the runs that this user may control: all users' for root.
pub fn controlled() -> anyhow::Result<Vec<RunsDir>> {
    let own = own()?;
    let is_root = rustix::process::geteuid().is_root();
    let others = if is_root { RunsDir::of_all_users() } else { Vec::new() };
    let others: Vec<_> = others.into_iter().filter(|dir| *dir != own).collect();
    Ok([vec![own], others].concat())
}

/// Returns the living runs of a directory. A run that does not answer is reported on stderr.
pub fn rows(dir: &RunsDir) -> anyhow::Result<Vec<RunRow>> {
    let mut rows = Vec::new();
    for pid in supervisors(dir)? {
        match ask(dir, pid, Question::Row) {
            Ok(Some(Answer::Row(row))) => rows.push(*row),
            Ok(Some(Answer::Refused(why))) => remark(format!("venice: run {pid}: {why}")),
            Ok(Some(Answer::Core(_)) | None) => {}
            Err(error) => remark(format!("venice: run {pid}: {error:#}")),
        }
    }
    Ok(rows)
}

/// Asks the run with the supervisor `pid`; `None` if it has ended.
pub fn ask(dir: &RunsDir, pid: u32, question: Question) -> anyhow::Result<Option<Answer>> {
    let path = dir.socket_path(pid);
    // Another user may have put anything there.
    if fs::symlink_metadata(&path).is_ok_and(|found| !found.file_type().is_socket()) {
        return Ok(None);
    }
    if path.exists() && is_stopped(pid) {
        bail!("it is stopped: continue it (`fg`, or `kill -CONT {pid}`)");
    }
    let stream = match conversation::connect(&path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            // The supervisor was killed.
            sweep(dir, &path);
            return Ok(None);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("{ANOTHER_USERS}")
        }
        Err(error) => return Err(error).context("it cannot be reached"),
    };
    let patience = match question {
        Question::Row => ROW_WITHIN,
        Question::Limit(_) => LIMIT_WITHIN,
        Question::Core(_) => ROW_WITHIN,
    };
    match conversation::ask(stream, &question, Some(patience)) {
        // A forked child may have inherited the open socket of an ended supervisor, and does not
        // answer.
        Err(ConversationError::Silent) if !Identity::of(pid).is_some_and(Identity::exists) => {
            sweep(dir, &path);
            Ok(None)
        }
        answer => Ok(answer?),
    }
}

/// True if a process is stopped: by Ctrl-Z, a signal, or a debugger.
pub fn is_stopped(pid: u32) -> bool {
    matches!(state_of(pid), Some('T' | 't'))
}

/// Removes the socket of a run that has ended, in a directory of this user's.
fn sweep(dir: &RunsDir, socket: &Path) {
    if dir.is_own() {
        let _ = fs::remove_file(socket);
    }
}

/// Finds the run that `pid` names, and its directory. A socket that does not answer is an error only
/// if `pid` names its run directly.
pub fn find(pid: u32) -> anyhow::Result<(RunsDir, RunRow)> {
    let dirs = controlled()?;
    for dir in &dirs {
        supervisors(dir)?;
        match ask(dir, pid, Question::Row).with_context(|| format!("run {pid}"))? {
            Some(Answer::Row(row)) => return Ok((dir.clone(), *row)),
            Some(Answer::Refused(why)) => bail!("run {pid}: {why}"),
            Some(Answer::Core(_)) | None => {}
        }
    }
    for dir in dirs {
        if let Some(row) = rows(&dir)?.into_iter().find(|row| row.has(pid)) {
            return Ok((dir, row));
        }
    }
    bail!("process {pid} is not a program on borrowed memory: see `venice ps`")
}

/// Opens the far pages of the process `pid` of a run. Returns the address of the header of its
/// pager's tables, if a pager serves it, and the connection for its far pages.
pub fn far_pages(dir: &RunsDir, run: u32, pid: u32) -> anyhow::Result<(Option<u64>, FarPages)> {
    let path = dir.socket_path(run);
    let stream = conversation::connect(&path).with_context(|| format!("run {run} has ended"))?;
    let answer = conversation::ask_and_go_on(stream, &Question::Core(pid), Some(ROW_WITHIN))?;
    match answer {
        Some((Answer::Core(image), stream)) => Ok((image, FarPages::new(stream))),
        Some((Answer::Refused(why), _)) => bail!("process {pid}: {why}"),
        Some((Answer::Row(_), _)) | None => bail!("run {run} has ended"),
    }
}

/// Returns the process ids of all status sockets, in order.
fn supervisors(dir: &RunsDir) -> anyhow::Result<Vec<u32>> {
    let entries = match fs::read_dir(dir.path()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
            "the programs of {} belong to another user: run this as that user or as root",
            dir.path().display()
        ),
        Err(error) => {
            let path = dir.path().display();
            return Err(error)
                .with_context(|| format!("reading {path} (set VENICE_RUN_DIR for another)"));
        }
    };
    let pid = |name: &str| name.strip_suffix(".sock")?.parse::<u32>().ok();
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut pids: Vec<u32> = names.filter_map(|name| pid(name.to_str()?)).collect();
    pids.sort_unstable();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_sockets_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RunsDir::of(folder.path());
        assert!(rows(&dir).unwrap().is_empty(), "no folder, no runs");
        dir.create().unwrap();
        let desk = dir.socket_path(17);
        // A listener that is gone leaves its socket.
        drop(conversation::listen(&desk).unwrap());
        fs::write(dir.path().join("17.json"), "{}").unwrap();
        fs::write(dir.path().join("x.sock"), "").unwrap();
        assert_eq!(supervisors(&dir).unwrap(), [17]);
        assert!(rows(&dir).unwrap().is_empty());
        assert!(!desk.exists(), "it is swept");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
