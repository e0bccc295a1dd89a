//! A search for words in text that lies in memory.

use anyhow::Result;

use super::{Done, WorkArgs, Workload, digest};
use venice_measure::pattern::Random;

/// Words to search for, one in each pass.
pub(super) const WORDS: [&[u8]; 2] = [b"remote memory", b"donor"];
/// Average distance of two inserted words, in bytes.
const EVERY_BYTES: u64 = 10_000;
/// Least text to search, in bytes.
pub(super) const LEAST_BYTES: usize = 1 << 16;
pub(super) const SEED: u64 = 0x6772_6570;
/// Letters from one draw, five bits each.
const LETTERS_OF_DRAW: usize = 12;
const LETTERS: &[u8; 32] = b"etaoinshrdlucmfwypvbgkjqxz  eta\n";

#[derive(Debug)]
pub(super) struct Grep {
    text: Vec<u8>,
    /// Matches of each pass.
    matches: Vec<u64>,
}

impl Workload for Grep {
    fn build(args: &WorkArgs) -> Result<Self> {
        let len_bytes = (args.size.0 as usize).max(LEAST_BYTES);
        Ok(Self { text: text(len_bytes, &mut Random::new(SEED)), matches: Vec::new() })
    }

    fn run(&mut self, rounds: u64) -> Done {
        for _ in 0..rounds {
            for word in WORDS {
                self.matches.push(count(word, &self.text));
            }
        }
        let bytes = self.text.len() as u64;
        Done { operations: rounds * WORDS.len() as u64 * bytes, wrong: 0 }
    }

    fn digests(&self) -> Vec<u64> {
        vec![digest::of_words(self.matches.iter().copied()), digest::of_bytes(&self.text)]
    }
}

/// Generates `len_bytes` of text in short lines, with the words in it.
pub(super) fn text(len_bytes: usize, random: &mut Random) -> Vec<u8> {
    // The full length from the beginning: a growing vector would request twice the memory.
    let mut text = vec![0; len_bytes];
    for letters in text.chunks_mut(LETTERS_OF_DRAW) {
        let draw = random.next_u64();
        for (place, letter) in letters.iter_mut().enumerate() {
            *letter = LETTERS[(draw >> (5 * place)) as usize & 31];
        }
    }
    let mut at = 0;
    loop {
        let word = WORDS[random.below(WORDS.len() as u64) as usize];
        at += (1 + random.below(2 * EVERY_BYTES)) as usize;
        let Some(room) = text.get_mut(at..at + word.len()) else { break text };
        room.copy_from_slice(word);
    }
}

/// Counts `word` in `text`, by Horspool's algorithm.
pub(super) fn count(word: &[u8], text: &[u8]) -> u64 {
    let length = word.len();
    let last = length - 1;
    let mut skips = [length; 256];
    for (place, &letter) in word[..last].iter().enumerate() {
        skips[usize::from(letter)] = last - place;
    }
    let (mut found, mut at) = (0, 0);
    while at + length <= text.len() {
        let window = &text[at..at + length];
        found += u64::from(window == word);
        at += skips[usize::from(window[last])];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_match_is_found() {
        assert_eq!(count(b"donor", b"donor no donodonor donor"), 3);
        assert_eq!(count(b"aa", b"aaaa"), 3);
        assert_eq!(count(b"donor", b"dono"), 0);
        let text: Vec<u8> = (0..10_000u32).map(|at| LETTERS[(at * at / 7) as usize & 3]).collect();
        for word in [&b"et"[..], b"tea", b"attea"] {
            let plain = text.windows(word.len()).filter(|window| *window == word).count() as u64;
            assert_eq!(count(word, &text), plain, "{word:?}");
        }
    }
}
