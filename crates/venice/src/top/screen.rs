//! The live screen.

use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as TextLine;
use ratatui::widgets::{Clear, Paragraph, Row, Table};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::data::{Snapshot, Source};
use super::sections::{Section, View, sections, summary};
use venice_cli::terminal::{Align, printable};

/// Longest wait for a key before the reading thread looks if it is still wanted.
const KEY_WAIT: Duration = Duration::from_millis(200);
/// Lines of programs and of the queue at most.
const SMALL: u16 = 7;
/// Widest column but the last.
const WIDEST: usize = 28;
/// Least width of a last column of text that is longer.
const LEAST_TEXT: usize = 16;
/// Blanks between columns.
const SPACING: u16 = 2;
const KEYS: &str = "q quit  p pause  s sort grants  up/down scroll grants  h help";
const HELP: &str = "\
q, Esc, Ctrl-C   quit
p, space         pause and go on
s                order of grants: size, age, owner, donor
up, down         scroll through the grants
PgUp, PgDn       the same, ten at a time
h, ?             this help

Red lines need attention: a node is down or short of memory, a program lacks replicas, a grant is
lost or preempted.";

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Go,
    Quit,
}

/// Shows the rack until the user quits.
///
/// # Errors
/// The terminal's.
pub async fn run(source: Source, every: Duration) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = show(source, every, &mut terminal).await;
    ratatui::try_restore()?;
    shown
}

async fn show(
    mut source: Source,
    every: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> anyhow::Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut keys = read_keys();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut screen = Screen::new(source.addr());
    // The Monitor Node may be slow, and keys do not wait for it.
    let (wanted, mut asked) = mpsc::channel::<()>(1);
    let (answers, mut answered) = mpsc::channel(1);
    let asking = async {
        while asked.recv().await.is_some() {
            if answers.send(source.snapshot().await).await.is_err() {
                return;
            }
        }
    };
    let showing = async {
        loop {
            terminal.draw(|frame| screen.render(frame))?;
            tokio::select! {
                _ = ticks.tick(), if !screen.view.is_paused => drop(wanted.try_send(())),
                Some(answer) = answered.recv() => screen.take(answer),
                key = keys.recv() => match key.map_or(Outcome::Quit, |key| screen.press(key)) {
                    Outcome::Quit => return Ok(()),
                    Outcome::Go => {}
                },
                _ = terminated.recv() => return Ok(()),
            }
        }
    };
    tokio::select! {
        shown = showing => shown,
        () = asking => Ok(()),
    }
}

