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
use venice_control::{DEFAULT_PRIORITY, QueuedWant, Standing};
use venice_recipient::{
    AllocationSpec, Loan, PortKind, RecipientError, Told, Waiting, borrow_in_line,
};

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
pub fn borrow(access: &Access, spec: &AllocationSpec, port: PortKind) -> anyhow::Result<Loan> {
    if spec.waiting.at_most.is_zero() {
        return venice_recipient::borrow(access, spec, port).map_err(told);
    }
    in_line(|told| borrow_in_line(access, spec, port, told))
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
    let Standing { rank, waited_ms, is_over_quota, wants } = standing;
    let why = match is_over_quota {
        true => "your quota is used up".to_owned(),
        false => joined(wants, |want| what_there_is(want, wants.len() == 1)),
    };
    let waited = terminal::seconds(*waited_ms as f64 / 1e3);
    let wanted = joined(wants, |want| want.want().described());
    format!("waiting for {wanted}: queue position {rank}, {why}, {waited} so far")
}

fn joined(wants: &[QueuedWant], text: impl Fn(&QueuedWant) -> String) -> String {
    wants.iter().map(text).collect::<Vec<_>>().join(" and ")
}

/// Describes the free amount, without its kind if the request has no other want.
fn what_there_is(want: &QueuedWant, is_alone: bool) -> String {
    let amount = |amount: u64| match is_alone {
        true if want.kind.is_divisible() => terminal::bytes(amount),
        true => amount.to_string(),
        false => want.kind.amount_text(amount),
    };
    match want.preempting {
        0 => format!("{} free", amount(want.free)),
        preempting => format!("{} free, preempting {}", amount(want.free), amount(preempting)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::ResourceKind;

    #[test]
    fn wait_text_shows_position() {
        let memory = QueuedWant {
            kind: ResourceKind::Memory,
            capabilities: vec![],
            bytes: 2 << 30,
            count: 1,
            wanted: 2 << 30,
            free: 512 << 20,
            backfilled: 0,
            preempting: 0,
        };
        let (kind, capabilities) = (ResourceKind::Accelerator, vec!["cuda".to_owned()]);
        let (bytes, wanted, free) = (0, 1, 0);
        let device = QueuedWant { kind, capabilities, bytes, wanted, free, ..memory.clone() };
        let of = |wants| Standing { rank: 2, waited_ms: 1500, is_over_quota: false, wants };
        let standing = of(vec![memory.clone()]);
        let expected = "waiting for 2GiB of memory: queue position 2, 512MiB free, 1.5 s so far";
        assert_eq!(text(&standing), expected);
        let preempts = of(vec![QueuedWant { preempting: 1 << 30, ..memory.clone() }]);
        assert!(text(&preempts).contains("512MiB free, preempting 1GiB"));
        let both = text(&of(vec![memory, device]));
        assert!(both.contains("for 2GiB of memory and accelerator with cuda: "), "{both}");
        assert!(both.contains("512MiB of memory free and 0 accelerators free"), "{both}");
        let over = Standing { is_over_quota: true, ..standing };
        assert!(text(&over).contains("queue position 2, your quota is used up"));
    }
}
