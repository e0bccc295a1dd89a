//! The order of a run: for each size of values memcached on local memory, which stays up; then each
//! mode with each share, in turns with it, so that compared runs lie close together in time.

use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use venice_wire::ByteSize;

use super::super::mode::{Budget, Mode};
use super::super::report::{Fate, Unmeasured};
use super::super::serve::Room;
use super::super::setup::{Lacking, ModeSetup};
use super::super::tables::{percent, unmeasured_line};
use super::Plan;
use super::clients::Answers;
use super::mode::SpillMode;
use super::proxy::VictimMemory;
use super::report::{PAPER_STATEMENTS, VictimCell, VictimReport};
use super::server::{Front, VictimServer, victim_bytes};
use super::values::Values;
use venice_measure::interrupt;
use venice_measure::launch::Launch;
use venice_measure::machine::Machine;
use venice_measure::progress::{Phase, note};
use venice_measure::rack::Port;

/// With fewer values they would fill only one page of memcached's own.
const LEAST_VALUES: u64 = 16;
/// Seed of the requests: the same in every mode.
const SEED: u64 = 0x006d_656d;

/// Runs the plan. After an interrupt it returns what was measured so far.
///
/// # Errors
/// On an interrupt before the first result, and when memcached does not work on local memory.
pub(super) fn run(plan: &Plan, setup: &mut ModeSetup) -> Result<VictimReport> {
    let started = Instant::now();
    let shares = |mode: SpillMode| if mode.has_shares() { plan.shares.len() } else { 1 };
    let modes: usize = plan.modes.iter().map(|mode| shares(*mode)).sum();
    let mut run =
        Run { plan, report: begin(plan), done: 0, total: plan.value_sizes.len() * (1 + modes) };
    let outcome = plan.value_sizes.iter().try_for_each(|&bytes| run.values_of(bytes, setup));
    if interrupt::check().is_err() && !run.report.cells.is_empty() {
        run.report.interrupted = true;
    } else {
        outcome?;
    }
    run.report.seconds = started.elapsed().as_secs_f64();
    Ok(run.report)
}

fn begin(plan: &Plan) -> VictimReport {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    VictimReport {
        machine: Machine::describe(),
        started_unix_s: now.as_secs(),
        load: venice_measure::machine::load(),
        quick: plan.quick,
        data_bytes: plan.data_bytes,
        requests: plan.requests,
        turns: plan.turns,
        paper: PAPER_STATEMENTS.map(str::to_owned).into(),
        cells: Vec::new(),
        unmeasured: Vec::new(),
        interrupted: false,
        checked: 0,
        wrong: 0,
        seconds: 0.0,
    }
}

struct Run<'a> {
    plan: &'a Plan,
    report: VictimReport,
    /// Modes so far, and their total number.
    done: usize,
    total: usize,
}

/// Key of one measurement.
#[derive(Debug, Clone, Copy)]
struct Place {
    mode: SpillMode,
    value_bytes: u64,
    local_share: f64,
}