/// Reads keys and changes of the size on a thread, until the receiver is dropped.
fn read_keys() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_WAIT) {
                Ok(true) => event::read(),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            let Ok(event) = event else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The state of the screen.
struct Screen {
    view: View,
    snapshot: Snapshot,
    /// The last update's error.
    error: Option<String>,
    is_loading: bool,
    has_colour: bool,
}

impl Screen {
    fn new(addr: &str) -> Self {
        Self {
            view: View::default(),
            snapshot: Snapshot { monitor: addr.to_owned(), ..Snapshot::default() },
            error: None,
            is_loading: true,
            has_colour: std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()),
        }
    }

    /// Takes an update. After an error the last tables stay.
    fn take(&mut self, answer: anyhow::Result<Snapshot>) {
        match answer {
            Ok(snapshot) => {
                (self.snapshot, self.error, self.is_loading) = (snapshot, None, false);
            }
            Err(error) => self.error = Some(printable(&format!("{error:#}"))),
        }
    }

    fn press(&mut self, event: Event) -> Outcome {
        let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
            return Outcome::Go;
        };
        let (view, most) = (&mut self.view, self.snapshot.grants.len().saturating_sub(1));
        match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => {
                return Outcome::Quit;
            }
            KeyCode::Char('h' | '?') => view.is_helping = !view.is_helping,
            KeyCode::Esc if view.is_helping => view.is_helping = false,
            KeyCode::Char('q') | KeyCode::Esc => return Outcome::Quit,
            KeyCode::Char('p' | ' ') => view.is_paused = !view.is_paused,
            KeyCode::Char('s') => (view.order, view.skip) = (view.order.next(), 0),
            KeyCode::Down => view.skip = (view.skip + 1).min(most),
            KeyCode::Up => view.skip = view.skip.saturating_sub(1),
            KeyCode::PageDown => view.skip = (view.skip + 10).min(most),
            KeyCode::PageUp => view.skip = view.skip.saturating_sub(10),
            KeyCode::Home => view.skip = 0,
            _ => {}
        }
        Outcome::Go
    }

    fn render(&self, frame: &mut Frame) {
        let [top, middle, bottom] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        let head = match self.is_loading {
            true => format!("asking the Monitor Node at {}", self.snapshot.monitor),
            false => printable(&summary(&self.snapshot)),
        };
        frame.render_widget(TextLine::from(head).style(Modifier::BOLD), top);
        self.render_sections(frame, middle);
        let (text, style) = match &self.error {
            Some(error) => (error.as_str(), self.alarm()),
            None if self.view.is_paused => ("paused: p goes on", Style::from(Modifier::REVERSED)),
            None => (KEYS, Style::from(Modifier::DIM)),
        };
        frame.render_widget(TextLine::from(text).style(style), bottom);
        if self.view.is_helping {
            frame.render_widget(Clear, middle);
            frame.render_widget(Paragraph::new(HELP), middle);
        }
    }

    fn render_sections(&self, frame: &mut Frame, area: Rect) {
        let sections = sections(&self.snapshot, &self.view);
        // A title and a head each; empty ones are left out.
        let height = |section: &Section| match section.rows.len() {
            0 => 0,
            rows => u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2),
        };
        let [nodes, programs, grants, queue, events] =
            [0, 1, 2, 3, 4].map(|at| height(&sections[at]));
        let third = area.height / 3;
        let heights = [
            Constraint::Length(nodes.min(third)),
            Constraint::Length(programs.min(SMALL)),
            Constraint::Length(grants.min(third)),
            Constraint::Length(queue.min(SMALL)),
            Constraint::Min(events.min(1)),
        ];
        let areas: [Rect; 5] = Layout::vertical(heights).areas(area);
        for (section, area) in sections.into_iter().zip(areas) {
            if area.height > 0 && !section.rows.is_empty() {
                self.render_section(frame, area, section);
            }
        }
    }

    fn render_section(&self, frame: &mut Frame, area: Rect, section: Section) {
        let [head, body] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let Section { title, columns, rows } = section;
        let rows: Vec<(Vec<String>, bool)> = rows
            .into_iter()
            .take(usize::from(body.height))
            .map(|line| (line.cells.iter().map(|cell| printable(cell)).collect(), line.is_alarming))
            .collect();
        let widths = widths(&columns, &rows, usize::from(body.width));
        let title = match columns.len() - widths.len() {
            0 => title,
            left_out => format!("{title} ({left_out} more columns in a wider terminal)"),
        };
        frame.render_widget(TextLine::from(title).style(Modifier::REVERSED), head);
        let aligned = |&(at, width): &(usize, usize), cell: &str| match columns[at].1 {
            Align::Right => format!("{cell:>width$}"),
            Align::Left if cell.chars().count() > width => {
                cell.chars().take(width.saturating_sub(1)).chain(['…']).collect()
            }
            Align::Left => cell.to_owned(),
        };
        let row = |(cells, is_alarming): &(Vec<String>, bool)| {
            let cells = widths.iter().map(|column| aligned(column, &cells[column.0]));
            let style = if *is_alarming { self.alarm() } else { Style::default() };
            Row::new(cells.collect::<Vec<_>>()).style(style)
        };
        let titles = widths.iter().map(|it| aligned(it, &columns[it.0].0.to_uppercase()));
        let lengths = widths.iter().map(|(_, width)| u16::try_from(*width).unwrap_or(u16::MAX));
        let table = Table::new(rows.iter().map(row).collect::<Vec<_>>(), lengths)
            .header(Row::new(titles.collect::<Vec<_>>()).style(Modifier::BOLD))
            .column_spacing(SPACING);
        frame.render_widget(table, body);
    }

    fn alarm(&self) -> Style {
        match self.has_colour {
            true => Style::default().fg(Color::Red),
            false => Style::from(Modifier::BOLD),
        }
    }
}

/// Returns the columns that fit into a line, and their widths. A last column of text takes what is
/// left, and is shown before those to its left.
fn widths(
    columns: &[(&str, Align)],
    rows: &[(Vec<String>, bool)],
    line: usize,
) -> Vec<(usize, usize)> {
    let whole = |at: usize| {
        let cells = rows.iter().map(|(cells, _)| cells[at].chars().count());
        cells.chain([columns[at].0.len()]).max().unwrap_or(0)
    };
    let (last, text) =
        (columns.len() - 1, usize::from(columns[columns.len() - 1].1 == Align::Left));
    let least = |at: usize| whole(at).min(if at == last { LEAST_TEXT } else { WIDEST });
    let mut shown: Vec<(usize, usize)> = (0..=last).map(|at| (at, least(at))).collect();
    let taken = |shown: &[(usize, usize)]| -> usize {
        let spaced = shown.iter().map(|(_, width)| width + usize::from(SPACING));
        spaced.sum::<usize>() - usize::from(SPACING)
    };
    while taken(&shown) > line && shown.len() > 2 {
        shown.remove(shown.len() - 1 - text);
    }
    let free = line.saturating_sub(taken(&shown));
    if let Some((at, width)) = shown.last_mut().filter(|(at, _)| *at == last) {
        *width = whole(*at).min(*width + free);
    }
    shown
}

#[cfg(test)]
mod tests;
