//! The order of a run: the database once; the donors' own work alone; then every amount of memory,
//! the largest first, in every mode, each with a fresh cache.

use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};

use super::super::mode::{Budget, Mode};
use super::super::report::{Fate, Unmeasured};
use super::super::setup::{Lacking, ModeSetup};
use super::application_server::{ApplicationServer, Source};
use super::database::MariaDb;
use super::donors::{Job, Jobs, Processors};
use super::entries::{ANSWER_BYTES, Entries, answers_in};
use super::report::{DonorRow, PAPER_STATEMENTS, QueryCell, QueryReport};
use super::{HIT_RATE_AT_MOST_MEMORY, Plan};
use venice_measure::cpus;
use venice_measure::demo::dataset::key;
use venice_measure::demo::redis::{Redis, find_program};
use venice_measure::demo::resp;
use venice_measure::interrupt;
use venice_measure::launch::Launch;
use venice_measure::machine::Machine;
use venice_measure::pattern::Random;
use venice_measure::progress::{Phase, note};
use venice_measure::resident::resident_anonymous_bytes;
use venice_measure::scratch;
use venice_measure::zipf::Scatter;

/// Commands outstanding while the cache is filled.
const PIPELINE: u64 = 128;
/// Queries for one warm-up query.
const WARM_UP_SHARE: u64 = 20;
/// Jobs of the donors' own work with no load beside it.
const ALONE: usize = 5;
/// Seed of the queries: the same in every mode.
const SEED: u64 = 0x7175_6572;

/// Runs the plan. After an interrupt it returns what was measured so far.
///
/// # Errors
/// On an interrupt before the first result, and when the service does not work on local memory.
pub(super) fn run(plan: &Plan, setup: &mut ModeSetup) -> Result<QueryReport> {
    let started = Instant::now();
    let machine = Machine::describe();
    let processors = Processors::split()?;
    if processors.are_split() {
        // Confines this thread and, with it, all processes that it starts.
        cpus::confine(std::process::id(), &processors.service)?;
    }
    let folder = scratch::folder(scratch::FOLDER)?;
    let (scale, rounds) = (plan.donor_scale, plan.donor_rounds);
    let job = Job::prepare(folder.path(), scale, rounds, &processors.donors)?;
    let most_bytes = plan.memories.iter().copied().max().context("no memory to measure with")?;
    let entries = Entries::for_cache(most_bytes, HIT_RATE_AT_MOST_MEMORY);
    let mut database = MariaDb::start(&plan.database_dir)?;
    let mut report = begin(machine, plan, entries, &processors);
    report.database_bytes = database.load(entries, plan.pool_bytes)?;
    let mut run = Run { plan, entries, processors, job, report };
    let outcome = run.all(setup, &mut database, folder.path());
    run.report.seconds = started.elapsed().as_secs_f64();
    match outcome {
        Err(error) if interrupt::check().is_err() && !run.report.cells.is_empty() => {
            run.report.interrupted = true;
            note(&format!("{error:#}"));
            Ok(run.report)
        }
        outcome => outcome.map(|()| run.report),
    }
}

fn begin(machine: Machine, plan: &Plan, entries: Entries, processors: &Processors) -> QueryReport {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let listed = |cpus: &[usize]| if processors.are_split() { cpus.to_vec() } else { Vec::new() };
    QueryReport {
        machine,
        started_unix_s: now.as_secs(),
        load: venice_measure::machine::load(),
        quick: plan.quick,
        rows: entries.rows(),
        owners: entries.owners,
        database_bytes: 0,
        pool_bytes: plan.pool_bytes,
        local_bytes: plan.local_bytes,
        queries: plan.queries,
        service_processors: listed(&processors.service),
        donor_processors: listed(&processors.donors),
        paper: PAPER_STATEMENTS.map(str::to_owned).into(),
        cells: Vec::new(),
        donors: Vec::new(),
        unmeasured: Vec::new(),
        interrupted: false,
        checked: 0,
        wrong: 0,
        seconds: 0.0,
    }
}

struct Run<'a> {
    plan: &'a Plan,
    entries: Entries,
    processors: Processors,
    job: Job,
    report: QueryReport,
}

