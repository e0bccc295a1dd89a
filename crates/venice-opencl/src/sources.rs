//! Files that programs include: they lie on this machine, the compiler on another one.
//!
//! Directories in the options get the place of the same files at the donor. A file goes there once
//! the compiler misses it, with what it includes itself.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Most files of one build.
const MAX_FILES: usize = 1024;
/// Most bytes of all files of one build.
const MAX_BYTES: usize = 64 << 20;

/// Options and files of a build.
pub struct Sources {
    /// Options for the donor.
    pub options: String,
    /// Contents by absolute path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Directory of such files at the donor.
    files_dir: String,
    /// Directories that includes are looked up in.
    dirs: Vec<PathBuf>,
    bytes: usize,
    /// Files that are there, and beyond the limits.
    left_out: BTreeSet<PathBuf>,
}

impl Sources {
    /// Takes the options of a program.
    pub fn new(options: &str, files_dir: &str) -> Self {
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let mut dirs = Vec::new();
        let mut translated = Vec::new();
        let mut words = split(options).into_iter();
        while let Some(word) = words.next() {
            let (flag, dir) = match word.strip_prefix("-I") {
                Some("") => ("-I", words.next()),
                Some(dir) => ("-I", Some(dir.to_owned())),
                None => ("", None),
            };
            match dir {
                Some(dir) => {
                    let dir = plain(&here.join(unquoted(&dir)));
                    translated.push(quoted(&format!("{flag}{files_dir}{}", dir.display())));
                    dirs.push(dir);
                }
                None => translated.push(macro_of_dir(&word, files_dir).unwrap_or(word)),
            }
        }
        // A file beside the program is found too.
        dirs.push(here.clone());
        translated.push(quoted(&format!("-I{files_dir}{}", here.display())));
        let options = translated.join(" ");
        let files_dir = files_dir.to_owned();
        Self {
            options,
            files: BTreeMap::new(),
            files_dir,
            dirs,
            bytes: 0,
            left_out: BTreeSet::new(),
        }
    }

    /// Adds the files that a compiler has missed. Returns false if it has missed none, or they are
    /// not here.
    pub fn add_missing(&mut self, log: &str) -> bool {
        let mut added = false;
        for line in log.lines() {
            let Some((place, name)) = missing(line) else { continue };
            // The file that includes it, if it is one of ours.
            let by = place.strip_prefix(&self.files_dir).map(Path::new).and_then(Path::parent);
            let by = by.map(Path::to_path_buf);
            added |= self.add(name, by.as_deref());
        }
        added
    }

    /// Adds a file that a source includes by this name, and what it includes itself.
    fn add(&mut self, name: &str, by: Option<&Path>) -> bool {
        let name = name.strip_prefix(&self.files_dir).unwrap_or(name);
        let dirs = by.into_iter().map(Path::to_path_buf).chain(self.dirs.iter().cloned());
        let candidates: Vec<PathBuf> = dirs.map(|dir| plain(&dir.join(name))).collect();
        for path in candidates {
            let key = path.display().to_string();
            if self.files.contains_key(&key) {
                return false;
            }
            let Ok(found) = path.metadata() else { continue };
            if !found.is_file() {
                continue;
            }
            let room = (MAX_BYTES - self.bytes) as u64;
            if self.files.len() >= MAX_FILES || found.len() > room {
                self.left_out.insert(path);
                continue;
            }
            let Ok(contents) = read_at_most(&path, room) else { continue };
            self.bytes += contents.len();
            self.files.insert(key, moved(&contents, &self.files_dir).into_owned());
            self.add_included(&String::from_utf8_lossy(&contents), path.parent());
            return true;
        }
        false
    }

    /// Returns lines for the log of a build, about files that were too many or too large.
    pub fn remarks(&self) -> String {
        let line = |path: &PathBuf| {
            let most = format!("at most {MAX_FILES} files of {} MiB", MAX_BYTES >> 20);
            format!("venice: {} stays here: a build takes {most}\n", path.display())
        };
        self.left_out.iter().map(line).collect()
    }

    /// Adds what a source includes by name.
    pub fn add_included(&mut self, text: &str, by: Option<&Path>) {
        for line in text.lines() {
            if let Some(name) = included(line) {
                self.add(name, by);
            }
        }
    }
}

/// Reads a file that has at most so many bytes; it may grow meanwhile.
fn read_at_most(path: &Path, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    std::fs::File::open(path)?.take(bytes).read_to_end(&mut contents)?;
    Ok(contents)
}

