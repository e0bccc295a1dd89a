//! The commands in the documentation exist, with their flags.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::Place;

/// Commands of `venice-lab`, which is another binary; and clap's own.
const OTHERS: [&str; 5] = ["bench", "paper", "model", "sim", "help"];
/// Words of the shell that stand before a command.
const BEFORE: [&str; 8] = ["do", "env", "if", "sudo", "then", "time", "until", "while"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pages below a folder.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => pages.extend(self::pages(&path)),
            false if path.extension().is_some_and(|end| end == "md") => pages.push(path),
            false => {}
        }
    }
    pages
}

/// Returns the commands of a page as words behind `venice`: those in shell blocks and in inline code.
fn commands(page: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let (mut is_block, mut is_shell) = (false, false);
    for line in page.lines() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            (is_shell, is_block) = (kind.starts_with("sh"), !is_block);
            continue;
        }
        match is_block {
            true if is_shell => commands.extend(commands_in(line)),
            true => commands.extend(line.strip_prefix("$ ").into_iter().flat_map(commands_in)),
            false => {
                let inline = line.split('`').skip(1).step_by(2);
                commands
                    .extend(inline.filter(|it| it.starts_with("venice ")).flat_map(commands_in));
            }
        }
    }
    commands
}

/// Returns the commands of a line of shell, each up to the program that it runs.
fn commands_in(line: &str) -> Vec<Vec<String>> {
    let code = line.split(" #").next().unwrap_or_default();
    let parts = code.split(['|', ';', '&', '(', ')', '>', '<', '\'', '"', '`']);
    let commands = parts.filter_map(|part| {
        let is_before = |word: &&str| BEFORE.contains(word) || word.contains('=');
        let mut words = part.split_whitespace().skip_while(is_before);
        (words.next() == Some("venice"))
            .then(|| words.take_while(|word| *word != "--").map(str::to_owned).collect::<Vec<_>>())
    });
    commands.filter(|words| !words.is_empty()).collect()
}

/// Help texts of commands, by their names.
struct Helps {
    place: Place,
    known: BTreeMap<Vec<String>, Option<String>>,
}

impl Helps {
    fn of(&mut self, path: &[String]) -> Option<String> {
        let place = &self.place;
        let ask = || {
            let mut words: Vec<&str> = path.iter().map(String::as_str).collect();
            words.push("--help");
            let said = place.venice(&words);
            (said.code() == 0).then_some(said.out)
        };
        self.known.entry(path.to_owned()).or_insert_with(ask).clone()
    }

    /// Returns what is wrong with a command; `None`: nothing.
    fn mistake(&mut self, words: &[String]) -> Option<String> {
        let is_name = |word: &&String| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        let mut rest = words.iter();
        let mut path = vec![rest.next().filter(is_name)?.clone()];
        if path[0].starts_with('-') || OTHERS.contains(&&*path[0]) {
            return None;
        }
        let Some(mut help) = self.of(&path) else { return Some("no such command".to_owned()) };
        if help.contains("\nCommands:\n")
            && let Some(word) = rest.next().filter(is_name).filter(|word| !word.starts_with('-'))
        {
            path.push(word.clone());
            let Some(inner) = self.of(&path) else { return Some(format!("no {path:?}")) };
            help = inner;
        }
        let has = |flag: &str| {
            let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
            help.match_indices(flag).any(|(at, _)| is_end(&help[at + flag.len()..]))
        };
        let flags = words.iter().filter(|word| word.starts_with("--"));
        let flags = flags.map(|word| word.split(['=', ']', ',', '.']).next().unwrap_or(word));
        let unknown: Vec<&str> = flags.filter(|flag| !has(flag)).collect();
        (!unknown.is_empty()).then(|| format!("no flag {unknown:?}"))
    }
}

#[test]
fn documented_commands_exist() {
    let mut helps = Helps { place: Place::new(), known: BTreeMap::new() };
    let folders = ["docs/guide", "docs/operations"];
    let mut all =
        ["README.md", "docs/reference/commands.md"].map(|page| root().join(page)).to_vec();
    all.extend(folders.iter().flat_map(|folder| pages(&root().join(folder))));
    let (mut mistakes, mut count) = (Vec::new(), 0);
    for path in all {
        for words in commands(&fs::read_to_string(&path).unwrap()) {
            count += 1;
            let mistake = helps.mistake(&words);
            mistakes.extend(mistake.map(|why| format!("{}: {words:?}: {why}", path.display())));
        }
    }
    assert!(count > 400, "only {count} commands were found");
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}