impl Run<'_> {
    fn all(&mut self, setup: &mut ModeSetup, database: &mut MariaDb, folder: &Path) -> Result<()> {
        let alone = {
            let _phase = Phase::waiting("the donors' own work alone");
            self.job.alone(folder, ALONE)?
        };
        self.enter_jobs(None, alone);
        let mut of_modes = vec![Jobs::default(); self.plan.modes.len()];
        let outcome = self.cells(setup, database, folder, &mut of_modes);
        for (mode, jobs) in self.plan.modes.iter().zip(of_modes) {
            self.enter_jobs(Some(*mode), jobs);
        }
        outcome
    }

    fn cells(
        &mut self,
        setup: &mut ModeSetup,
        database: &mut MariaDb,
        folder: &Path,
        of_modes: &mut [Jobs],
    ) -> Result<()> {
        let cells = self.plan.memories.len() * self.plan.modes.len();
        let mut done = 0;
        for &memory_bytes in self.plan.memories.iter().rev() {
            for (&mode, jobs) in self.plan.modes.iter().zip(&mut *of_modes) {
                done += 1;
                if self.report.unmeasured.iter().any(|one| one.mode == mode) {
                    continue;
                }
                let memory = venice_wire::ByteSize(memory_bytes);
                let label = format!("[{done}/{cells}] {memory}, {mode}");
                let budget = self.budget(memory_bytes);
                let outcome = setup.on(mode, budget, |launch| {
                    self.cell(launch, (mode, memory_bytes), database, folder, &label)
                });
                interrupt::check()?;
                if let Some(ended) = self.enter(mode, outcome, database)? {
                    jobs.add(ended);
                }
            }
        }
        Ok(())
    }

    fn budget(&self, memory_bytes: u64) -> Budget {
        // Redis takes more than its limit: it counts neither its buffers nor its allocator's
        // losses.
        let held_bytes = memory_bytes + memory_bytes / 4 + (8 << 20);
        let local_bytes = self.plan.local_bytes;
        Budget { local_bytes, ..Budget::of(held_bytes, held_bytes, 1.0) }
    }

    /// Fills a cache of this size, then queries it, beside the donors' own work.
    fn cell(
        &self,
        launch: &Launch<'_>,
        (mode, memory_bytes): (Mode, u64),
        database: &MariaDb,
        folder: &Path,
        label: &str,
    ) -> Result<(QueryCell, Jobs)> {
        if let (Launch::OnRack { rack, .. }, true) = (launch, self.processors.are_split()) {
            for pid in rack.agent_pids() {
                cpus::confine(pid, &self.processors.donors)?;
            }
        }
        let own = scratch::folder(scratch::FOLDER)?;
        let mut redis = Redis::start(&find_program()?, launch, own.path(), "redis")?;
        let beside = self.job.beside(folder);
        let outcome = self.converse(&mut redis, memory_bytes, database, own.path(), label);
        let answers = outcome.map_err(|error| redis.explain(error))?;
        let resident_bytes = resident_anonymous_bytes(redis.pid()).context("redis has ended")?;
        let jobs = beside.stop()?;
        let mean_us = |seconds: f64, count: u64| 1e6 * seconds / count.max(1) as f64;
        let cell = QueryCell {
            mode,
            memory_bytes,
            resident_bytes,
            seconds: answers.seconds,
            hits: answers.hits,
            misses: answers.misses,
            hit_us: mean_us(answers.hit_s, answers.hits),
            miss_us: mean_us(answers.miss_s, answers.misses),
            wrong: answers.wrong,
        };
        Ok((cell, jobs))
    }

    fn converse(
        &self,
        redis: &mut Redis,
        memory_bytes: u64,
        database: &MariaDb,
        folder: &Path,
        label: &str,
    ) -> Result<Answers> {
        let cache = redis.client();
        limit(cache, memory_bytes)?;
        let count = answers_in(memory_bytes).min(self.entries.owners);
        fill(cache, self.entries, count, &format!("{label}: fill the cache"))?;
        let cache = resp::Client::connect(redis.socket())?;
        let server = ApplicationServer::start(folder, cache, database.session()?)?;
        let mut client = server.connect(self.entries)?;
        let mut random = Random::new(SEED);
        let mut ask = |count: u64, label: &str| -> Result<Answers> {
            let phase = Phase::new(label, count);
            let mut answers = Answers::default();
            let start = Instant::now();
            for _ in 0..count {
                interrupt::check()?;
                let sent = Instant::now();
                let (source, right) = client.ask(random.below(self.entries.owners))?;
                answers.enter(source, right, sent.elapsed().as_secs_f64());
                phase.advance(1);
            }
            answers.seconds = start.elapsed().as_secs_f64();
            Ok(answers)
        };
        let queries = self.plan.queries;
        let warm_up = ask(queries.div_ceil(WARM_UP_SHARE), &format!("{label}: warm up"))?;
        let mut answers = ask(queries, &format!("{label}: queries"))?;
        answers.wrong += warm_up.wrong;
        Ok(answers)
    }

    fn enter(
        &mut self,
        mode: Mode,
        outcome: Result<Result<(QueryCell, Jobs), Lacking>>,
        database: &mut MariaDb,
    ) -> Result<Option<Jobs>> {
        let unmeasured =
            |fate, reason| Unmeasured { name: None, mode, local_share: None, fate, reason };
        let left_out = match outcome {
            Ok(Ok((cell, jobs))) => {
                let warm_up = self.plan.queries.div_ceil(WARM_UP_SHARE);
                self.report.checked += self.plan.queries + warm_up;
                self.report.wrong += cell.wrong;
                self.report.cells.push(cell);
                return Ok(Some(jobs));
            }
            Ok(Err(Lacking(reason))) => unmeasured(Fate::Skipped, reason),
            Err(error) => {
                // Without the database there is nothing more to measure.
                database.ensure_alive().map_err(|death| death.context(format!("{error:#}")))?;
                if mode == Mode::Local {
                    return Err(error.context("the service on plain local memory"));
                }
                unmeasured(Fate::of(&error), format!("{error:#}"))
            }
        };
        note(&super::super::tables::unmeasured_line(&left_out));
        self.report.unmeasured.push(left_out);
        Ok(None)
    }

    fn enter_jobs(&mut self, beside: Option<Mode>, jobs: Jobs) {
        self.report.checked += jobs.checked;
        self.report.wrong += jobs.wrong;
        if let Some(median_s) = jobs.median_s() {
            let jobs = jobs.seconds.len() as u64;
            self.report.donors.push(DonorRow { beside, jobs, median_s });
        }
    }
}

