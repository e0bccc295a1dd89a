//! `venice get`: resources of the rack, held until they are no longer needed.

mod arguments;
mod command;
mod waiting;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::{Arc, mpsc};

use venice_control::client::Access;
use venice_recipient::local_rack::access;
use venice_recipient::runs::RunDevices;
use venice_recipient::{AllocationSpec, Held, HeldEvent, HeldNews, RecipientError, allocate};
use venice_wire::GrantId;

pub use arguments::{GetArgs, HELP};

use crate::client_drivers::Source;
use crate::granted::GrantedRow;
use crate::plan;
use crate::rack;
use crate::waiting::{in_line, told};
use command::Command;
use venice_cli::failure::EXIT_FAILURE;
use venice_cli::terminal::{self, Align};

/// A receiver of a held grant's events.
pub(crate) type Tell = Box<dyn FnMut(HeldNews) + Send>;

/// A message to the holding loop.
enum Heard {
    News(HeldNews),
    /// SIGINT or SIGTERM.
    Stop,
    /// Result of the request.
    Got(Result<Held, RecipientError>),
}

/// Requests the resources and holds them until an interrupt or the command's end.
pub fn execute(args: &GetArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let command = Command::of(args.command())?;
    let spec = args.spec()?;
    let access = access(&rack::monitor_address(monitor)?);
    if args.is_dry_run() {
        return plan::show(&access, &spec, args.json());
    }
    let (tell, heard) = mpsc::channel();
    let news = tell.clone();
    let hear = move |it| drop(news.send(Heard::News(it)));
    // Before anything is granted: an interrupt from here on returns the grant too.
    let signals = command.is_none().then(|| waiting::Signals::catch(tell.clone())).transpose()?;
    let answer = tell.clone();
    // A queued request shows its position, and an interrupt cancels it.
    let in_line = got_in_line(&access, &spec, &hear)?;
    let (from, what) = (access.clone(), spec.clone());
    std::thread::spawn(move || {
        let held = in_line.map_or_else(|| Held::allocate(&from, &what, hear), Ok);
        // If nobody receives it any more, it is given back.
        drop(answer.send(Heard::Got(held)));
    });
    let Some(held) = answered(&heard, &tell) else {
        terminal::remark("venice: interrupted: a grant still in progress expires with its lease");
        return Ok(EXIT_FAILURE);
    };
    let held = held.map_err(told)?;
    let source = source(&access, &spec, &tell);
    let code = show_and_hold(held, (command, args.json()), source, heard)?;
    drop(signals);
    Ok(code)
}

/// Returns where devices come from that take the place of those that are wanted back.
fn source(access: &Access, spec: &AllocationSpec, tell: &mpsc::Sender<Heard>) -> Source {
    let tell = tell.clone();
    let tell = Arc::new(move |news| drop(tell.send(Heard::News(news))));
    Source::of(access, spec, RunDevices::default(), tell)
}

/// Claims transferred grants and holds them until an interrupt, or the end of the command.
/// `claim` returns `None` if there are none: then so does this.
pub(crate) fn hold_claimed(
    access: &Access,
    (words, json): (&[OsString], bool),
    claim: impl FnOnce(Tell) -> Result<Option<Held>, RecipientError>,
) -> anyhow::Result<Option<i32>> {
    let command = Command::of(words)?;
    let (tell, heard) = mpsc::channel();
    let news = tell.clone();
    let hear: Tell = Box::new(move |it| drop(news.send(Heard::News(it))));
    let held = claim(hear).map_err(told)?;
    tell_early_losses(&heard, &tell);
    let Some(held) = held else { return Ok(None) };
    let signals = command.is_none().then(|| waiting::Signals::catch(tell.clone())).transpose()?;
    let source = source(access, &AllocationSpec::default(), &tell);
    let code = show_and_hold(held, (command, json), source, heard)?;
    drop(signals);
    Ok(Some(code))
}

/// Reports the grants that were lost before the others are held. They end nothing: to release the
/// others would destroy their data.
fn tell_early_losses(heard: &mpsc::Receiver<Heard>, tell: &mpsc::Sender<Heard>) {
    for early in heard.try_iter().collect::<Vec<_>>() {
        match early {
            Heard::News(news) if matches!(news.event, HeldEvent::Lost(_)) => {
                terminal::remark(format!("venice: {news}"));
            }
            Heard::News(_) | Heard::Stop | Heard::Got(_) => drop(tell.send(early)),
        }
    }
}

/// Prints grants, and holds them until an interrupt, or the end of the command.
fn show_and_hold(
    held: Held,
    (command, json): (Option<Command>, bool),
    source: Source,
    heard: mpsc::Receiver<Heard>,
) -> anyhow::Result<i32> {
    let rows = GrantedRow::all(&held);
    match json {
        true => terminal::say_json(&rows)?,
        false => terminal::say(table(&rows))?,
    }
    let Some(command) = command else {
        terminal::remark("venice: held until interrupted (Ctrl-C)");
        let grants = held.grants().iter().map(|grant| grant.id).collect();
        let code = wait(&heard, grants, |grant| held.release(grant));
        drop(held);
        return Ok(code);
    };
    let held = Arc::new(held);
    let outcome = command.run(&rows, (&held, source), heard)?;
    // If a signal ended the command, the same ends this process: so release first.
    drop(held);
    Ok(outcome.pass_on())
}

