//! memcached under the load of the composable-rack paper (section 9a, Figures 9 and 10): values of
//! one size, 95 reads to 5 writes, uniform, by one client and by several.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use venice_wire::ByteSize;

use super::super::application::Sizes;
use super::super::sample::{Sample, Timing};
use super::memcached_server::{Memcached, Room};
use super::protocol::Client;
use venice_measure::launch::Launch;
use venice_measure::pattern::Random;
use venice_measure::progress::Phase;
use venice_measure::resident::{PeakSampler, resident_anonymous_bytes};

/// Requests for one write.
const WRITE_EVERY: u64 = 20;
/// With fewer values they would fill only one page of memcached's own.
const LEAST_VALUES: u64 = 16;

/// Runs it from empty to the last measured request.
///
/// # Errors
/// When memcached is not there or fails, and on an interrupt.
pub(in super::super) fn run(
    launch: &Launch<'_>,
    sizes: &Sizes,
    value_bytes: u64,
    limit: Duration,
    folder: &Path,
    label: &str,
) -> Result<Sample> {
    let keys = (sizes.data_bytes / value_bytes).max(LEAST_VALUES);
    let mut server = Memcached::start(launch, Room::ample(keys * value_bytes), folder)?;
    let outcome = converse(&server, sizes, keys, value_bytes, limit, label);
    outcome.map_err(|error| server.explain(error))
}

fn converse(
    server: &Memcached,
    sizes: &Sizes,
    keys: u64,
    value_bytes: u64,
    limit: Duration,
    label: &str,
) -> Result<Sample> {
    let pid = server.pid()?;
    let sampler = PeakSampler::start(pid);
    let connect = || Client::connect(server.socket(), value_bytes as usize);
    let mut versions = vec![0u64; keys as usize];
    let start = Instant::now();
    load(&mut connect()?, keys, label)?;
    let mut sample = Sample {
        load_s: start.elapsed().as_secs_f64(),
        resident_bytes: resident_anonymous_bytes(pid).context("memcached has ended")?,
        ..Sample::default()
    };
    for &count in &sizes.clients {
        let clients: Vec<Client> = (0..count).map(|_| connect()).collect::<Result<_>>()?;
        let case = format!(
            "memcached {}, {count} client{}",
            ByteSize(value_bytes),
            if count == 1 { "" } else { "s" }
        );
        let _phase = Phase::waiting(format!("{label}: {count} at a time"));
        let answers = ask(clients, &mut versions, sizes.requests, limit)?;
        sample.checked += answers.checked;
        sample.wrong += answers.wrong;
        sample.cases.push(Timing {
            case,
            operations: answers.latencies_ns.len(),
            seconds: answers.seconds,
            p99_us: Some(answers.latencies_ns.value_at_quantile(0.99) as f64 / 1e3),
            cut_short: answers.latencies_ns.len() < sizes.requests,
        });
    }
    read_back(&mut connect()?, &versions, &mut sample, label)?;
    sample.peak_bytes = sampler.peak_bytes();
    Ok(sample)
}

fn load(client: &mut Client, keys: u64, label: &str) -> Result<()> {
    let phase = Phase::new(format!("{label}: load"), keys);
    for key in 0..keys {
        client.set(key, 0)?;
        phase.advance(1);
    }
    Ok(())
}

fn read_back(
    client: &mut Client,
    versions: &[u64],
    sample: &mut Sample,
    label: &str,
) -> Result<()> {
    let phase = Phase::new(format!("{label}: read back and check"), versions.len() as u64);
    for (key, &version) in versions.iter().enumerate() {
        sample.checked += 1;
        sample.wrong += u64::from(!client.get_is_right(key as u64, version)?);
        phase.advance(1);
    }
    Ok(())
}

/// Result of the requests of one case.
struct Answers {
    latencies_ns: Histogram<u64>,
    checked: u64,
    wrong: u64,
    seconds: f64,
}

impl Answers {
    fn nothing() -> Result<Self> {
        Ok(Self { latencies_ns: Histogram::new(3)?, checked: 0, wrong: 0, seconds: 0.0 })
    }
}

/// Lets each client request keys of its own, so that it can check their versions.
fn ask(
    clients: Vec<Client>,
    versions: &mut [u64],
    requests: u64,
    limit: Duration,
) -> Result<Answers> {
    let share = versions.len().div_ceil(clients.len());
    // With few keys there are fewer clients.
    let count = versions.len().div_ceil(share);
    let start = Instant::now();
    let outcomes: Vec<Result<Answers>> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .zip(versions.chunks_mut(share))
            .enumerate()
            .map(|(number, (client, own))| {
                let first = (number * share) as u64;
                let requests =
                    requests / count as u64 + u64::from((number as u64) < requests % count as u64);
                scope.spawn(move || ask_alone(client, first, own, requests, start, limit))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    let mut all = Answers { seconds: start.elapsed().as_secs_f64(), ..Answers::nothing()? };
    for outcome in outcomes {
        let one = outcome?;
        all.latencies_ns.add(&one.latencies_ns)?;
        all.checked += one.checked;
        all.wrong += one.wrong;
    }
    Ok(all)
}

fn ask_alone(
    mut client: Client,
    first: u64,
    versions: &mut [u64],
    requests: u64,
    start: Instant,
    limit: Duration,
) -> Result<Answers> {
    let mut random = Random::new(0x006d_656d ^ first);
    let mut answers = Answers::nothing()?;
    for _ in 0..requests {
        let own = random.below(versions.len() as u64);
        let write = random.below(WRITE_EVERY) == 0;
        let sent = Instant::now();
        if write {
            versions[own as usize] += 1;
            client.set(first + own, versions[own as usize])?;
        } else {
            answers.checked += 1;
            let right = client.get_is_right(first + own, versions[own as usize])?;
            answers.wrong += u64::from(!right);
        }
        answers.latencies_ns.record(sent.elapsed().as_nanos() as u64)?;
        if start.elapsed() > limit {
            break;
        }
    }
    Ok(answers)
}