/// Result of the queries of a cell.
#[derive(Debug, Default)]
struct Answers {
    seconds: f64,
    hits: u64,
    misses: u64,
    hit_s: f64,
    miss_s: f64,
    wrong: u64,
}

impl Answers {
    fn enter(&mut self, source: Source, right: bool, seconds: f64) {
        match source {
            Source::Cache => {
                self.hits += 1;
                self.hit_s += seconds;
            }
            Source::Database => {
                self.misses += 1;
                self.miss_s += seconds;
            }
        }
        self.wrong += u64::from(!right);
    }
}

/// Bounds redis to `memory_bytes` and makes it evict.
fn limit(cache: &mut resp::Client, memory_bytes: u64) -> Result<()> {
    let memory = memory_bytes.to_string();
    let settings: [(&[u8], &[u8]); 2] =
        [(b"maxmemory", memory.as_bytes()), (b"maxmemory-policy", b"allkeys-lru")];
    for (name, value) in settings {
        match cache.call(&[b"CONFIG".as_slice(), b"SET", name, value])? {
            resp::Reply::Simple("OK") => {}
            other => bail!("redis answered CONFIG SET with {other:?}"),
        }
    }
    Ok(())
}

/// Fills the cache as earlier queries would: with the answers of `count` random owners.
fn fill(cache: &mut resp::Client, entries: Entries, count: u64, label: &str) -> Result<()> {
    let phase = Phase::new(label, count);
    let scatter = Scatter::new(entries.owners);
    let mut answer = [0; ANSWER_BYTES];
    let mut done = 0;
    while done < count {
        let batch = PIPELINE.min(count - done);
        for index in done..done + batch {
            let owner = scatter.key(index);
            entries.fill_answer(owner, &mut answer);
            cache.push(&[b"SET".as_slice(), &key(owner), &answer]);
        }
        cache.flush()?;
        for _ in 0..batch {
            cache.reply()?;
        }
        done += batch;
        phase.advance(batch);
    }
    Ok(())
}
