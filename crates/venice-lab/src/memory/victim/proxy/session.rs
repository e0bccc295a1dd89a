//! One client's connection to the proxy: memcached's text protocol, answered from memcached and, on
//! a miss, from the victim store.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};

use super::index::Label;
use super::near::{Near, Stored, write_parts};
use super::shared::{Counts, Shared};

/// memcached's own bound for keys.
const LONGEST_KEY: usize = 250;
/// Longest line of keys that memcached takes.
const LONGEST_LINE: u64 = 64 << 10;
/// Longest value that is read: memcached's default bound is 1 MiB.
const LONGEST_VALUE: usize = 64 << 20;
/// Longer times than this are dates in memcached's protocol.
const LONGEST_SPAN_S: i64 = 60 * 60 * 24 * 30;

/// Serves one client until it closes the connection.
pub(super) struct Session<'a> {
    shared: &'a Shared,
    near: Near,
    client: BufReader<UnixStream>,
    line: Vec<u8>,
    /// The value to read or write, with its line end.
    value: Vec<u8>,
    /// A value that moves meanwhile.
    moved: Vec<u8>,
}

/// Continue or end after a command.
enum Next {
    Line,
    End,
}

impl<'a> Session<'a> {
    /// Opens a connection of its own to memcached.
    ///
    /// # Errors
    /// When memcached cannot be reached.
    pub(super) fn open(shared: &'a Shared, client: UnixStream) -> Result<Self> {
        let near = Near::connect(&shared.memcached)?;
        let client = BufReader::with_capacity(64 << 10, client);
        let (line, value, moved) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { shared, near, client, line, value, moved })
    }

    /// Serves commands until the client closes.
    ///
    /// # Errors
    /// When client, memcached or victim store fail.
    pub(super) fn serve(&mut self) -> Result<()> {
        loop {
            let mut line = std::mem::take(&mut self.line);
            line.clear();
            self.client.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
            let Some(text) = line.strip_suffix(b"\n") else { return Ok(()) };
            let words: Vec<&[u8]> = text
                .strip_suffix(b"\r")
                .unwrap_or(text)
                .split(|byte| *byte == b' ')
                .filter(|word| !word.is_empty())
                .collect();
            let next = self.obey(&words);
            self.line = line;
            match next {
                Ok(Next::Line) => {}
                Ok(Next::End) => return Ok(()),
                Err(error) => {
                    // The client gets the error if it still listens; the error is then returned
                    // too.
                    let _ = self.answer(&[format!("SERVER_ERROR {error:#}\r\n").as_bytes()]);
                    return Err(error);
                }
            }
        }
    }

    fn obey(&mut self, words: &[&[u8]]) -> Result<Next> {
        match words {
            [b"get", keys @ ..] if !keys.is_empty() => self.get(keys)?,
            [b"set", key, flags, exptime, length, rest @ ..] if rest.len() < 2 => {
                return self.set(key, [flags, exptime, length], matches!(rest, [b"noreply"]));
            }
            [b"delete", key, rest @ ..] if rest.len() < 2 => {
                let was_there = self.delete(key)?;
                let answer: &[u8] = if was_there { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" };
                if !matches!(rest, [b"noreply"]) {
                    self.answer(&[answer])?;
                }
            }
            [b"stats"] => self.stats()?,
            [b"version"] => {
                let version = concat!("VERSION venice-victim ", env!("CARGO_PKG_VERSION"), "\r\n");
                self.answer(&[version.as_bytes()])?;
            }
            [b"quit"] => return Ok(Next::End),
            _ => self.answer(&[b"ERROR\r\n"])?,
        }
        Ok(Next::Line)
    }

    fn get(&mut self, keys: &[&[u8]]) -> Result<()> {
        if keys.iter().any(|key| key.len() > LONGEST_KEY) {
            return self.answer(&[b"CLIENT_ERROR bad command line format\r\n"]);
        }
        for (index, key) in keys.iter().enumerate() {
            let is_last = index + 1 == keys.len();
            let end: &[u8] = if is_last { b"END\r\n" } else { b"" };
            match self.find(key)? {
                Some(flags) => {
                    let head = format!(" {flags} {}\r\n", self.value.len() - 2);
                    let parts: [&[u8]; 5] = [b"VALUE ", key, head.as_bytes(), &self.value, end];
                    write_parts(self.client.get_mut(), &parts)?;
                }
                None => self.answer(&[end])?,
            }
        }
        Ok(())
    }

    /// Looks into memcached, then into the victim store, and leaves the value in its place; returns
    /// its flags.
    fn find(&mut self, key: &[u8]) -> Result<Option<u32>> {
        let _held = self.shared.hold_to_read(key);
        if let Some(flags) = self.near.get(key, &mut self.value)? {
            self.shared.index().used(key);
            Counts::add(&self.shared.counts.near_hits);
            return Ok(Some(flags));
        }
        let label = self.shared.index().victim(key);
        if let (Some(label), Some(victims)) = (label, &self.shared.victims) {
            let is_over = label.ends.is_some_and(|ends| Instant::now() >= ends);
            if !is_over && victims.get_into(key, &mut self.value)? {
                self.value.extend_from_slice(b"\r\n");
                Counts::add(&self.shared.counts.victim_hits);
                return Ok(Some(label.flags));
            }
        }
        // Expired, evicted, or lost with its donor.
        self.shared.strike(key);
        Counts::add(&self.shared.counts.misses);
        Ok(None)
    }

    fn set(&mut self, key: &[u8], numbers: [&[u8]; 3], is_silent: bool) -> Result<Next> {
        let Some((flags, exptime_s, len)) = parsed(numbers).filter(|_| key.len() <= LONGEST_KEY)
        else {
            // The length of the value that follows is unknown.
            self.answer(&[b"CLIENT_ERROR bad command line format\r\n"])?;
            return Ok(Next::End);
        };
        if len > LONGEST_VALUE {
            self.answer(&[b"SERVER_ERROR object too large for cache\r\n"])?;
            return Ok(Next::End);
        }
        self.value.resize(len + 2, 0);
        self.client.read_exact(&mut self.value).context("the client's value was cut off")?;
        if !self.value.ends_with(b"\r\n") {
            self.answer(&[b"CLIENT_ERROR bad data chunk\r\n"])?;
            return Ok(Next::End);
        }
        let label = Label { flags, len_bytes: len as u64, ends: end_of(exptime_s) };
        let refused = self.store(key, label, exptime_s)?;
        self.trim()?;
        if !is_silent {
            self.answer(&[refused.as_deref().unwrap_or(b"STORED"), b"\r\n"])?;
        }
        Ok(Next::Line)
    }

    /// Stores into memcached. If that has no room, others move first; if that is not enough, the
    /// value goes into the victim store itself. Returns memcached's words if it refuses.
    fn store(&mut self, key: &[u8], label: Label, exptime_s: i64) -> Result<Option<Vec<u8>>> {
        loop {
            {
                let _held = self.shared.hold(key);
                match self.near.set(key, label.flags, exptime_s, &self.value)? {
                    Stored::Yes => {
                        self.shared.put_near(key, label);
                        return Ok(None);
                    }
                    // An older value must not come back.
                    Stored::NoRoom => {
                        self.shared.strike(key);
                    }
                    Stored::Refused(line) => {
                        self.shared.strike(key);
                        return Ok(Some(line));
                    }
                }
            }
            let Some(victims) = &self.shared.victims else {
                return Ok(Some(b"SERVER_ERROR out of memory storing object".to_vec()));
            };
            if !self.move_one()? {
                let _held = self.shared.hold(key);
                victims.put(key, &self.value[..label.len_bytes as usize])?;
                self.shared.index().put_victim(key, label);
                return Ok(None);
            }
        }
    }

    /// Moves the values beyond the near share.
    fn trim(&mut self) -> Result<()> {
        while self.shared.has_too_much_near() {
            if !self.move_one()? {
                break;
            }
        }
        Ok(())
    }

    /// Moves the coldest value of memcached into the victim store; returns false if there is none.
    fn move_one(&mut self) -> Result<bool> {
        let Some(victims) = &self.shared.victims else { return Ok(false) };
        let Some(coldest) = self.shared.index().coldest() else { return Ok(false) };
        let key = coldest.key.clone();
        let _held = self.shared.hold(&key);
        let Some(label) = self.shared.index().still(&coldest) else { return Ok(true) };
        if self.near.get(&key, &mut self.moved)?.is_none() {
            self.shared.index().forget(&key);
            return Ok(true);
        }
        let len = self.moved.len() - 2;
        if let Err(error) = victims.put(&key, &self.moved[..len]) {
            self.shared.index().keep(coldest);
            return Err(error).context("the victim store takes no more");
        }
        self.shared.index().put_victim(&key, label);
        self.near.delete(&key)?;
        Counts::add(&self.shared.counts.moved);
        Ok(true)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let _held = self.shared.hold(key);
        let was_victim = self.shared.strike(key);
        Ok(self.near.delete(key)? || was_victim)
    }

    fn stats(&mut self) -> Result<()> {
        let lines: String = self
            .shared
            .counts()
            .into_iter()
            .map(|(name, count)| format!("STAT {name} {count}\r\n"))
            .collect();
        self.answer(&[lines.as_bytes(), b"END\r\n"])
    }

    fn answer(&mut self, parts: &[&[u8]]) -> Result<()> {
        Ok(write_parts(self.client.get_mut(), parts)?)
    }
}