impl Run<'_> {
    fn values_of(&mut self, value_bytes: u64, setup: &mut ModeSetup) -> Result<()> {
        let values = Values::of_bytes(value_bytes as usize);
        let keys = self.plan.keys(value_bytes);
        let place = Place { mode: SpillMode::Local, value_bytes, local_share: 1.0 };
        let label = self.label(place);
        let mut local =
            VictimServer::start(&Launch::Local, Front::Proxy, None, (&values, keys), &label)
                .context("memcached on plain local memory")?;
        for &clients in &self.plan.clients {
            let turns = self.turns(&mut local, None, clients, &label)?;
            self.enter(place, clients, &turns, &mut local)?;
        }
        let plan = self.plan;
        for &mode in &plan.modes {
            let shares = if mode.has_shares() { plan.shares.as_slice() } else { &[1.0] };
            for &local_share in shares {
                let place = Place { mode, value_bytes, local_share };
                let label = self.label(place);
                let outcome = self.in_mode(place, (&values, keys), &mut local, setup, &label);
                interrupt::check()?;
                self.settle(place, outcome);
            }
        }
        self.check_all(SpillMode::Local, &mut local, "local")
    }

    /// Sets one mode up and measures it in turns with `local`.
    fn in_mode(
        &mut self,
        place: Place,
        data: (&Values, u64),
        local: &mut VictimServer<'_>,
        setup: &mut ModeSetup,
        label: &str,
    ) -> Result<Result<(), Lacking>> {
        let Place { mode, value_bytes, local_share } = place;
        let near_bytes = (data.1 as f64 * local_share).round() as u64 * value_bytes;
        let far_bytes = data.1 * value_bytes - near_bytes;
        let started = match mode {
            SpillMode::Local => return Ok(Ok(())),
            SpillMode::Bare => VictimServer::start(&Launch::Local, Front::None, None, data, label)?,
            SpillMode::Smaller => {
                let room = Room { mib: (near_bytes >> 20).max(8), evicts: true };
                VictimServer::start(&Launch::Local, Front::Proxy, Some(room), data, label)?
            }
            SpillMode::VictimLocal | SpillMode::VictimShm | SpillMode::VictimUdp => {
                let memory = mode.victims().expect("the mode has a victim store");
                let rack = match memory {
                    VictimMemory::Local => None,
                    VictimMemory::Shm => Some(setup.rack(Port::Shm, victim_bytes(far_bytes))?),
                    VictimMemory::Udp => Some(setup.rack(Port::Udp, victim_bytes(far_bytes))?),
                };
                let front = Front::Victims { memory, rack, near_bytes, far_bytes };
                VictimServer::start(&Launch::Local, front, None, data, label)?
            }
            SpillMode::VeniceShm | SpillMode::VeniceUdp => {
                let held_bytes = local.resident_bytes()?;
                let budget = Budget::of(held_bytes, held_bytes, local_share);
                let paged =
                    if mode == SpillMode::VeniceShm { Mode::VeniceShm } else { Mode::VeniceUdp };
                return setup.on(paged, budget, |launch| {
                    let server = VictimServer::start(launch, Front::Proxy, None, data, label)?;
                    self.beside(place, server, local, label)
                });
            }
        };
        self.beside(place, started, local, label).map(Ok)
    }

    /// Measures all numbers of clients, then checks every value once more.
    fn beside(
        &mut self,
        place: Place,
        mut server: VictimServer<'_>,
        local: &mut VictimServer<'_>,
        label: &str,
    ) -> Result<()> {
        for &clients in &self.plan.clients {
            let turns = self.turns(local, Some(&mut server), clients, label)?;
            self.enter(place, clients, &turns, &mut server)?;
        }
        self.check_all(place.mode, &mut server, label)
    }

    /// Runs both in turns, or `local` alone beside itself.
    fn turns(
        &self,
        local: &mut VictimServer<'_>,
        mut far: Option<&mut VictimServer<'_>>,
        clients: usize,
        label: &str,
    ) -> Result<Vec<Turn>> {
        let _phase = Phase::waiting(format!("{label}: {clients} at a time"));
        let Plan { requests, turns, .. } = *self.plan;
        let sides = if far.is_some() { 2 } else { 1 };
        let limit = self.plan.limit / (turns * sides) as u32;
        let mut of_local = local.clients(clients)?;
        let mut of_far = far.as_mut().map(|server| server.clients(clients)).transpose()?;
        (0..turns)
            .map(|turn| {
                let requests = requests / turns + u64::from(turn < requests % turns);
                let seed = SEED ^ turn << 16;
                let mut ask_local = || local.ask(&mut of_local, requests, seed, limit);
                let (Some(far), Some(of_far)) = (far.as_mut(), of_far.as_mut()) else {
                    let local = ask_local()?;
                    return Ok(Turn { own: local.clone(), local });
                };
                let mut ask_far = || far.ask(of_far, requests, seed, limit);
                // The order alternates, so that drift affects both sides alike.
                let (own, local) = if turn % 2 == 0 {
                    let local = ask_local()?;
                    (ask_far()?, local)
                } else {
                    (ask_far()?, ask_local()?)
                };
                Ok(Turn { own, local })
            })
            .collect()
    }

    fn enter(
        &mut self,
        place: Place,
        clients: usize,
        turns: &[Turn],
        server: &mut VictimServer<'_>,
    ) -> Result<()> {
        let Place { mode, value_bytes, local_share } = place;
        let mut all = Answers::nothing()?;
        for turn in turns {
            all.add(&turn.own)?;
            if mode != SpillMode::Local {
                self.report.checked += turn.local.checked;
                self.report.wrong += turn.local.wrong + turn.local.missed;
            }
        }
        let wrong = self.judge(mode, &all);
        let penalties = turns.iter().map(Turn::throughput_penalty);
        let bounds = (f64::INFINITY, f64::NEG_INFINITY);
        let keys = self.plan.keys(value_bytes) as f64;
        let near_share = match mode.victims() {
            Some(_) => server.count("near_values")? as f64 / keys,
            None => local_share,
        };
        self.report.cells.push(VictimCell {
            mode,
            value_bytes,
            local_share,
            near_share,
            clients,
            operations: all.operations(),
            operations_per_s: median(turns.iter().map(|turn| turn.own.operations_per_s())),
            read_us: median(turns.iter().map(|turn| turn.own.reads_ns.mean() / 1e3)),
            read_p99_us: all.reads_ns.value_at_quantile(0.99) as f64 / 1e3,
            write_us: all.writes_ns.mean() / 1e3,
            read_penalty: median(turns.iter().map(Turn::read_penalty)),
            throughput_penalty: median(penalties.clone()),
            throughput_span: penalties
                .fold(bounds, |(least, most), one| (least.min(one), most.max(one))),
            missed_share: all.missed as f64 / all.checked.max(1) as f64,
            resident_bytes: server.resident_bytes()?,
            wrong,
            cut_short: all.operations() < self.plan.requests,
        });
        Ok(())
    }

    /// Checks every value once, and counts wrong ones to the mode's last cell.
    fn check_all(
        &mut self,
        mode: SpillMode,
        server: &mut VictimServer<'_>,
        label: &str,
    ) -> Result<()> {
        let read = server.read_back(label)?;
        let wrong = self.judge(mode, &read);
        if let Some(cell) = self.report.cells.iter_mut().rev().find(|cell| cell.mode == mode) {
            cell.wrong += wrong;
        }
        Ok(())
    }

    /// Counts the checked values; returns the wrong ones.
    fn judge(&mut self, mode: SpillMode, answers: &Answers) -> u64 {
        let lost = if mode.keeps_all() { answers.missed } else { 0 };
        let wrong = answers.wrong + lost;
        self.report.checked += answers.checked;
        self.report.wrong += wrong;
        wrong
    }

    /// Records a mode without a figure and prints it at once.
    fn settle(&mut self, place: Place, outcome: Result<Result<(), Lacking>>) {
        let (fate, reason) = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(Lacking(reason))) => (Fate::Skipped, reason),
            Err(error) => (Fate::of(&error), format!("{error:#}")),
        };
        let one = Unmeasured {
            name: Some(format!("values of {}", ByteSize(place.value_bytes))),
            mode: place.mode,
            local_share: place.mode.has_shares().then_some(place.local_share),
            fate,
            reason,
        };
        note(&unmeasured_line(&one));
        self.report.unmeasured.push(one);
    }

    /// Returns a label: `[12/64] 4KiB, 25 % local, victim-udp`.
    fn label(&mut self, place: Place) -> String {
        self.done += 1;
        let Place { mode, value_bytes, local_share } = place;
        let share = if mode.has_shares() {
            format!("{} local, ", percent(local_share))
        } else {
            String::new()
        };
        format!("[{}/{}] {}, {share}{mode}", self.done, self.total, ByteSize(value_bytes))
    }
}

