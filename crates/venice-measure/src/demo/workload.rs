//! The workload of every mode: load, read all back, then serve the same requests.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;

use super::dataset::{self, Dataset, VALUE_BYTES};
use super::resp::{Client, Reply};
use crate::interrupt;
use crate::pattern::Random;
use crate::progress::Phase;
use crate::zipf::{Scatter, Zipf};

/// Commands outstanding while loading and reading back.
const PIPELINE: u64 = 128;

/// Skew of the second distribution.
const ZIPF_THETA: f64 = 0.99;

/// Both seeds are fixed: every run of the demo sends the same requests.
const UNIFORM_SEED: u64 = 0x5eed_0001;
const ZIPF_SEED: u64 = 0x5eed_0002;

/// Measured requests for one warm-up request.
const WARM_UP_SHARE: u64 = 5;

/// The measured requests, the same for every mode.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Key numbers drawn uniformly.
    pub uniform: Vec<u64>,
    /// Key numbers drawn by Zipf's law.
    pub zipf: Vec<u64>,
    limit: Duration,
}

impl Plan {
    /// Draws `requests` of each distribution (and some more to warm up), each bounded by `limit`.
    pub fn new(dataset: &Dataset, requests: u64, limit: Duration) -> Self {
        let total = requests + requests / WARM_UP_SHARE;
        let mut random = Random::new(UNIFORM_SEED);
        let uniform = (0..total).map(|_| random.below(dataset.count)).collect();
        let mut random = Random::new(ZIPF_SEED);
        let zipf = Zipf::new(dataset.count, ZIPF_THETA);
        let scatter = Scatter::new(dataset.count);
        let skewed = (0..total).map(|_| scatter.key(zipf.rank(&mut random))).collect();
        Self { uniform, zipf: skewed, limit }
    }
}

/// Values checked, and wrong ones among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Values compared.
    pub values: u64,
    /// Values that differed.
    pub wrong: u64,
}

impl Checked {
    fn count(&mut self, right: bool) {
        self.values += 1;
        self.wrong += u64::from(!right);
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Checked) {
        self.values += other.values;
        self.wrong += other.wrong;
    }
}

/// One distribution in one mode.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Requests measured.
    pub requests: u64,
    /// Requests per second.
    pub ops_per_s: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: f64,
    /// Values compared, and those that differed.
    pub checked: Checked,
    /// True if the time limit came before the last request.
    pub cut_short: bool,
}

/// Stores every value.
pub fn load(client: &mut Client, dataset: &Dataset, label: &str) -> Result<()> {
    let phase = Phase::new(format!("{label}: load"), dataset.count);
    let mut value = [0u8; VALUE_BYTES];
    for batch in batches(dataset) {
        for number in batch.clone() {
            dataset::fill_value(number, &mut value);
            client.push(&[b"SET", &dataset::key(number), &value]);
        }
        client.flush()?;
        for number in batch.clone() {
            if client.reply()? != Reply::Simple("OK") {
                bail!("redis did not store key {number}");
            }
        }
        interrupt::check()?;
        phase.advance(batch.end - batch.start);
    }
    Ok(())
}

/// Reads every value back and checks each byte.
pub fn read_back(client: &mut Client, dataset: &Dataset, label: &str) -> Result<Checked> {
    let phase = Phase::new(format!("{label}: read back and check"), dataset.count);
    let mut checked = Checked::default();
    for batch in batches(dataset) {
        batch.clone().for_each(|number| client.push(&[b"GET", &dataset::key(number)]));
        client.flush()?;
        for number in batch.clone() {
            checked.count(dataset::value_is_right(number, bulk(client.reply()?)));
        }
        interrupt::check()?;
        phase.advance(batch.end - batch.start);
    }
    Ok(checked)
}

/// Reads `keys` one by one, each after the previous answer, and checks every answer.
pub fn measure(client: &mut Client, plan: &Plan, keys: &[u64], label: &str) -> Result<Measured> {
    let phase = Phase::new(label, keys.len() as u64);
    let warm_up = keys.len() / (WARM_UP_SHARE as usize + 1);
    let mut checked = Checked::default();
    let mut histogram = Histogram::<u64>::new(3)?;
    let limit_start = Instant::now();
    for (index, &number) in keys[..warm_up].iter().enumerate() {
        checked.count(timed_get(client, number)?.1);
        show(&phase, index)?;
        if limit_start.elapsed() > plan.limit {
            break;
        }
    }
    let start = Instant::now();
    let mut cut_short = false;
    for (index, &number) in keys[warm_up..].iter().enumerate() {
        let (latency_ns, right) = timed_get(client, number)?;
        histogram.record(latency_ns)?;
        checked.count(right);
        show(&phase, index)?;
        if start.elapsed() > plan.limit {
            cut_short = true;
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let requests = histogram.len();
    Ok(Measured {
        requests,
        ops_per_s: requests as f64 / seconds,
        p50_us: histogram.value_at_quantile(0.50) as f64 / 1e3,
        p99_us: histogram.value_at_quantile(0.99) as f64 / 1e3,
        checked,
        cut_short,
    })
}

/// Checks for Ctrl-C after each request, but draws the bar seldom, since drawing would be measured.
fn show(phase: &Phase, index: usize) -> Result<()> {
    const STEP: usize = 500;
    if index % STEP == STEP - 1 {
        phase.advance(STEP as u64);
    }
    interrupt::check()
}

/// Returns the latency in nanoseconds, and true if the value was right.
fn timed_get(client: &mut Client, number: u64) -> Result<(u64, bool)> {
    let key = dataset::key(number);
    let asked = Instant::now();
    let value = bulk(client.call(&[b"GET", &key])?);
    let latency_ns = asked.elapsed().as_nanos() as u64;
    Ok((latency_ns, dataset::value_is_right(number, value)))
}

fn bulk(reply: Reply<'_>) -> Option<&[u8]> {
    match reply {
        Reply::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}

fn batches(dataset: &Dataset) -> impl Iterator<Item = std::ops::Range<u64>> + use<> {
    let count = dataset.count;
    (0..count).step_by(PIPELINE as usize).map(move |start| start..(start + PIPELINE).min(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_every_key_once() {
        let dataset = Dataset { count: 2 * PIPELINE + 3 };
        let keys: Vec<u64> = batches(&dataset).flatten().collect();
        assert_eq!(keys, (0..dataset.count).collect::<Vec<_>>());
    }

    #[test]
    fn plan_is_deterministic() {
        let dataset = Dataset { count: 1000 };
        let one = Plan::new(&dataset, 500, Duration::from_secs(1));
        let two = Plan::new(&dataset, 500, Duration::from_secs(9));
        assert_eq!(one.uniform, two.uniform);
        assert_eq!(one.zipf, two.zipf);
        assert_eq!(one.uniform.len(), 600);
        assert!(one.uniform.iter().chain(&one.zipf).all(|&key| key < 1000));
        assert_ne!(one.uniform, one.zipf);
    }
}