/// Gives files that a source includes by absolute paths their places at the donor. Other lines stay
/// as they are, in any encoding.
pub fn moved<'a>(source: &'a [u8], files_dir: &str) -> Cow<'a, [u8]> {
    let moved_line = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let name = included(line)?;
        let is_moved = name.starts_with('/') && Path::new(name).is_file();
        is_moved.then(|| line.replacen(name, &format!("{files_dir}{name}"), 1).into_bytes())
    };
    let lines: Vec<_> = source
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| moved_line(line).map_or(Cow::Borrowed(line), Cow::Owned))
        .collect();
    if lines.iter().any(|line| matches!(line, Cow::Owned(_))) {
        Cow::Owned(lines.concat())
    } else {
        Cow::Borrowed(source)
    }
}

/// Returns the name in an `#include` line.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    let rest = rest.trim_start();
    let close = match rest.chars().next()? {
        '"' => '"',
        '<' => '>',
        _ => return None,
    };
    rest[1..].split_once(close).map(|(name, _)| name)
}

/// Returns the place and the missing file of a compiler's message: `PLACE:1:10: fatal error: 'FILE'
/// file not found`, or `error: PLACE:1:10: 'FILE' file not found`.
fn missing(line: &str) -> Option<(&str, &str)> {
    let (before, _) = line.split_once(" file not found")?;
    let quotes: &[char] = &['\'', '"', '<', '>'];
    let before = before.strip_suffix(quotes)?;
    let (_, name) = before.rsplit_once(quotes)?;
    let place = line.trim_start().trim_start_matches("error: ").split(':').next()?;
    (!name.is_empty()).then_some((place, name))
}

/// Gives a macro that names a directory or a file of this machine its place at the donor.
fn macro_of_dir(word: &str, files_dir: &str) -> Option<String> {
    let (name, value) = word.split_once('=')?;
    let is_path = value.starts_with('/') && Path::new(value).exists();
    is_path.then(|| format!("{name}={files_dir}{value}"))
}

/// Splits options at white space outside of quotes; a word keeps its quotes.
fn split(options: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in options.chars() {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, letter) if letter.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            (Some(_) | None, _) => {}
        }
        word.push(letter);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

fn unquoted(word: &str) -> &str {
    word.trim_matches(['"', '\''])
}

fn quoted(word: &str) -> String {
    if word.contains(char::is_whitespace) { format!("\"{word}\"") } else { word.to_owned() }
}

/// Removes `.` and `..` from a path, as a compiler does with names.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_are_recognised() {
        let clang = "/tmp/files/a/b.h:3:10: fatal error: 'c.h' file not found";
        assert_eq!(missing(clang), Some(("/tmp/files/a/b.h", "c.h")));
        let pocl =
            "error: /tmp/x.cl:7:10 <Spelling=<scratch space>:9:1>: '/tmp/files/i.h' file not found";
        assert_eq!(missing(pocl), Some(("/tmp/x.cl", "/tmp/files/i.h")));
        assert_eq!(missing("error: use of undeclared identifier 'x'"), None);
    }

    #[test]
    fn directories_move_to_donor() {
        let sources = Sources::new("-I /opt/k -D DIR=/usr -DN=3 -I\"/a b\" -w", "/files");
        let options = sources.options;
        assert!(
            options.starts_with("-I/files/opt/k -D DIR=/files/usr -DN=3 \"-I/files/a b\" -w"),
            "{options}"
        );
    }

    #[test]
    fn absolute_includes_move() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.h").display().to_string();
        std::fs::write(&path, "").unwrap();
        let text = format!("int a;\n # include \"{path}\"\n#include \"/none.h\"\n");
        let expected = text.replace(&path, &format!("/files{path}"));
        let latin = |text: String| [text.into_bytes(), vec![0xe9, b'\n']].concat();
        assert_eq!(moved(&latin(text), "/files"), latin(expected));
        assert!(matches!(moved(b"#include \"x.h\"\n", "/files"), Cow::Borrowed(_)));
    }

    #[test]
    fn too_large_files_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("large.h")).unwrap();
        file.set_len(MAX_BYTES as u64 + 1).unwrap();
        let mut sources = Sources::new(&format!("-I{}", dir.path().display()), "/files");
        sources.add_included("#include \"large.h\"", None);
        assert!(sources.files.is_empty());
        let remarks = sources.remarks();
        assert!(remarks.contains("large.h stays here") && remarks.contains("64 MiB"), "{remarks}");
    }

    #[test]
    fn included_files_follow() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a.h", "#include \"b.h\"\n");
        write("b.h", "# include <a.h>\nint b;\n");
        let options = format!("-I{}", dir.path().display());
        let mut sources = Sources::new(&options, "/files");
        sources.add_included("#include \"a.h\"\n#include \"none.h\"", None);
        let names: Vec<_> = sources.files.keys().map(|it| it.rsplit('/').next().unwrap()).collect();
        assert_eq!(names, ["a.h", "b.h"]);
    }
}
