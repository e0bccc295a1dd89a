//! The order of a run: measurements and omissions.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use venice_fabric::LinkModel;
use venice_ports::udp::Xdp;

use super::emulation::{self, FRAMES, MAPPED};
use super::figure17::{self, Figure17};
use super::figure18::{self, Figure18};
use super::measure::{Effort, Ends, on_cpu};
use super::path::Path;
use super::raw::{self, Waiting};
use super::report::{ChannelsReport, Conditions};
use super::series::{Medium, Operation, PAST_KERNEL, Series, System};
use super::sweep::{self, Emulated};
use super::turns::{self, Turns};
use super::venice::{self, About, Protection, RingBed, ShmBed, UdpBed};
use super::{ChannelsArgs, Part, aims, contest, peers};
use venice_measure::interrupt;
use venice_measure::machine::{self, Machine};
use venice_measure::progress::{Phase, note};

/// Sizes of the full run: 4 B to 16 MiB.
const SIZES: [u64; 12] =
    [4, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Sizes of the quick run.
const QUICK_SIZES: [u64; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// Variants over the wire: protection and waiting.
const WAYS: [(Protection, Waiting); 3] = [
    (Protection::Plain, Waiting::Spin),
    (Protection::Plain, Waiting::Sleep),
    (Protection::Sealed, Waiting::Spin),
];

/// State of a run.
struct Run<'a> {
    args: &'a ChannelsArgs,
    effort: Effort,
    ends: Ends,
    path: Path,
    sizes: Vec<u64>,
    series: Vec<Series>,
    turns: Vec<Turns>,
    links: Vec<Emulated>,
    figure17: Option<Figure17>,
    figure18: Option<Figure18>,
}

/// Runs the measurements of `args`. After an interrupt it returns what was measured so far.
///
/// # Errors
/// When Venice or the bare machine fails. A peer's failure is recorded in the report.
pub(super) fn run(args: &ChannelsArgs) -> Result<ChannelsReport> {
    let started = Instant::now();
    let load = machine::load();
    let machine = Machine::describe();
    note(&format!("venice bench channels on {}", machine.line()));
    let sizes: BTreeSet<u64> = match &args.sizes {
        Some(sizes) => sizes.iter().map(|size| size.0).collect(),
        None if args.quick => QUICK_SIZES.into(),
        None => SIZES.into(),
    };
    let mut run = Run {
        args,
        effort: if args.quick { Effort::quick() } else { Effort::full() },
        ends: Ends::choose()?,
        path: if args.port.is_empty() || args.port.contains(&Medium::Udp) {
            Path::lay()
        } else {
            Path::Loopback { reason: "no wire is requested".to_owned() }
        },
        sizes: sizes.into_iter().collect(),
        series: Vec::new(),
        turns: Vec::new(),
        links: Vec::new(),
        figure17: None,
        figure18: None,
    };
    if let Path::Loopback { reason } = &run.path {
        note(&format!("the wire is loopback: {reason}"));
    }
    let is_interrupted = match run.measure() {
        Err(_) if interrupt::check().is_err() => true,
        measured => measured.map(|()| false)?,
    };
    let Run { effort, ends, path, series, turns, links, figure17, figure18, .. } = run;
    let contest = contest::cells(&series);
    let mut aims = aims::evaluate(&series, &contest);
    aims.extend(turns::aims(&turns));
    aims.extend(sweep::aims(&links));
    aims.push(figure17::aim(figure17.as_ref()));
    Ok(ChannelsReport {
        machine,
        conditions: Conditions {
            started_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .context("the clock is before 1970")?
                .as_secs(),
            quick: args.quick,
            interrupted: is_interrupted,
            cpus: (ends.near_cpu, ends.far_cpu),
            wire: path.title(),
            load,
            clock_cost_ns: effort.clock_cost_ns,
            repetitions: effort.repetitions,
            repetition_ms: effort.length.as_millis() as u64,
        },
        peers: peers::versions(),
        aims,
        links,
        contest,
        emulation: emulation::accuracy(&series),
        series,
        turns,
        figure17,
        figure18,
        seconds: started.elapsed().as_secs_f64(),
    })
}

impl Run<'_> {
    fn measure(&mut self) -> Result<()> {
        if self.wants(Part::Raw) {
            self.raw()?;
        }
        self.venice_shm()?;
        self.in_turns()?;
        self.venice_udp()?;
        self.venice_paper()?;
        self.venice_messages()?;
        self.figures()?;
        self.peers()
    }

    fn wants(&self, part: Part) -> bool {
        self.args.only.is_empty() || self.args.only.contains(&part)
    }

    fn has(&self, medium: Medium) -> bool {
        self.args.port.is_empty() || self.args.port.contains(&medium)
    }

    /// Returns the requested one-sided operations.
    fn accesses(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        if self.wants(Part::Crma) {
            operations.extend([Operation::Read, Operation::Write, Operation::Atomic]);
        }
        if self.wants(Part::Rdma) {
            operations.extend([Operation::BulkRead, Operation::BulkWrite]);
        }
        operations
    }

    fn raw(&mut self) -> Result<()> {
        let Self { effort, ends, path, sizes, .. } = self;
        let (effort, ends) = (*effort, *ends);
        let mut found = Vec::new();
        if self.args.port.is_empty() || self.args.port.contains(&Medium::Shm) {
            let phase = Phase::new("the bare machine: memory", 2);
            found.push(on_cpu(ends.near_cpu, || raw::copies(&effort, sizes))?);
            phase.advance(1);
            found.push(raw::ping_pong(&effort, ends)?);
        }
        if self.args.port.is_empty() || self.args.port.contains(&Medium::Udp) {
            let phase = Phase::new("the bare machine: UDP and TCP", 6);
            for waiting in [Waiting::Spin, Waiting::Sleep] {
                found.push(raw::udp_round_trips(&effort, ends, path, sizes, waiting)?);
                phase.advance(1);
                found.push(raw::tcp_round_trips(&effort, ends, path, sizes, waiting)?);
                phase.advance(1);
            }
            found.push(raw::udp_streams(&effort, ends, path, sizes)?);
            phase.advance(1);
            found.push(raw::tcp_streams(&effort, ends, path, sizes)?);
        }
        self.series.extend(found);
        Ok(())
    }

    fn venice_shm(&mut self) -> Result<()> {
        let mut operations = self.accesses();
        if !self.has(Medium::Shm) || operations.is_empty() {
            return Ok(());
        }
        let Self { effort, ends, sizes, .. } = self;
        // One way of a write takes two ends.
        let writes = operations.contains(&Operation::Write);
        operations.retain(|operation| *operation != Operation::Write);
        let points: usize =
            operations.iter().map(|operation| venice::sizes_of(*operation, sizes).len()).sum();
        let phase = Phase::new("Venice over shared memory", points as u64);
        let about =
            About { medium: Medium::Shm, variant: String::new(), operations, bandwidth: true };
        let mut found = on_cpu(ends.near_cpu, || {
            venice::accesses(effort, &mut ShmBed::lay(None)?, &about, sizes, || phase.advance(1))
        })?;
        if writes {
            found.push(venice::one_way_writes(effort, *ends, sizes)?);
            found.push(venice::fresh_reads(effort, *ends)?);
        }
        self.series.extend(found);
        Ok(())
    }

    fn in_turns(&mut self) -> Result<()> {
        if !self.has(Medium::Udp) {
            return Ok(());
        }
        let phase = Phase::new("over the wire, in turns", 3 * turns::count(self.args.quick) as u64);
        let wanted = (self.args.quick, |part| self.wants(part));
        let done = || phase.advance(1);
        self.turns = turns::measure(&self.effort, self.ends, &self.path, wanted, done)?;
        Ok(())
    }

    fn venice_udp(&mut self) -> Result<()> {
        let operations = self.accesses();
        if !self.has(Medium::Udp) || operations.is_empty() {
            return Ok(());
        }
        for (protection, waiting) in WAYS {
            let Self { effort, ends, sizes, path, .. } = self;
            let points: usize =
                operations.iter().map(|operation| venice::sizes_of(*operation, sizes).len()).sum();
            let variant = waiting.variant(protection);
            let phase = Phase::new(format!("Venice over the wire, {variant}"), points as u64);
            let about = About {
                medium: Medium::Udp,
                variant,
                operations: operations.clone(),
                bandwidth: waiting == Waiting::Spin,
            };
            let found = on_cpu(ends.near_cpu, || {
                let mut bed = UdpBed::lay(path, *ends, protection, waiting)?;
                venice::accesses(effort, &mut bed, &about, sizes, || phase.advance(1))
            })?;
            self.series.extend(found);
        }
        self.venice_past_kernel(operations)
    }

    /// Measures the same with AF_XDP beside the sockets; records the reason where it is
    /// unavailable.
    fn venice_past_kernel(&mut self, operations: Vec<Operation>) -> Result<()> {
        let Self { effort, ends, sizes, path, .. } = self;
        let waiting = Waiting::Spin;
        for protection in [Protection::Plain, Protection::Sealed] {
            let variant = format!("{}, {PAST_KERNEL}", waiting.variant(protection));
            let absent = |reason: String| {
                let series = operations.iter().map(|operation| {
                    Series::new(System::Venice, Medium::Udp, *operation, &variant).absent(&reason)
                });
                series.collect::<Vec<_>>()
            };
            if matches!(path, Path::Loopback { .. }) {
                self.series.extend(absent("needs a wire, which needs root".to_owned()));
                continue;
            }
            if let Err(error) = Xdp::probe() {
                self.series.extend(absent(error.to_string()));
                continue;
            }
            let points: usize =
                operations.iter().map(|operation| venice::sizes_of(*operation, sizes).len()).sum();
            let phase = Phase::new(format!("Venice over the wire, {variant}"), points as u64);
            let about = About {
                medium: Medium::Udp,
                variant,
                operations: operations.clone(),
                bandwidth: true,
            };
            let found = on_cpu(ends.near_cpu, || {
                let mut bed = UdpBed::lay_past_kernel(path, *ends, protection, waiting)?;
                venice::accesses(effort, &mut bed, &about, sizes, || phase.advance(1))
            })?;
            self.series.extend(found);
        }
        Ok(())
    }

    fn venice_paper(&mut self) -> Result<()> {
        let operations = self.accesses();
        if !self.has(Medium::Paper) || operations.is_empty() {
            return Ok(());
        }
        let Self { effort, ends, sizes, .. } = self;
        let points: usize =
            operations.iter().map(|operation| venice::sizes_of(*operation, sizes).len()).sum();
        let phase = Phase::new("Venice over the emulated paper link", 2 * points as u64);
        let about = |variant: &str| About {
            medium: Medium::Paper,
            variant: variant.to_owned(),
            operations: operations.clone(),
            bandwidth: true,
        };
        let model = Some(LinkModel::PAPER);
        let done = || phase.advance(1);
        let found = on_cpu(ends.near_cpu, || {
            let mut mapped = ShmBed::lay(model)?;
            let mut found = venice::accesses(effort, &mut mapped, &about(MAPPED), sizes, done)?;
            if ends.near_cpu != ends.far_cpu {
                let mut frames = RingBed::lend(*ends, model)?;
                let about = about(FRAMES);
                found.extend(venice::accesses(effort, &mut frames, &about, sizes, done)?);
            }
            Ok(found)
        })?;
        self.series.extend(found);
        let phase = Phase::new("Links of several latencies and bandwidths", sweep::STEPS);
        self.links = sweep::sweep(&self.effort, self.ends, || phase.advance(1))?;
        Ok(())
    }

    fn venice_messages(&mut self) -> Result<()> {
        if !self.wants(Part::Qpair) {
            return Ok(());
        }
        if self.has(Medium::Shm) {
            for waiting in [Waiting::Spin, Waiting::Sleep] {
                let found = self.socket_messages(venice::Place::Shm, waiting)?;
                self.series.push(found);
            }
        }
        if self.has(Medium::Paper) {
            let medium = Medium::Paper;
            let label = format!("QPair messages over {}", medium.title());
            let phase = Phase::new(label, self.sizes.len() as u64);
            let done = || phase.advance(1);
            let (effort, model) = (&self.effort, Some(LinkModel::PAPER));
            let found = venice::messages(effort, self.ends, medium, model, &self.sizes, done)?;
            self.series.push(found);
        }
        if self.has(Medium::Udp) {
            self.venice_udp_messages()?;
        }
        Ok(())
    }

    fn venice_udp_messages(&mut self) -> Result<()> {
        for (protection, waiting) in WAYS {
            let place = venice::Place::Wire { path: &self.path, protection };
            let found = self.socket_messages(place, waiting)?;
            self.series.push(found);
        }
        Ok(())
    }

    fn socket_messages(&self, place: venice::Place<'_>, waiting: Waiting) -> Result<Series> {
        let (medium, variant) = match place {
            venice::Place::Shm => (Medium::Shm, waiting.name().to_owned()),
            venice::Place::Wire { protection, .. } => (Medium::Udp, waiting.variant(protection)),
        };
        let label = format!("QPair messages over {}, {variant}", medium.title());
        let phase = Phase::new(label, self.sizes.len() as u64);
        let (effort, ends, sizes) = (&self.effort, self.ends, &self.sizes);
        let done = || phase.advance(1);
        venice::socket_messages(effort, ends, place, waiting, sizes, done)
    }

    fn figures(&mut self) -> Result<()> {
        if self.wants(Part::Figures) && self.has(Medium::Paper) {
            let phase = Phase::new("Figure 17: patterns", figure17::STEPS);
            let done = || phase.advance(1);
            self.figure17 = figure17::figure17(&self.effort, self.ends, done)?;
            drop(phase);
            let phase = Phase::new("Figure 18: credits", figure18::STEPS);
            let done = || phase.advance(1);
            self.figure18 = Some(figure18::figure18(&self.effort, self.ends, done)?);
        }
        Ok(())
    }

    fn peers(&mut self) -> Result<()> {
        if !self.wants(Part::Peers) {
            return Ok(());
        }
        let media: Vec<Medium> =
            Medium::ALL.into_iter().filter(|medium| self.has(*medium)).collect();
        let Self { effort, ends, path, sizes, .. } = self;
        let mut found = Vec::new();
        if media.contains(&Medium::Udp) {
            let _phase = Phase::waiting("iperf3");
            found.extend(peers::iperf3(effort, *ends, path)?);
        }
        {
            let phase = Phase::new("libfabric's fi_pingpong", 3 * sizes.len() as u64);
            let done = || phase.advance(1);
            found.extend(peers::libfabric(effort, *ends, path, &media, sizes, done)?);
        }
        let phase = Phase::new("UCX's ucx_perftest", 3);
        let done = || phase.advance(1);
        found.extend(peers::ucx(effort, *ends, path, &media, sizes, done)?);
        interrupt::check()?;
        drop(phase);
        self.series.extend(found);
        Ok(())
    }
}
