//! Simulations on several ranks: rank 0 leads, the others follow its orders.

use std::cell::Cell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use venice_simkernel::ranks::Ranks;

use crate::{BadConfig, BadState, ExperimentError, Outcome, Point, Simulation, WorldKind};

/// The version that all ranks must have.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A call of rank 0 that the others make too.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Make a simulation by [`World::on_ranks`](crate::World::on_ranks); the configuration is TOML.
    Make {
        world: String,
        config: String,
        is_dealt: bool,
    },
    Capture(String),
    Captured,
    Advance(u64),
    Outcome,
    Save,
    /// There are no more orders.
    End,
}

/// The ranks as rank 0 sees them. The others follow until it is dropped.
pub struct Leader {
    ranks: Rc<dyn Ranks>,
    is_asked_to_stop: Cell<bool>,
}

/// A rank of another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} has version {found}, rank 0 {VERSION}: install the same on all machines")]
pub struct OtherVersion {
    rank: usize,
    found: String,
}

impl Leader {
    /// Leads the other ranks, which [`follow`].
    ///
    /// # Errors
    /// If one is of another version.
    pub fn new(ranks: Rc<dyn Ranks>) -> Result<Rc<Self>, OtherVersion> {
        let versions = ranks.gather(VERSION.into());
        let other = versions.iter().position(|version| version != VERSION.as_bytes());
        let this = Self { ranks, is_asked_to_stop: Cell::new(false) };
        match other {
            None => Ok(Rc::new(this)),
            Some(rank) => {
                let found = String::from_utf8_lossy(&versions[rank]).into_owned();
                Err(OtherVersion { rank, found })
            }
        }
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> usize {
        self.ranks.count()
    }

    /// True once a rank was asked to stop, as [`follow`] says.
    pub fn is_asked_to_stop(&self) -> bool {
        self.is_asked_to_stop.get()
    }

    /// Begins the simulation of a point on all ranks.
    ///
    /// # Errors
    /// If the point cannot be divided among them.
    pub fn start(
        self: &Rc<Self>,
        kind: &WorldKind,
        point: &Point,
    ) -> Result<Box<dyn Simulation>, ExperimentError> {
        kind.check_ranks(point, self.count())?;
        let made = self.make(kind, point, None);
        made.map_err(|BadState(why)| ExperimentError::Config(why))
    }

    /// Goes on with the simulation of a point on all ranks.
    ///
    /// # Errors
    /// If `state` is no state of such a simulation.
    pub fn restore(
        self: &Rc<Self>,
        kind: &WorldKind,
        point: &Point,
        state: &[u8],
    ) -> Result<Box<dyn Simulation>, BadState> {
        let check = kind.check_ranks(point, self.count());
        check.map_err(|error| BadState(error.to_string()))?;
        self.make(kind, point, Some(kind.deal(&point.config, self.count(), state)?))
    }

    fn make(
        self: &Rc<Self>,
        kind: &WorldKind,
        point: &Point,
        dealt: Option<Vec<Vec<u8>>>,
    ) -> Result<Box<dyn Simulation>, BadState> {
        let config = toml::to_string(&point.config).expect("tables with keys of text");
        self.order(&Order::Make { world: kind.name.into(), config, is_dealt: dealt.is_some() });
        let mut shares = dealt.into_iter().flatten();
        let share = shares.next();
        (1..).zip(shares).for_each(|(to, share)| self.ranks.send(to, share));
        let own = kind.on_ranks(&point.config, &self.ranks, share.as_deref())?;
        Ok(Box::new(Led { leader: self.clone(), own }))
    }

    fn order(&self, order: &Order) {
        self.ranks.broadcast(rmp_serde::to_vec(order).expect("an order is data"));
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // A panic ends all ranks by other means.
        if !std::thread::panicking() {
            self.order(&Order::End);
        }
    }
}

impl std::fmt::Debug for Leader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leader of {} ranks", self.count())
    }
}

/// Does what rank 0 orders, until it has no more. `stop` is asked after each step: once it is true, rank
/// 0 knows.
///
/// # Errors
/// If this rank cannot do what rank 0 can, such as read a file that the configuration names. The other
/// ranks must be ended then.
///
/// # Panics
/// If rank 0 is of another version.
pub fn follow(
    ranks: &Rc<dyn Ranks>,
    kinds: &[WorldKind],
    stop: &dyn Fn() -> bool,
) -> Result<(), BadState> {
    ranks.gather(VERSION.into());
    let mut own: Option<Box<dyn Simulation>> = None;
    loop {
        let order = rmp_serde::from_slice(&ranks.broadcast(Vec::new()));
        let order = order.expect("rank 0 has this version");
        match (order, &mut own) {
            (Order::End, _) => return Ok(()),
            (Order::Make { world, config, is_dealt }, before) => {
                *before = None;
                let kind = kinds.iter().find(|kind| kind.name == world).expect("a known world");
                let config = toml::from_str(&config).expect("rank 0 wrote it");
                let dealt = is_dealt.then(|| ranks.receive(0));
                own = Some(kind.on_ranks(&config, ranks, dealt.as_deref())?);
            }
            (Order::Capture(link), Some(own)) => drop(own.capture(&link)),
            (Order::Captured, Some(own)) => drop(own.captured()),
            (Order::Advance(until), Some(own)) => {
                own.advance(until);
                ranks.gather(vec![u8::from(stop())]);
            }
            (Order::Outcome, Some(own)) => drop(own.outcome()),
            (Order::Save, Some(own)) => drop(own.save()),
            (order, None) => panic!("nothing was made: {order:?}"),
        }
    }
}

/// A simulation at rank 0, whose calls the others make too.
struct Led {
    leader: Rc<Leader>,
    own: Box<dyn Simulation>,
}

impl Simulation for Led {
    fn capture(&mut self, link: &str) -> Result<(), BadConfig> {
        self.leader.order(&Order::Capture(link.to_owned()));
        self.own.capture(link)
    }

    fn captured(&self) -> (Vec<u8>, usize) {
        self.leader.order(&Order::Captured);
        self.own.captured()
    }

    fn advance(&mut self, until_ps: u64) {
        self.leader.order(&Order::Advance(until_ps));
        self.own.advance(until_ps);
        let stops = self.leader.ranks.gather(vec![0]);
        if stops.into_iter().flatten().any(|stop| stop != 0) {
            self.leader.is_asked_to_stop.set(true);
        }
    }

    fn now(&self) -> u64 {
        self.own.now()
    }

    fn is_over(&self) -> bool {
        self.own.is_over()
    }

    fn events(&self) -> u64 {
        self.own.events()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        self.own.progress()
    }

    fn outcome(&self) -> Outcome {
        self.leader.order(&Order::Outcome);
        self.own.outcome()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.leader.order(&Order::Save);
        self.own.save()
    }
}

#[cfg(test)]
mod tests {
    use venice_simkernel::ranks::in_threads;

    use super::*;

    #[test]
    fn other_version_is_refused() {
        let said = in_threads(3, |ranks| {
            if ranks.number() == 0 {
                return Leader::new(ranks).unwrap_err().to_string();
            }
            ranks.gather(if ranks.number() == 2 { b"0.0.9".to_vec() } else { VERSION.into() });
            ranks.broadcast(Vec::new());
            String::new()
        });
        assert!(said[0].starts_with("rank 2 has version 0.0.9, rank 0 "), "{said:?}");
    }
}
