//! The wait queue from the recipient's side: flags, progress on a terminal, and Ctrl-C.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::SigId;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use venice_control::client::Access;
use venice_control::{DEFAULT_PRIORITY, Standing};
use venice_recipient::{Loan, PortKind, RecipientError, Told, Waiting, Wish, borrow_in_line};

use crate::identity::duration;
use venice_cli::failure::Usage;
use venice_cli::terminal::{self, remark};

/// Flags of the wait.
#[derive(Args, Clone, Debug)]
pub struct WaitArgs {
    /// Queue if the rack, your quota or the devices have no room, for at most this time: 90s, 10m,
    /// 12h. `venice queue` lists queued requests; Ctrl-C cancels
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Priority in the queue, 0 to 255; higher is served first. Above 100 requires root on the
    /// Monitor Node's machine [default: 100]
    #[arg(long, value_name = "N")]
    pub priority: Option<u8>,
    /// Preempt grants of lower priority if that makes room: your own; as root on the Monitor Node's
    /// machine anybody's. Their holders get time to move elsewhere (`venice grants`)
    #[arg(long, requires = "wait")]
    pub preempt: bool,
}

impl WaitArgs {
    /// Converts the flags into the request's waiting options.
    pub fn waiting(&self) -> Waiting {
        Waiting {
            at_most: self.wait.unwrap_or_default(),
            priority: self.priority.unwrap_or(DEFAULT_PRIORITY),
            preempt: self.preempt,
        }
    }
}

/// Refuses --wait without an amount: such a request takes what is free and never waits.
pub fn check_amount(wait: Option<Duration>, is_said: bool) -> anyhow::Result<()> {
    if wait.is_none() || is_said {
        return Ok(());
    }
    let said = "--wait needs --remote: without it a program takes the free memory and never waits";
    Err(Usage(said.into()).into())
}

/// Borrows for a program and shows its queue position on the terminal. A signal cancels the wait
/// and then ends this process.
pub fn borrow(access: &Access, wish: &Wish, port: PortKind) -> anyhow::Result<Loan> {
    if wish.waiting.at_most.is_zero() {
        return venice_recipient::borrow(access, wish, port).map_err(told);
    }
    in_line(|told| borrow_in_line(access, wish, port, told))
}

/// Runs any queued request, like [`borrow`].
pub fn in_line<T>(
    got: impl FnOnce(&mut Told<'_>) -> Result<T, RecipientError>,
) -> anyhow::Result<T> {
    let signals = Signals::catch()?;
    let shown = RefCell::new(Shown::default());
    let mut hear = |standing: Option<&Standing>| {
        if let Some(standing) = standing {
            shown.borrow_mut().show(standing);
        }
        match signals.caught() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    };
    let got = got(&mut hear);
    shown.into_inner().end();
    if let (Err(RecipientError::WaitCancelled), Some(signal)) = (&got, signals.caught()) {
        remark("venice: wait cancelled; nothing allocated");
        end_by(signal);
    }
    got.map_err(told)
}

/// Converts an error; a mistake in the request becomes a usage error.
pub fn told(error: RecipientError) -> anyhow::Error {
    if error.is_usage() { Usage(error.to_string()).into() } else { error.into() }
}

/// Ends this process by the signal that ended its wait.
pub fn end_by(signal: i32) {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// The signals that end a wait.
pub struct Signals(Vec<(i32, SigId, Arc<AtomicBool>)>);

impl Signals {
    /// Catches the signals until it is dropped.
    pub fn catch() -> anyhow::Result<Self> {
        let catch = |signal| {
            let caught = Arc::new(AtomicBool::new(false));
            let id = signal_hook::flag::register(signal, Arc::clone(&caught));
            Ok((signal, id.context("catching signals")?, caught))
        };
        [SIGINT, SIGTERM, SIGHUP].into_iter().map(catch).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Returns one of the signals that have arrived.
    pub fn caught(&self) -> Option<i32> {
        let mut caught = self.0.iter().filter(|(_, _, caught)| caught.load(Ordering::Relaxed));
        caught.next().map(|(signal, ..)| *signal)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, id, _) in &self.0 {
            signal_hook::low_level::unregister(*id);
        }
    }
}

/// Progress of the wait: one changing line on a terminal, elsewhere a single remark.
#[derive(Default)]
struct Shown {
    bar: Option<ProgressBar>,
    is_said: bool,
}

impl Shown {
    fn show(&mut self, standing: &Standing) {
        let text = text(standing);
        if !io::stderr().is_terminal() {
            if !std::mem::replace(&mut self.is_said, true) {
                remark(format!("venice: {text}"));
            }
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        bar.set_message(text);
    }

    fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn text(standing: &Standing) -> String {
    let Standing { rank, waited_ms, is_over_quota, .. } = *standing;
    let why = match is_over_quota {
        true => "your quota is used up".to_owned(),
        false => what_there_is(standing),
    };
    let waited = terminal::seconds(waited_ms as f64 / 1e3);
    let asked = match standing.device.as_str() {
        "" => terminal::bytes(standing.asked_bytes),
        device => device.to_owned(),
    };
    format!("waiting for {asked}: queue position {rank}, {why}, {waited} so far")
}

/// Describes the free amount; for a device that is lent whole, whether one is being preempted.
fn what_there_is(standing: &Standing) -> String {
    let Standing { free_bytes, preempting_bytes, preempting_devices, .. } = *standing;
    let is_whole = !standing.device.is_empty() && standing.asked_bytes == 0;
    let [free, called] = [free_bytes, preempting_bytes].map(terminal::bytes);
    match () {
        () if is_whole && preempting_devices > 0 => "none free, preempting one".to_owned(),
        () if is_whole => "none free".to_owned(),
        () if preempting_bytes > 0 => format!("{free} free, preempting {called}"),
        () => format!("{free} free"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_text_shows_position() {
        let standing = Standing {
            rank: 2,
            asked_bytes: 2 << 30,
            free_bytes: 512 << 20,
            waited_ms: 1500,
            preempting_bytes: 0,
            is_over_quota: false,
            device: String::new(),
            preempting_devices: 0,
        };
        assert_eq!(
            text(&standing),
            "waiting for 2GiB: queue position 2, 512MiB free, 1.5 s so far"
        );
        let called = Standing { preempting_bytes: 1 << 30, ..standing.clone() };
        assert!(text(&called).contains("512MiB free, preempting 1GiB"));
        let (device, asked_bytes) = ("accelerator with cuda".to_owned(), 0);
        let device = Standing { device, asked_bytes, ..standing.clone() };
        let said = "waiting for accelerator with cuda: queue position 2, none free, 1.5 s so far";
        assert_eq!(text(&device), said);
        let called = Standing { preempting_devices: 1, ..device };
        assert!(text(&called).contains("none free, preempting one"));
        let over = Standing { is_over_quota: true, ..standing };
        assert!(text(&over).contains("queue position 2, your quota is used up"));
    }
}
