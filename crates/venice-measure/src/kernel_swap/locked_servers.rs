//! Servers of a swap device whose memory is locked.
//!
//! A server that is swapped out to the device that it serves waits for itself forever, and all
//! processes that swap there wait with it. `nbdkit` locks its memory with `--swap`; `nbdfuse` has
//! no such option, and a lock does not outlive exec(2). A small library is therefore loaded into
//! both that locks all their present and future memory, or ends them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::resident::locked_bytes;

const SOURCE: &str = include_str!("lock_all.c");

/// Makes the program and its children lock their memory as they begin. The library is built in
/// `folder`, which has to stay as long as they run.
///
/// # Errors
/// When there is no C compiler.
pub(super) fn lock(command: &mut Command, folder: &Path) -> Result<()> {
    let (text, library) = (folder.join("lock_all.c"), folder.join("lock_all.so"));
    std::fs::write(&text, SOURCE).with_context(|| format!("cannot write {}", text.display()))?;
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&text);
    let output = compile.output().context(NEEDED)?;
    if !output.status.success() {
        bail!("{NEEDED}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    command.env("LD_PRELOAD", library);
    Ok(())
}

const NEEDED: &str = "the peer's servers cannot be kept from being swapped without a C compiler \
                      (apt-get install gcc libc6-dev)";

/// Checks that all servers have locked memory.
///
/// # Errors
/// When one has none, so that it could be swapped out.
pub(super) fn check(servers: &[u32]) -> Result<()> {
    for pid in servers {
        if locked_bytes(*pid).unwrap_or(0) == 0 {
            bail!("process {pid} serves a swap device and could be swapped out: it is not locked");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn program_and_children_are_locked() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "/bin/sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        if let Err(lacks) =
            venice_swap::require_root().map_err(Into::into).and(lock(&mut command, folder.path()))
        {
            return eprintln!("SKIPPED: program_and_children_are_locked: {lacks:#}");
        }
        let mut shell = command.spawn().unwrap();
        let mut line = String::new();
        let out = shell.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::with_capacity(1, out), &mut line)
            .unwrap();
        let sleep: u32 = line.trim().parse().unwrap();
        let locked =
            crate::interrupt::wait_until("the lock", std::time::Duration::from_secs(60), || {
                Ok(check(&[shell.id(), sleep]).is_ok().then_some(()))
            });
        let unlocked = check(&[std::process::id()]).unwrap_err().to_string();
        for pid in [sleep, shell.id()] {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
        locked.unwrap();
        assert!(unlocked.contains("could be swapped out"), "{unlocked}");
    }
}
