//! Terminal output: results on stdout, without a panic on a closed pipe; tables, JSON; progress on
//! stderr.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use venice_wire::ByteSize;

/// Writes `text` and a line end to stdout.
pub fn say(text: impl AsRef<str>) -> io::Result<()> {
    write(&[text.as_ref().as_bytes(), b"\n"])
}

/// Writes bytes to stdout unchanged.
pub fn say_bytes(bytes: &[u8]) -> io::Result<()> {
    write(&[bytes])
}

fn write(parts: &[&[u8]]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut written = parts.iter().try_for_each(|part| out.write_all(part));
    written = written.and_then(|()| out.flush());
    written.map_err(of_stdout)
}

/// Says of an error that it is stdout's.
pub(crate) fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("writing to standard output: {error}"))
}

/// Writes `value` as indented JSON, with all characters escaped that a terminal may obey.
pub fn say_json<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<()> {
    say(json_text(value)?)?;
    Ok(())
}

/// Writes `value` as a line of JSON, escaped like [`say_json`].
pub fn say_json_line<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<()> {
    say(escaped_json(&serde_json::to_string(value)?))?;
    Ok(())
}

fn json_text<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<String> {
    Ok(escaped_json(&serde_json::to_string_pretty(value)?))
}

fn escaped_json(text: &str) -> String {
    // Line ends outside of strings are the only control characters that serde_json leaves below
    // 128; the others are in strings.
    let escaped = |c: char| match c != '\n' && is_unsafe(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Escapes the characters that a terminal may obey, so that a text of another user cannot clear the
/// screen or forge lines: control characters, and those that change the direction of text.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| match is_unsafe(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn is_unsafe(c: char) -> bool {
    let is_invisible = matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
            | '\u{feff}'
    );
    c.is_control() || is_invisible
}

/// Prints a remark on stderr, which is not part of a command's result.
pub fn remark(text: impl AsRef<str>) {
    // The remark is lost when stderr is closed.
    let _ = writeln!(io::stderr(), "{}", text.as_ref());
}

/// Asks a question on the terminal. Anything but y and yes is no; `None`: there is no terminal.
///
/// # Errors
/// The terminal's.
pub fn confirm(question: &str) -> io::Result<Option<bool>> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(None);
    }
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(Some(["y", "yes"].contains(&answer.trim().to_lowercase().as_str())))
}

/// Alignment of a column: text left, numbers right.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Formats rows in aligned columns without borders, so that `awk` can read them too. Cells are made
/// [`printable`]; titles are in capitals, but for a unit in brackets.
pub fn table(columns: &[(&str, Align)], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(title, _)| match title.split_once('(') {
        Some((name, unit)) => format!("{}({unit}", name.to_uppercase()),
        None => title.to_uppercase(),
    }));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for (index, (_, align)) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if *align == Align::Right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table.lines().map(|line| line.trim_end().to_string()).collect::<Vec<_>>().join("\n")
}

/// Formats bytes with a unit.
pub fn bytes(count: u64) -> String {
    ByteSize(count).to_string()
}

/// Formats seconds: `12.3 s`, `4 min 05 s`, `2 h 10 min`.
pub fn seconds(s: f64) -> String {
    let whole = s.max(0.0) as u64;
    match whole {
        0..60 => format!("{:.1} s", s.max(0.0)),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Shows a bar over `total` steps on a terminal, and nothing elsewhere.
pub fn progress(total: u64, what: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    if let Ok(style) =
        ProgressStyle::with_template("{spinner} {prefix} [{bar:24}] {pos}/{len} {msg}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_without_trailing_blanks() {
        let text = table(
            &[("name", Align::Left), ("free", Align::Right)],
            vec![vec!["node1".into(), "1".into()], vec!["n".into(), "1024".into()]],
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("NAME"));
        assert!(lines.iter().all(|line| *line == line.trim_end()));
        let end = |line: &str| line.len();
        assert_eq!(end(lines[1]), end(lines[2]), "numbers are right aligned:\n{text}");
    }

    #[test]
    fn tables_escape_what_terminals_obey() {
        let forged = "\u{1b}[2J\u{9b}31mPWNED\n1 node1 root@x\r\u{202e}";
        let text = table(&[("recipient", Align::Left)], vec![vec![forged.to_owned()]]);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.contains("\\u{1b}[2J\\u{9b}31mPWNED\\n1"), "{text}");
        assert!(!text.trim_end().contains(|c: char| c != '\n' && is_unsafe(c)), "{text:?}");
        assert_eq!(printable("numpy 1 \u{fc}"), "numpy 1 \u{fc}");
        let json = json_text(&[forged]).unwrap();
        assert!(!json.contains(|c: char| c != '\n' && is_unsafe(c)), "{json:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [forged]);
    }

    #[test]
    fn durations_are_formatted() {
        assert_eq!(seconds(1.25), "1.2 s");
        assert_eq!(seconds(245.0), "4 min 05 s");
        assert_eq!(seconds(7800.0), "2 h 10 min");
        assert_eq!(seconds(-3.0), "0.0 s");
    }
}
