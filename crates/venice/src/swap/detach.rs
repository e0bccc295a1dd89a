//! `venice swap detach`: reads everything back, or reports why not.

use std::time::Duration;

use anyhow::{anyhow, bail};
use indicatif::ProgressBar;

use super::DetachArgs;
use super::control::{Answer, Question, ask};
use super::list::of_device;
use super::plan::{names, process_name};
use super::session::clear_group;
use super::status::{DEAD, SILENT, Status};
use crate::rack::RunDir;
use venice_cli::terminal;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `venice swap detach`
pub fn execute(args: &DetachArgs) -> anyhow::Result<i32> {
    venice_swap::require_root()?;
    let dir = RunDir::locate()?;
    let Some(name) = &args.name else {
        return detach_all(&dir).map(|()| 0);
    };
    let said = detach(&dir, name)?;
    terminal::say(said)?;
    Ok(0)
}

/// Detaches every device of the run directory.
pub fn detach_all(dir: &RunDir) -> anyhow::Result<()> {
    for name in names(dir) {
        let said = detach(dir, &name)?;
        terminal::say(said)?;
    }
    Ok(())
}

/// Detaches one device; returns a text for people.
pub fn detach(dir: &RunDir, name: &str) -> anyhow::Result<String> {
    if !names(dir).iter().any(|known| known == name) {
        bail!("no swap device {name}: see `venice swap list`");
    }
    let folder = dir.process_dir(&process_name(name));
    let before = of_device(dir, name);
    if let Some(Status { pid, .. }) = before.as_ref().filter(|it| it.state == SILENT) {
        // How long that would take is unknown.
        bail!(
            "the server of {name} (pid {pid}) does not answer: resume it (kill -CONT {pid}), or end it \
             (kill -9 {pid}; the device's contents are lost) and detach again"
        );
    }
    let answer = {
        let _bar = before.as_ref().map(ReadBack::watch);
        ask(&folder, Question::Detach)?
    };
    match answer {
        Some(Answer::Refused(why)) => Err(anyhow!("{name} stays: {why}")),
        Some(Answer::Detached) => Ok(format!("{name} is detached.")),
        Some(Answer::Status(_)) => bail!("swap server {name}: unexpected reply (protocol error)"),
        None => clear_away(dir, name, before),
    }
}

/// Removes what a dead server left.
fn clear_away(dir: &RunDir, name: &str, status: Option<Status>) -> anyhow::Result<String> {
    let mut lost = String::new();
    clear_group(&dir.process_dir(&process_name(name)));
    if let Some(status) = status {
        // The device number of a removed device may be another one's by now.
        let is_anothers = names(dir).iter().any(|other| {
            let same = |it: Status| it.device == status.device && it.state != DEAD;
            other != name && of_device(dir, other).is_some_and(same)
        });
        let used = venice_swap::used_bytes(&status.device).filter(|_| !is_anothers);
        if used.is_some() {
            venice_swap::abandon(&status.device)?;
        }
        venice_swap::clear_after(status.pid)?;
        if let Some(used) = used.filter(|used| *used > 0) {
            let used = terminal::bytes(used);
            lost = format!("; its {used} are lost: programs that touch them get SIGBUS");
        }
    }
    dir.remove_processes(&[process_name(name)])?;
    Ok(format!("{name} was dead and is removed{lost}."))
}

/// A progress bar of the kernel reading pages back.
struct ReadBack {
    bar: ProgressBar,
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ReadBack {
    fn watch(status: &Status) -> Self {
        use std::sync::atomic::Ordering;
        let (device, total) = (status.device.clone(), status.used_bytes >> 20);
        let bar = terminal::progress(total, "reading back, MiB");
        let stop = std::sync::Arc::default();
        let (shown, stopped) = (bar.clone(), std::sync::Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let stopped: &std::sync::atomic::AtomicBool = &stopped;
            while !stopped.load(Ordering::Relaxed) {
                let left = venice_swap::used_bytes(&device).unwrap_or(0) >> 20;
                shown.set_position(total.saturating_sub(left));
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Self { bar, stop, thread: Some(thread) }
    }
}

impl Drop for ReadBack {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
