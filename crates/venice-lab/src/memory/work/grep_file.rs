//! Debian's grep, unmodified, over a file in tmpfs: its pages are memory of the cgroup that wrote
//! them, and the kernel swaps them as it does anonymous ones.
//!
//! Each search prints the offset of every match. The matches are also counted independently while
//! the file is written; digests compare them with the run on local memory.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::grep::{LEAST_BYTES, SEED, WORDS, count, text};
use super::{WorkArgs, WorkReport, digest};
use venice_measure::child::find_program;
use venice_measure::pattern::Random;
use venice_measure::resident::resident_anonymous_bytes;
use venice_measure::scratch::RemovedFile;

/// Bytes written and read back at a time: small, since this program's own memory should not
/// interfere.
const PIECE_BYTES: usize = 1 << 20;

/// Writes the file, searches it while the clock runs, and reads it back.
///
/// # Errors
/// Without `--file`, when it has no room, and when grep fails.
pub(super) fn measure(args: &WorkArgs) -> Result<WorkReport> {
    let path = args.file.clone().context("this application needs --file FILE")?;
    let len_bytes = (args.size.0 as usize).max(LEAST_BYTES);
    let grep = find_program("grep")?;
    // In tmpfs the pages would outlive this process, in memory or on swap.
    let file = RemovedFile { path };
    let start = Instant::now();
    let wanted = write(&file.path, len_bytes)
        .with_context(|| format!("cannot write {}", file.path.display()))?;
    let build_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let searches = (0..args.rounds).flat_map(|_| WORDS);
    let said: Vec<Vec<u8>> =
        searches.map(|word| search(&grep, word, &file.path)).collect::<Result<_>>()?;
    let run_s = start.elapsed().as_secs_f64();
    let lines = |places: &Vec<u8>| places.iter().filter(|byte| **byte == b'\n').count() as u64;
    let wrong =
        said.iter().zip(wanted.iter().cycle()).filter(|(said, wanted)| lines(said) != **wanted);
    let own_bytes = resident_anonymous_bytes(std::process::id()).unwrap_or(0);
    Ok(WorkReport {
        build_s,
        run_s,
        operations: (said.len() * len_bytes) as u64,
        wrong: wrong.count() as u64,
        digests: vec![
            digest::of_words(said.iter().map(|places| digest::of_bytes(places))),
            digest_of_file(&file.path)?,
        ],
        heat: Vec::new(),
        resident_bytes: own_bytes + len_bytes as u64,
    })
}

/// Writes the text; returns the number of each word in it.
fn write(path: &Path, len_bytes: usize) -> Result<Vec<u64>> {
    let mut file = File::create(path)?;
    let mut random = Random::new(SEED);
    let mut wanted = vec![0; WORDS.len()];
    let mut left_bytes = len_bytes;
    while left_bytes > 0 {
        let mut piece = text(left_bytes.min(PIECE_BYTES), &mut random);
        // No word crosses from one piece into the next.
        piece[0] = b'\n';
        for (count_of, word) in wanted.iter_mut().zip(WORDS) {
            *count_of += count(word, &piece);
        }
        file.write_all(&piece)?;
        left_bytes -= piece.len();
    }
    Ok(wanted)
}

/// Searches the file; returns `OFFSET:WORD` for each match, in lines.
fn search(grep: &Path, word: &[u8], file: &Path) -> Result<Vec<u8>> {
    let mut command = Command::new(grep);
    command.args(["--fixed-strings", "--only-matching", "--byte-offset", "--text", "-e"]);
    command.arg(std::str::from_utf8(word).expect("the words are ASCII")).arg("--").arg(file);
    let output =
        command.env("LC_ALL", "C").stdin(Stdio::null()).output().context("cannot start grep")?;
    // Exit status 1 means no match.
    if !matches!(output.status.code(), Some(0 | 1)) {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("grep failed ({}): {}", output.status, said.trim());
    }
    Ok(output.stdout)
}

fn digest_of_file(path: &Path) -> Result<u64> {
    let mut file = File::open(path).context("cannot open the file to read it back")?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut pieces = Vec::new();
    loop {
        match file.read(&mut piece).context("cannot read the file back")? {
            0 => return Ok(digest::of_words(pieces)),
            read => pieces.push(digest::of_bytes(&piece[..read])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grep_finds_words_at_their_offsets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let wanted = write(&path, 2 * PIECE_BYTES + 4321).unwrap();
        let text = std::fs::read(&path).unwrap();
        assert_eq!(text.len(), 2 * PIECE_BYTES + 4321);
        for (word, wanted) in WORDS.into_iter().zip(wanted) {
            let said = search(&find_program("grep").unwrap(), word, &path).unwrap();
            let said = String::from_utf8(said).unwrap();
            assert_eq!(said.lines().count() as u64, wanted);
            for line in said.lines() {
                let (at, found) = line.split_once(':').unwrap();
                let at: usize = at.parse().unwrap();
                assert_eq!((found.as_bytes(), &text[at..at + word.len()]), (word, word));
            }
            assert!(wanted > 10, "{wanted}");
        }
    }

    #[test]
    fn missing_file_fails_missing_word_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let (grep, path) = (find_program("grep").unwrap(), folder.path().join("text"));
        let gone = search(&grep, b"donor", &path).unwrap_err().to_string();
        assert!(gone.contains("No such file"), "{gone}");
        std::fs::write(&path, "nothing").unwrap();
        assert_eq!(search(&grep, b"donor", &path).unwrap(), b"");
    }
}
