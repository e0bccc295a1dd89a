//! The clients: 95 reads to 5 writes, uniform; each has keys of its own, so that it can check every
//! value.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use super::super::serve::Client;
use super::values::Values;
use venice_measure::pattern::Random;
use venice_measure::progress::Phase;

/// Requests for one write.
const WRITE_EVERY: u64 = 20;

/// Result of some requests.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    /// Time from the request to the last byte of the answer, in nanoseconds.
    pub(super) reads_ns: Histogram<u64>,
    pub(super) writes_ns: Histogram<u64>,
    /// Time from the first request to the last answer, in seconds.
    pub(super) seconds: f64,
    /// Values checked.
    pub(super) checked: u64,
    /// Values that differ from the stored ones; missing values.
    pub(super) wrong: u64,
    pub(super) missed: u64,
}

impl Answers {
    pub(super) fn nothing() -> Result<Self> {
        Ok(Self {
            reads_ns: Histogram::new(3)?,
            writes_ns: Histogram::new(3)?,
            seconds: 0.0,
            checked: 0,
            wrong: 0,
            missed: 0,
        })
    }

    /// Adds the result of requests beside it or after it.
    pub(super) fn add(&mut self, other: &Answers) -> Result<()> {
        self.reads_ns.add(&other.reads_ns)?;
        self.writes_ns.add(&other.writes_ns)?;
        self.checked += other.checked;
        self.wrong += other.wrong;
        self.missed += other.missed;
        Ok(())
    }

    pub(super) fn operations(&self) -> u64 {
        self.reads_ns.len() + self.writes_ns.len()
    }

    pub(super) fn operations_per_s(&self) -> f64 {
        self.operations() as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// A server's clients and the versions of its values.
pub(super) struct Clients<'a> {
    clients: Vec<Client>,
    values: &'a Values,
}

impl<'a> Clients<'a> {
    pub(super) fn of(clients: Vec<Client>, values: &'a Values) -> Self {
        Self { clients, values }
    }

    /// Runs `requests` in all, in equal shares; stops after `limit`. The same `seed` and number of
    /// clients give the same requests to every server.
    ///
    /// # Errors
    /// When the server fails, and on an interrupt.
    pub(super) fn ask(
        &mut self,
        versions: &mut [u64],
        requests: u64,
        seed: u64,
        limit: Duration,
    ) -> Result<Answers> {
        let values = self.values;
        let share = versions.len().div_ceil(self.clients.len());
        // With few keys there are fewer clients.
        let count = versions.len().div_ceil(share) as u64;
        let start = Instant::now();
        let outcomes: Vec<Result<Answers>> = std::thread::scope(|scope| {
            let of_each = self.clients.iter_mut().zip(versions.chunks_mut(share));
            let threads: Vec<_> = (0u64..)
                .zip(of_each)
                .map(|(number, (client, versions))| {
                    let requests = requests / count + u64::from(number < requests % count);
                    let mut own = Own {
                        client,
                        values,
                        versions,
                        first: number * share as u64,
                        random: Random::new(seed ^ number << 32),
                    };
                    scope.spawn(move || own.ask(requests, start, limit))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("the client thread panicked"))
                .collect()
        });
        let mut all = Answers { seconds: start.elapsed().as_secs_f64(), ..Answers::nothing()? };
        for outcome in outcomes {
            all.add(&outcome?)?;
        }
        Ok(all)
    }
}

/// One client with its keys.
struct Own<'a> {
    client: &'a mut Client,
    values: &'a Values,
    versions: &'a mut [u64],
    /// The first of its keys.
    first: u64,
    random: Random,
}

impl Own<'_> {
    fn ask(&mut self, requests: u64, start: Instant, limit: Duration) -> Result<Answers> {
        let mut answers = Answers::nothing()?;
        for _ in 0..requests {
            let own = self.random.below(self.versions.len() as u64);
            let (key, version) = (self.first + own, &mut self.versions[own as usize]);
            let is_write = self.random.below(WRITE_EVERY) == 0;
            if is_write {
                *version += 1;
                let (head, window) = self.values.parts(key, *version);
                let sent = Instant::now();
                self.client.store(key, &[&head, window])?;
                answers.writes_ns.record(sent.elapsed().as_nanos() as u64)?;
            } else {
                let sent = Instant::now();
                let found = self.client.fetch(key)?;
                answers.reads_ns.record(sent.elapsed().as_nanos() as u64)?;
                let right = found.map(|value| self.values.is_right(key, *version, value));
                answers.checked += 1;
                answers.missed += u64::from(right.is_none());
                answers.wrong += u64::from(right == Some(false));
            }
            if start.elapsed() > limit {
                break;
            }
        }
        Ok(answers)
    }
}

/// Stores every value in its first version.
///
/// # Errors
/// When the server fails, and on an interrupt.
pub(super) fn load(client: &mut Client, values: &Values, keys: u64, label: &str) -> Result<()> {
    let phase = Phase::new(format!("{label}: load"), keys);
    for key in 0..keys {
        let (head, window) = values.parts(key, 0);
        client.store(key, &[&head, window])?;
        phase.advance(1);
    }
    Ok(())
}

/// Reads and checks every value once.
///
/// # Errors
/// The same as [`load`].
pub(super) fn read_back(
    client: &mut Client,
    values: &Values,
    versions: &[u64],
    label: &str,
) -> Result<Answers> {
    let phase = Phase::new(format!("{label}: read back and check"), versions.len() as u64);
    let mut answers = Answers::nothing()?;
    for (key, &version) in (0u64..).zip(versions) {
        let right = client.fetch(key)?.map(|value| values.is_right(key, version, value));
        answers.checked += 1;
        answers.missed += u64::from(right.is_none());
        answers.wrong += u64::from(right == Some(false));
        phase.advance(1);
    }
    Ok(answers)
}
