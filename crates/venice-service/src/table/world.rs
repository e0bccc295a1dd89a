//! The table in virtual time: hosts that fail in every way at random, an owner that starts and ends
//! them at random, and a checker of the promises. One seed repeats a run.

use venice_testkit::random::SplitMix64;
use venice_testkit::seeds;

use super::*;
use crate::secret::ServiceSecret;

const MS: u64 = 1_000_000;
const MAX_HOSTS: usize = 5;

/// Something that happens to the processes of a host.
#[derive(Clone, Debug)]
enum Happening {
    Report(Report),
    BadReport,
    Gone(HostExit),
}

/// The processes and files of a host, outside the table.
#[derive(Clone, Debug, Default)]
struct Processes {
    /// Number of the start: what is due for an earlier one does not concern a later one.
    start: u64,
    is_running: bool,
    /// Kills that have no effect before one has, as in an uninterruptible sleep.
    immune_to: u64,
    /// Removals that fail before one succeeds.
    clings_for: u64,
}

/// Watches calls and events for a broken promise.
#[derive(Debug, Default)]
struct Checker {
    /// Grants with a start that has not ended, and what was reported of it.
    lives: BTreeMap<GrantId, Vec<&'static str>>,
    /// Grants whose owner waits for the end, with the number of calls.
    ends: BTreeMap<GrantId, usize>,
    broken: Vec<String>,
}

impl Checker {
    fn start(&mut self, grant: GrantId) {
        let is_over = |told: &Vec<_>| told.contains(&"failed") || told.contains(&"died");
        if self.lives.insert(grant, Vec::new()).is_some_and(|told| !is_over(&told)) {
            self.broken.push(format!("{grant:?} started twice"));
        }
    }

    fn end(&mut self, grant: GrantId) {
        *self.ends.entry(grant).or_default() += 1;
    }

    fn event(&mut self, event: &HostEvent, left: bool) {
        let (grant, name) = match event {
            HostEvent::Started { grant, .. } => (*grant, "started"),
            HostEvent::Failed { grant, .. } => (*grant, "failed"),
            HostEvent::Died { grant, .. } => (*grant, "died"),
            HostEvent::Ended { grant } => (*grant, "ended"),
        };
        if name == "ended" {
            let told = self.lives.remove(&grant);
            if self.ends.remove(&grant).is_none() {
                self.broken.push(format!("{grant:?} ended though nobody asked: {told:?}"));
            }
            if left {
                self.broken.push(format!("{grant:?} ended, and something of it is left"));
            }
            return;
        }
        if self.ends.contains_key(&grant) {
            self.broken.push(format!("{grant:?} {name} after its end was asked for"));
        }
        let told = self.lives.entry(grant).or_default();
        let is_right = match name {
            "started" | "failed" => told.is_empty(),
            _ => told[..] == ["started"],
        };
        if !is_right {
            self.broken.push(format!("{grant:?} {name} after {told:?}"));
        }
        told.push(name);
    }
}