/// Waits in the queue for the grants; `None` if the request does not wait.
fn got_in_line(
    access: &Access,
    spec: &AllocationSpec,
    hear: &(impl Fn(HeldNews) + Clone + Send + 'static),
) -> anyhow::Result<Option<Held>> {
    if spec.waiting.at_most.is_zero() {
        return Ok(None);
    }
    let loan = in_line(|told| allocate(access, spec, told))?;
    Ok(Some(Held::loan(loan, hear.clone()).map_err(told)?))
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

/// Waits until an interrupt, or the loss of the last grant. Fails if any was lost.
fn wait(
    heard: &mpsc::Receiver<Heard>,
    mut grants: BTreeSet<GrantId>,
    release: impl Fn(GrantId),
) -> i32 {
    let mut code = 0;
    loop {
        match heard.recv() {
            Ok(Heard::News(news)) => {
                terminal::remark(format!("venice: {news}"));
                match news.event {
                    HeldEvent::Lost(_) => {}
                    HeldEvent::Due => release(news.grant),
                    HeldEvent::Wanted(_) => continue,
                }
                code = EXIT_FAILURE;
                if !grants.remove(&news.grant) {
                    continue;
                }
                match grants.len() {
                    0 => return code,
                    1 => terminal::remark("venice: the other grant is held until interrupted"),
                    left => terminal::remark(format!(
                        "venice: the other {left} grants are held until interrupted"
                    )),
                }
            }
            Ok(Heard::Got(_)) => {}
            Ok(Heard::Stop) | Err(_) => return code,
        }
    }
}

fn table(rows: &[GrantedRow]) -> String {
    let columns = [
        ("grant", Align::Right),
        ("kind", Align::Left),
        ("node", Align::Left),
        ("address", Align::Left),
        ("bytes", Align::Right),
        ("capabilities", Align::Left),
        ("endpoints", Align::Left),
    ];
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let line = |row: &GrantedRow| {
        vec![
            row.id.to_string(),
            row.kind.to_owned(),
            row.node.clone(),
            row.address.clone(),
            if row.bytes == 0 { "-".to_owned() } else { terminal::bytes(row.bytes) },
            or_dash(row.capabilities.join(",")),
            or_dash(endpoints(row)),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}

/// Returns the service of a grant with its endpoints: `echo at ring:/run/venice/...`.
fn endpoints(row: &GrantedRow) -> String {
    let Some(access) = &row.service else { return String::new() };
    let places: Vec<_> = access.endpoints.iter().map(ToString::to_string).collect();
    format!("{} at {}", access.service, places.join(", "))
}

#[cfg(test)]
mod tests {
    use venice_control::{Notice, NoticeReason};
    use venice_recipient::Fate;

    use super::*;

    #[test]
    fn early_loss_ends_no_claim() {
        let (tell, heard) = mpsc::channel();
        let notice = Notice { reason: NoticeReason::Drain, within_ms: None };
        for event in [HeldEvent::Lost(Fate::Revoked), HeldEvent::Wanted(notice)] {
            let (donor, what) = ("node1".to_owned(), "emulated".to_owned());
            tell.send(Heard::News(HeldNews { grant: GrantId(1), donor, what, event, why: None }))
                .unwrap();
        }
        tell_early_losses(&heard, &tell);
        tell.send(Heard::Stop).unwrap();
        let held = BTreeSet::from([GrantId(1), GrantId(2)]);
        assert_eq!(wait(&heard, held, |_| {}), 0, "held until the interrupt");
    }

    #[test]
    fn others_outlive_lost_grant() {
        let news = |grant, event| {
            let (donor, what) = ("node1".to_owned(), "emulated".to_owned());
            Heard::News(HeldNews { grant: GrantId(grant), donor, what, event, why: None })
        };
        let outcome = |events: &[(u64, HeldEvent)]| {
            let (tell, heard) = mpsc::channel();
            events.iter().for_each(|(grant, event)| tell.send(news(*grant, *event)).unwrap());
            tell.send(Heard::Stop).unwrap();
            let released = std::cell::RefCell::new(Vec::new());
            let held = (1..=3).map(GrantId).collect();
            let code = wait(&heard, held, |grant| released.borrow_mut().push(grant.0));
            (code, released.into_inner(), matches!(heard.try_recv(), Ok(Heard::Stop)))
        };
        let lost = HeldEvent::Lost(Fate::Died);
        assert_eq!(outcome(&[(2, lost)]), (EXIT_FAILURE, vec![], false));
        let all = [(2, lost), (1, HeldEvent::Due), (1, lost), (3, lost)];
        assert_eq!(outcome(&all), (EXIT_FAILURE, vec![1], true), "none is left");
    }
}
