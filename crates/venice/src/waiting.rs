//! Waiting in line for memory or a device: its flags, what a terminal shows meanwhile, and Ctrl-C.

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

use crate::failure::Usage;
use crate::identity::duration;
use crate::terminal::{self, remark};

/// How a command waits.
#[derive(Args, Clone, Debug)]
pub struct WaitArgs {
    /// Where the rack, or your quota, has no room, or all such devices are in use, wait for it in
    /// line, so long at most: 90s, 10m, 12h. `venice queue` lists who waits; Ctrl-C leaves the line
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub wait: Option<Duration>,
    /// 0 to 255, for those who wait: higher ones are served first. Above 100 is for root on the
    /// Monitor Node's machine [default: 100]
    #[arg(long, value_name = "N")]
    pub priority: Option<u8>,
    /// Have grants of lower priority called back, if that makes room: your own; as root on the
    /// Monitor Node's machine anybody's. They have their time to move elsewhere (`venice grants`)
    #[arg(long, requires = "wait")]
    pub preempt: bool,
}

impl WaitArgs {
    /// What they come to.
    pub fn waiting(&self) -> Waiting {
        Waiting {
            at_most: self.wait.unwrap_or_default(),
            priority: self.priority.unwrap_or(DEFAULT_PRIORITY),
            preempt: self.preempt,
        }
    }
}

/// Waiting for an amount that nobody has said comes to nothing.
pub fn check_amount(wait: Option<Duration>, is_said: bool) -> anyhow::Result<()> {
    if wait.is_none() || is_said {
        return Ok(());
    }
    let said =
        "--wait needs --remote: without it a program takes what there is, and waits for nothing";
    Err(Usage(said.into()).into())
}

/// Borrows for a program, showing on the terminal how it stands in line. Ended by a signal, it leaves
/// the line and ends this process by the same signal.
pub fn borrow(access: &Access, wish: &Wish, port: PortKind) -> anyhow::Result<Loan> {
    if wish.waiting.at_most.is_zero() {
        return venice_recipient::borrow(access, wish, port).map_err(told);
    }
    in_line(|told| borrow_in_line(access, wish, port, told))
}

/// The same of whatever is `got` in line.
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
    if let (Err(RecipientError::LeftLine), Some(signal)) = (&got, signals.caught()) {
        remark("venice: left the line; nothing is borrowed");
        end_by(signal);
    }
    got.map_err(told)
}

/// A mistake in what was asked for is told as one.
pub fn told(error: RecipientError) -> anyhow::Error {
    if error.is_usage() { Usage(error.to_string()).into() } else { error.into() }
}

/// Ends this process as the signal does that has ended its wait.
pub fn end_by(signal: i32) {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// The signals that end a wait.
pub struct Signals(Vec<(i32, SigId, Arc<AtomicBool>)>);

impl Signals {
    /// Catches them until it is dropped.
    pub fn catch() -> anyhow::Result<Self> {
        let catch = |signal| {
            let caught = Arc::new(AtomicBool::new(false));
            let id = signal_hook::flag::register(signal, Arc::clone(&caught));
            Ok((signal, id.context("catching signals")?, caught))
        };
        [SIGINT, SIGTERM, SIGHUP].into_iter().map(catch).collect::<anyhow::Result<_>>().map(Self)
    }

    /// One of them that has come.
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

/// One line that changes on a terminal; elsewhere it is said once.
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
    format!("waits for {asked}: {} in line, {why}, {waited} so far", ordinal(rank))
}

/// Bytes, or of a device that is lent whole whether one is to come.
fn what_there_is(standing: &Standing) -> String {
    let Standing { free_bytes, preempting_bytes, preempting_devices, .. } = *standing;
    let is_whole = !standing.device.is_empty() && standing.asked_bytes == 0;
    let [free, called] = [free_bytes, preempting_bytes].map(terminal::bytes);
    match () {
        () if is_whole && preempting_devices > 0 => "none free, one called back".to_owned(),
        () if is_whole => "none free".to_owned(),
        () if preempting_bytes > 0 => format!("{free} free, {called} called back"),
        () => format!("{free} free"),
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_reads_as_a_sentence() {
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
        assert_eq!(text(&standing), "waits for 2GiB: 2nd in line, 512MiB free, 1.5 s so far");
        let called = Standing { preempting_bytes: 1 << 30, ..standing.clone() };
        assert!(text(&called).contains("512MiB free, 1GiB called back"));
        let (device, asked_bytes) = ("accelerator with cuda".to_owned(), 0);
        let device = Standing { device, asked_bytes, ..standing.clone() };
        let said = "waits for accelerator with cuda: 2nd in line, none free, 1.5 s so far";
        assert_eq!(text(&device), said);
        let called = Standing { preempting_devices: 1, ..device };
        assert!(text(&called).contains("none free, one called back"));
        let over = Standing { is_over_quota: true, ..standing };
        assert!(text(&over).contains("2nd in line, your quota is used up"));
    }

    #[test]
    fn places_have_endings() {
        let said = [1, 2, 3, 4, 11, 12, 13, 21, 102, 113].map(ordinal);
        let meant = ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "113th"];
        assert_eq!(said, meant);
    }
}