/// Parses flags, time and length of a `set`.
fn parsed([flags, exptime, length]: [&[u8]; 3]) -> Option<(u32, i64, usize)> {
    fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
        std::str::from_utf8(word).ok()?.parse().ok()
    }
    Some((number(flags)?, number(exptime)?, number(length)?))
}

/// Returns the expiry of a value that is stored now with this time.
fn end_of(exptime_s: i64) -> Option<Instant> {
    let now = Instant::now();
    let span_s = match exptime_s {
        0 => return None,
        ..0 => 0,
        1..=LONGEST_SPAN_S => exptime_s.unsigned_abs(),
        date => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            date.unsigned_abs().saturating_sub(since.unwrap_or_default().as_secs())
        }
    };
    // A time beyond the clock's range never expires.
    now.checked_add(Duration::from_secs(span_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spans_dates_or_past() {
        let left = |exptime_s| end_of(exptime_s).map(|ends| ends - Instant::now());
        assert_eq!(left(0), None);
        assert_eq!(left(-1), Some(Duration::ZERO));
        assert!(left(100).unwrap() > Duration::from_secs(50));
        let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let ahead = left(now_s as i64 + 1000).unwrap();
        assert!(ahead > Duration::from_secs(500) && ahead < Duration::from_secs(1001));
        assert_eq!(left(LONGEST_SPAN_S + 1), Some(Duration::ZERO), "a date long past");
        assert!(left(i64::MAX).is_none_or(|left| left > Duration::from_secs(1 << 40)));
    }

    #[test]
    fn invalid_numbers_are_refused() {
        assert_eq!(parsed([b"5", b"-1", b"10"]), Some((5, -1, 10)));
        for numbers in [[&b"x"[..], b"0", b"1"], [b"0", b"", b"1"], [b"0", b"0", b"-1"]] {
            assert_eq!(parsed(numbers), None);
        }
    }
}