impl Plan {
    /// Returns the number of values of this size.
    fn keys(&self, value_bytes: u64) -> u64 {
        (self.data_bytes / value_bytes).max(LEAST_VALUES)
    }
}

/// The same requests to a mode and to local memory.
#[derive(Debug, Clone)]
struct Turn {
    own: Answers,
    local: Answers,
}

impl Turn {
    fn read_penalty(&self) -> f64 {
        self.own.reads_ns.mean() / self.local.reads_ns.mean().max(1.0) - 1.0
    }

    fn throughput_penalty(&self) -> f64 {
        1.0 - self.own.operations_per_s() / self.local.operations_per_s()
    }
}

/// Returns the median, the lower of two in the middle; 0 for no numbers.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(count: u64, each_ns: u64) -> Answers {
        let mut answers =
            Answers { seconds: (count * each_ns) as f64 / 1e9, ..Answers::nothing().unwrap() };
        answers.reads_ns.record_n(each_ns, count).unwrap();
        answers
    }

    #[test]
    fn penalties_are_relative_to_local() {
        let turn = Turn { own: answers(100, 20_000), local: answers(100, 16_000) };
        assert!((turn.read_penalty() - 0.25).abs() < 0.01, "{}", turn.read_penalty());
        assert!((turn.throughput_penalty() - 0.2).abs() < 0.01, "{}", turn.throughput_penalty());
        let faster = Turn { own: answers(100, 8_000), local: answers(100, 16_000) };
        assert!(faster.read_penalty() < 0.0 && faster.throughput_penalty() < 0.0);
    }

    #[test]
    fn median_is_one_of_the_numbers() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 1.0);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
