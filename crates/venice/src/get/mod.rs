//! `venice get`: memory or a device of the rack, held until it is no longer needed.

mod arguments;
mod command;
mod plan;
mod waiting;

use std::sync::mpsc;

use venice_control::Grant;
use venice_control::client::Access;
use venice_recipient::local_rack::access;
use venice_recipient::{Held, HeldEvent, HeldNews, PortKind, RecipientError, Told};

pub use arguments::{GetArgs, HELP};

use crate::place;
use crate::rack;
use arguments::Wanted;
use command::Command;
use venice_cli::failure::{EXIT_FAILURE, Usage};
use venice_cli::terminal::{self, Align};

/// A message to the holding loop.
enum Heard {
    News(HeldNews),
    /// SIGINT or SIGTERM.
    Stop,
    /// Result of the request.
    Got(Result<Held, RecipientError>),
}

/// Requests the resource and holds it until an interrupt or the command's end.
pub fn execute(args: &GetArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let command = Command::of(args.command())?;
    let access = access(&rack::monitor_address(monitor)?);
    let wanted = args.wanted()?;
    match &wanted {
        Wanted::Memory(wish) if args.is_dry_run() => {
            return place::show_wish(&access, wish, args.json());
        }
        Wanted::Device(wish) if args.is_dry_run() => return plan::show(&access, wish, args.json()),
        _ => {}
    }
    let (tell, heard) = mpsc::channel();
    let news = tell.clone();
    let hear = move |it| drop(news.send(Heard::News(it)));
    // Before anything is granted: an interrupt from here on returns the grant too.
    let signals = command.is_none().then(|| waiting::Signals::catch(tell.clone())).transpose()?;
    let answer = tell.clone();
    // A queued request shows its position, and an interrupt cancels it.
    let in_line = got_in_line(&access, &wanted, &hear)?;
    std::thread::spawn(move || {
        let held = match (in_line, wanted) {
            (Some(held), _) => Ok(held),
            (None, Wanted::Memory(wish)) => Held::memory(&access, &wish, hear),
            (None, Wanted::Device(wish)) => Held::device(&access, &wish, hear),
        };
        // If nobody receives it any more, it is given back.
        drop(answer.send(Heard::Got(held)));
    });
    let Some(held) = answered(&heard, &tell) else {
        terminal::remark("venice: interrupted: a grant still in progress expires with its lease");
        return Ok(EXIT_FAILURE);
    };
    let held = held.map_err(told)?;
    let rows: Vec<_> = held.grants().iter().map(GotRow::new).collect();
    match args.json() {
        true => terminal::say_json(&rows)?,
        false => terminal::say(table(&rows))?,
    }
    let Some(command) = command else {
        terminal::remark("venice: held until interrupted (Ctrl-C)");
        let code = wait(&heard);
        drop(held);
        drop(signals);
        return Ok(code);
    };
    let outcome = command.run(&rows, held.grace(), heard)?;
    // If a signal ended the command, the same ends this process: so release first.
    drop(held);
    Ok(outcome.pass_on())
}

/// Waits in the queue for the grant; `None` if the request does not wait.
fn got_in_line(
    access: &Access,
    wanted: &Wanted,
    hear: &(impl Fn(HeldNews) + Clone + Send + 'static),
) -> anyhow::Result<Option<Held>> {
    Ok(match wanted {
        Wanted::Memory(wish) if !wish.waiting.at_most.is_zero() => {
            let loan = crate::waiting::borrow(access, wish, PortKind::Udp)?;
            Some(Held::loan(loan, hear.clone()).map_err(told)?)
        }
        Wanted::Device(wish) if !wish.waiting.at_most.is_zero() => {
            let got = |told: &mut Told<'_>| Held::device_in_line(access, wish, told, hear.clone());
            Some(crate::waiting::in_line(got)?)
        }
        _ => None,
    })
}

/// Returns the rack's answer; `None` if interrupted before it.
fn answered(
    heard: &mpsc::Receiver<Heard>,
    tell: &mpsc::Sender<Heard>,
) -> Option<Result<Held, RecipientError>> {
    let mut early = Vec::new();
    loop {
        match heard.recv() {
            Ok(Heard::Got(held)) => {
                // Events received before the answer are reported after it.
                early.into_iter().for_each(|news| drop(tell.send(news)));
                return Some(held);
            }
            Ok(news @ Heard::News(_)) => early.push(news),
            Ok(Heard::Stop) | Err(_) => return None,
        }
    }
}

/// Waits until an interrupt or the loss of a grant.
fn wait(heard: &mpsc::Receiver<Heard>) -> i32 {
    loop {
        match heard.recv() {
            Ok(Heard::News(news)) => {
                terminal::remark(format!("venice: {news}"));
                if matches!(news.event, HeldEvent::Lost(_) | HeldEvent::Due) {
                    return EXIT_FAILURE;
                }
            }
            Ok(Heard::Got(_)) => {}
            Ok(Heard::Stop) | Err(_) => return 0,
        }
    }
}

fn told(error: RecipientError) -> anyhow::Error {
    if error.is_usage() { Usage(error.to_string()).into() } else { error.into() }
}

/// A grant as `--json` prints it.
#[derive(Debug, serde::Serialize)]
struct GotRow {
    id: u64,
    /// memory, accelerator, nic or storage.
    kind: String,
    node: String,
    /// Name of a device at its node; for memory the address of its donor.
    address: String,
    bytes: u64,
    capabilities: Vec<String>,
    lease_s: f64,
}

impl GotRow {
    fn new(grant: &Grant) -> Self {
        let (kind, address, capabilities) = match &grant.device {
            Some(device) => {
                (device.kind.name(), device.address.clone(), device.capabilities.clone())
            }
            None => ("memory", format!("udp:{}", grant.udp_addr), Vec::new()),
        };
        Self {
            id: grant.id.0,
            kind: kind.to_owned(),
            node: grant.donor.clone(),
            address,
            bytes: grant.bytes,
            capabilities,
            lease_s: grant.lease_s,
        }
    }
}

fn table(rows: &[GotRow]) -> String {
    let columns = [
        ("grant", Align::Right),
        ("kind", Align::Left),
        ("node", Align::Left),
        ("address", Align::Left),
        ("bytes", Align::Right),
        ("capabilities", Align::Left),
    ];
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let line = |row: &GotRow| {
        vec![
            row.id.to_string(),
            row.kind.clone(),
            row.node.clone(),
            row.address.clone(),
            if row.bytes == 0 { "-".to_owned() } else { terminal::bytes(row.bytes) },
            or_dash(row.capabilities.join(",")),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}