/// One run.
struct World {
    random: SplitMix64,
    now_ns: u64,
    table: HostTable,
    processes: BTreeMap<GrantId, Processes>,
    happenings: BTreeMap<u64, VecDeque<(GrantId, u64, Happening)>>,
    checker: Checker,
    starts: u64,
    /// True once faults are over, so that everything can come to rest.
    is_calm: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64(seed),
            now_ns: 0,
            table: HostTable::new("/run/hosts".into(), MAX_HOSTS),
            processes: BTreeMap::new(),
            happenings: BTreeMap::new(),
            checker: Checker::default(),
            starts: 0,
            is_calm: false,
        }
    }

    fn run(mut self) -> Result<(), String> {
        for _ in 0..400 {
            self.act_as_owner();
            self.now_ns += self.random.below(300 * MS);
            self.settle();
        }
        self.is_calm = true;
        for number in 0..8 {
            self.checker.end(GrantId(number));
            self.table.handle_end(self.now_ns, GrantId(number));
        }
        for _ in 0..10_000 {
            self.settle();
            if self.table.is_empty() {
                break;
            }
            self.now_ns += 100 * MS;
        }
        let Checker { mut broken, ends, .. } = self.checker;
        if !self.table.is_empty() || !ends.is_empty() {
            broken.push(format!("not at rest: {:?}, {ends:?}", self.table));
        }
        if !self.processes.is_empty() {
            broken.push(format!("left: {:?}", self.processes));
        }
        if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
    }

    fn act_as_owner(&mut self) {
        let grant = GrantId(self.random.below(8));
        if self.random.chance(400) {
            let spec = HostSpec::new("any", ServiceSecret::from_bytes([0; 32]));
            let (had, count) = (self.processes.contains_key(&grant), self.table.len());
            match self.table.handle_start(grant, spec) {
                Ok(()) => {
                    assert!(!had && count < MAX_HOSTS, "a start beside what is left");
                    self.checker.start(grant);
                }
                Err(StartError::InUse { .. }) => {}
                Err(StartError::TooMany { .. }) => assert!(count >= MAX_HOSTS),
                Err(other) => panic!("{other}"),
            }
        } else if self.random.chance(300) {
            self.checker.end(grant);
            self.table.handle_end(self.now_ns, grant);
        }
    }

    /// Lets everything happen that is due.
    fn settle(&mut self) {
        while let Some(due) =
            self.happenings.first_entry().filter(|first| *first.key() <= self.now_ns)
        {
            for (grant, start, happening) in due.remove() {
                self.happen(grant, start, happening);
                self.perform();
            }
        }
        self.table.handle_timeout(self.now_ns);
        self.perform();
    }

    fn happen(&mut self, grant: GrantId, start: u64, happening: Happening) {
        let Some(processes) = self.processes.get_mut(&grant) else { return };
        if !processes.is_running || processes.start != start {
            return;
        }
        match happening {
            Happening::Report(report) => self.table.handle_report(self.now_ns, grant, report),
            Happening::BadReport => self.table.handle_bad_report(self.now_ns, grant),
            Happening::Gone(exit) => {
                processes.is_running = false;
                self.table.handle_gone(grant, exit, None);
            }
        }
    }

    fn perform(&mut self) {
        loop {
            while let Some(event) = self.table.poll_event() {
                let (HostEvent::Started { grant, .. }
                | HostEvent::Failed { grant, .. }
                | HostEvent::Died { grant, .. }
                | HostEvent::Ended { grant }) = &event;
                self.checker.event(&event, self.processes.contains_key(grant));
            }
            let Some(action) = self.table.poll_action() else { return };
            match action {
                HostAction::Spawn { grant, .. } => self.spawn(grant),
                HostAction::Kill(grant) => self.kill(grant),
                HostAction::Sweep(grant) => self.sweep(grant),
            }
        }
    }

    fn spawn(&mut self, grant: GrantId) {
        self.starts += 1;
        let start = self.starts;
        let left = self.processes.insert(grant, Processes { start, ..Processes::default() });
        assert!(left.is_none(), "spawned beside what is left of {left:?}");
        if self.random.chance(100) {
            return self.table.handle_spawn_failed(grant, String::from("no memory"));
        }
        let (immune_to, clings_for) = (self.random.below(3), self.random.below(4));
        let processes = Processes { start, is_running: true, immune_to, clings_for };
        self.processes.insert(grant, processes);
        self.table.handle_spawned(self.now_ns, grant);
        let mut at_ns = self.now_ns;
        let confined = Report::Confined(Confinement::default());
        for report in [Report::Init, confined, Report::Started(Vec::new())] {
            at_ns += self.random.below(200 * MS);
            if self.random.chance(60) {
                // One that stops here: it never listens, or does not end.
                break;
            }
            let happening = match self.random.below(40) {
                0 => Happening::BadReport,
                1 => Happening::Report(Report::Failed(String::from("no device"))),
                2 => Happening::Gone(HostExit::Exited(1)),
                _ => Happening::Report(report.clone()),
            };
            self.at(at_ns, grant, happening);
            // Reports are never doubted: they may come again.
            if self.random.chance(100) {
                self.at(at_ns + MS, grant, Happening::Report(report));
            }
        }
        if self.random.chance(500) {
            at_ns += self.random.below(5_000 * MS);
            let exit = HostExit::Signalled(11);
            self.at(at_ns, grant, Happening::Report(Report::Ended(exit)));
            self.at(at_ns + MS, grant, Happening::Gone(exit));
        }
        if self.random.chance(30) {
            (0..20).for_each(|_| self.at(at_ns, grant, Happening::Report(Report::Init)));
        }
    }

    fn kill(&mut self, grant: GrantId) {
        let Some(processes) = self.processes.get_mut(&grant) else { return };
        if processes.immune_to > 0 && !self.is_calm {
            processes.immune_to -= 1;
            return;
        }
        let at_ns = self.now_ns + self.random.below(100 * MS);
        self.at(at_ns, grant, Happening::Gone(HostExit::Signalled(9)));
    }

    fn sweep(&mut self, grant: GrantId) {
        let Some(processes) = self.processes.get_mut(&grant) else {
            return self.table.handle_swept(self.now_ns, grant, true);
        };
        assert!(!processes.is_running, "removed while it runs");
        let is_removed = processes.clings_for == 0;
        if is_removed {
            self.processes.remove(&grant);
        } else {
            processes.clings_for -= 1;
        }
        self.table.handle_swept(self.now_ns, grant, is_removed);
    }

    fn at(&mut self, at_ns: u64, grant: GrantId, happening: Happening) {
        let start = self.processes[&grant].start;
        self.happenings.entry(at_ns).or_default().push_back((grant, start, happening));
    }
}

#[test]
fn promises_hold_under_faults() {
    for seed in seeds::seeds(400) {
        if let Err(broken) = World::new(seed).run() {
            panic!("seed {seed}:\n{broken}");
        }
    }
}

#[test]
fn checker_sees_broken_promises() {
    let grant = GrantId(1);
    let (started, ended) = (
        HostEvent::Started { grant, endpoints: Vec::new(), confinement: Confinement::default() },
        HostEvent::Ended { grant },
    );
    let broken = |events: &[&HostEvent], asks: bool, left: bool| {
        let mut checker = Checker::default();
        checker.start(grant);
        if asks {
            checker.end(grant);
        }
        events.iter().for_each(|event| checker.event(event, left));
        checker.broken.len()
    };
    assert_eq!(broken(&[&started], false, false), 0);
    assert_eq!(broken(&[&ended], true, false), 0);
    assert_eq!(broken(&[&started, &started], false, false), 1);
    assert_eq!(broken(&[&ended], false, false), 1);
    assert_eq!(broken(&[&ended], true, true), 1);
    assert_eq!(broken(&[&started], true, false), 1);
}
