//! Faults of a rack's processes, drawn from a seed: Monitor Nodes, members of etcd and agents are
//! killed and restarted, or stopped and resumed, also several at once.

use std::fmt;

use venice_testkit::etcd::Etcd;

use crate::common::rack::Rack;
use crate::judge::Judge;
use venice_testkit::random::SplitMix64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Killed,
    Stopped,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whom {
    Monitor(usize),
    /// A member of etcd; true for the leader.
    Member(usize, bool),
    Agent(usize),
}

/// A set of simultaneous faults.
pub struct Faults(Vec<(Whom, How)>);

impl Faults {
    /// Some Monitor Nodes but never all, one agent at most; members of etcd, at times a majority. Every
    /// other time one of these alone.
    pub fn draw(random: &mut SplitMix64, rack: &Rack, etcd: &Etcd) -> Self {
        let mut faults = Vec::new();
        while faults.is_empty() {
            if random.is_one_in(2) {
                let count = 1 + usize::from(random.is_one_in(3));
                let first = random.below(rack.monitors.len() as u64) as usize;
                let each = (0..count).map(|next| (first + next) % rack.monitors.len());
                faults.extend(each.map(|at| (Whom::Monitor(at), how(random))));
            }
            if random.is_one_in(2)
                && let Some(leader) = etcd.leader()
            {
                let count = 1 + u64::from(random.is_one_in(4));
                let first = random.below(3);
                let each = (0..count).map(|next| ((first + next) % 3) as usize);
                faults.extend(each.map(|at| (Whom::Member(at, at == leader), how(random))));
            }
            if random.is_one_in(3) {
                let at = random.below(rack.agents.len() as u64) as usize;
                faults.push((Whom::Agent(at), how(random)));
            }
        }
        if random.is_one_in(2) {
            faults = vec![*random.choice(&faults)];
        }
        Self(faults)
    }

    pub fn begin(&self, rack: &mut Rack, etcd: &mut Etcd, judge: &Judge) {
        for (whom, how) in &self.0 {
            match (whom, how) {
                (Whom::Monitor(at), How::Killed) => rack.monitors[*at].kill(),
                (Whom::Monitor(at), How::Stopped) => rack.monitors[*at].stall(),
                (Whom::Member(at, _), How::Killed) => etcd.kill(*at),
                (Whom::Member(at, _), How::Stopped) => etcd.stall(*at),
                (Whom::Agent(at), how) => {
                    judge.trouble(&rack.agents[*at].name);
                    match how {
                        How::Killed => rack.agents[*at].kill(),
                        How::Stopped => rack.agents[*at].stall(),
                    }
                }
            }
        }
    }

    pub fn end(&self, rack: &mut Rack, etcd: &mut Etcd, judge: &Judge) {
        let Rack { place, monitors, agents } = rack;
        for (whom, how) in &self.0 {
            match (whom, how) {
                (Whom::Monitor(at), How::Killed) => monitors[*at].start(place),
                (Whom::Monitor(at), How::Stopped) => monitors[*at].go_on(),
                (Whom::Member(at, _), How::Killed) => etcd.restart(*at),
                (Whom::Member(at, _), How::Stopped) => etcd.go_on(*at),
                (Whom::Agent(at), how) => {
                    judge.trouble(&agents[*at].name);
                    match how {
                        How::Killed => agents[*at].start(place),
                        How::Stopped => agents[*at].go_on(),
                    }
                }
            }
        }
    }

    /// True if etcd has no majority, so that nothing can be granted.
    pub fn leave_no_majority(&self) -> bool {
        self.0.iter().filter(|(whom, _)| matches!(whom, Whom::Member(..))).count() > 1
    }

    /// Kind of fault, for the figures.
    pub fn kind(&self) -> String {
        match &self.0[..] {
            [(whom, how)] => format!("{} {how}", whom.kind()),
            _ if self.leave_no_majority() => "etcd's majority and others".to_owned(),
            _ => "several at once".to_owned(),
        }
    }
}

fn how(random: &mut SplitMix64) -> How {
    *random.choice(&[How::Killed, How::Stopped])
}

impl Whom {
    fn kind(self) -> &'static str {
        match self {
            Whom::Monitor(_) => "a Monitor Node",
            Whom::Member(_, true) => "etcd's leader",
            Whom::Member(_, false) => "a follower of etcd",
            Whom::Agent(_) => "an agent",
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Killed => "killed",
            How::Stopped => "stopped",
        })
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().map(|(whom, how)| {
            let number = match whom {
                Whom::Monitor(at) | Whom::Member(at, _) | Whom::Agent(at) => at,
            };
            format!("{} ({number}) {how}", whom.kind())
        });
        f.write_str(&each.collect::<Vec<_>>().join(", "))
    }
}
