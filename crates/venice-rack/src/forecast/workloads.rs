//! The workloads of a rack: what each uses, sample by sample; what it is foretold to need, beside
//! what plain persistence says; and how many slabs are kept for it because of that.

use std::collections::BTreeMap;

use super::forecaster::{Forecaster, Method, Windows};
use super::reservation::{Policy, Reservation};

/// Memory in slabs, accelerators, network cards, storage in MiB.
pub const RESOURCES: usize = 4;
/// What of each a workload uses.
pub type Amounts = [f64; RESOURCES];
/// Where memory is among them.
const MEMORY: usize = 0;
/// Each resource from so many last samples of all of them; fewer where there are few samples.
const LAGS: usize = 6;
/// More workloads are not followed: those that begin later are foretold nothing.
const MOST_WORKLOADS: usize = 256;
/// How a reservation follows its forecast: one window of twenty may turn out short, as the last day
/// of windows of an hour has shown.
const POLICY: Policy = Policy { slab: 1.0, short: 0.05, remembered: 24, first_margin: 0.1 };

/// How a rack looks ahead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LookAhead {
    /// Time between two samples.
    pub sample_ns: u64,
    /// How far back and how far ahead, in samples.
    pub windows: Windows,
    /// The share of the memory that living nodes lend which may be kept for workloads beyond what
    /// they use, 0 to 1; 0: nothing is kept.
    pub share: f64,
}

impl Default for LookAhead {
    /// A sample every five minutes, a day back, an hour ahead; nothing is kept.
    fn default() -> Self {
        let windows = Windows { observation: 288, prediction: 12 };
        Self { sample_ns: 300_000_000_000, windows, share: 0.0 }
    }
}

/// A user's grants for one purpose.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    /// The user.
    pub user: String,
    /// What for.
    pub purpose: String,
}

/// How forecasts of memory have turned out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    /// Prediction windows that are over.
    pub windows: u64,
    /// Those whose peak was above the forecast by a slab or more.
    pub short: u64,
    /// By how much the peaks were off, in slabs, all together.
    pub off_slabs: f64,
}

impl Score {
    fn settle(&mut self, told: f64, came: f64) {
        self.windows += 1;
        self.short += u64::from(came - told >= 1.0);
        self.off_slabs += (came - told).abs();
    }
}

/// What is known of one workload.
#[derive(Debug, Clone)]
pub struct Outlook {
    /// What it had, or would have had, at the last sample.
    pub in_use: Amounts,
    /// The peaks foretold for the window that goes on; `None` before the first one.
    pub foretold: Option<Amounts>,
    /// The peaks of the window before it: what plain persistence says.
    pub persistence: Option<Amounts>,
    /// How the forecasts of memory turned out.
    pub score: Score,
    /// How persistence's did.
    pub persistence_score: Score,
    forecaster: Forecaster,
    persists: Forecaster,
    reservation: Reservation,
    /// The peaks of the window that goes on.
    peaks: Amounts,
    idle_samples: usize,
}

/// The workloads that are followed.
#[derive(Debug)]
pub struct Workloads {
    settings: LookAhead,
    next_sample_ns: u64,
    /// Samples of the window that goes on.
    in_window: usize,
    known: BTreeMap<Workload, Outlook>,
    /// The most memory that a workload would have had since the last sample, had there been room.
    wanted: BTreeMap<Workload, f64>,
}

impl Workloads {
    /// Nobody is known; the first sample is due after one interval.
    pub fn new(settings: LookAhead, now_ns: u64) -> Self {
        let next_sample_ns = now_ns.saturating_add(settings.sample_ns);
        let (known, wanted) = (BTreeMap::new(), BTreeMap::new());
        Self { settings, next_sample_ns, in_window: 0, known, wanted }
    }

    /// A workload would have so many slabs now, had there been room for them. Of one that has never had
    /// any nothing is learnt by that.
    pub fn handle_refused(&mut self, workload: Workload, slabs: u64) {
        if self.known.contains_key(&workload) {
            let wanted = self.wanted.entry(workload).or_default();
            *wanted = wanted.max(slabs as f64);
        }
    }

    /// Whether anything is ever kept.
    pub fn keeps(&self) -> bool {
        self.settings.share > 0.0
    }

    /// True when a sample is due.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_sample_ns
    }

    /// What every workload that has anything uses now; what it was refused since the last sample
    /// counts as if it had that. Those that have had nothing for a whole
    /// observation window are forgotten.
    pub fn handle_sample(&mut self, now_ns: u64, mut used: BTreeMap<Workload, Amounts>) {
        // Samples that nobody could take are none.
        self.next_sample_ns = now_ns.saturating_add(self.settings.sample_ns);
        let Windows { observation, prediction } = self.settings.windows;
        let begins = self.in_window == 0;
        self.in_window = (self.in_window + 1) % prediction;
        for (workload, wanted) in std::mem::take(&mut self.wanted) {
            let amounts = used.entry(workload).or_default();
            amounts[MEMORY] = amounts[MEMORY].max(wanted);
        }
        for (workload, outlook) in &mut self.known {
            outlook.take(used.remove(workload).unwrap_or_default(), begins);
        }
        self.known.retain(|_, outlook| outlook.idle_samples <= observation);
        for (workload, amounts) in used {
            if self.known.len() < MOST_WORKLOADS {
                let mut outlook = Outlook::new(self.settings.windows);
                outlook.take(amounts, begins);
                self.known.insert(workload, outlook);
            }
        }
    }

    /// Every workload, by user and purpose.
    pub fn iter(&self) -> impl Iterator<Item = (&Workload, &Outlook)> {
        self.known.iter()
    }

    /// Slabs kept for each workload beyond what it uses now, where living nodes lend `total_slabs`.
    ///
    /// What each is foretold to need is its due; where that is more than there is, those that need
    /// little have theirs before others have more: a greedy workload, however much it would have,
    /// leaves the small ones what they need. Of what lies between use and due no more is kept than
    /// the share, again the small ones first.
    pub fn kept(
        &self,
        total_slabs: u64,
        in_use: impl Fn(&Workload) -> u64,
    ) -> BTreeMap<&Workload, u64> {
        if !self.keeps() {
            return BTreeMap::new();
        }
        let most = (total_slabs as f64 * self.settings.share) as u64;
        let needed = self.known.iter();
        let needed = needed.map(|(workload, outlook)| (workload, outlook.reservation.slabs()));
        let due = shared_out(needed.collect(), total_slabs);
        let beyond =
            due.into_iter().map(|(workload, due)| (workload, due.saturating_sub(in_use(workload))));
        shared_out(beyond.filter(|(_, slabs)| *slabs > 0).collect(), most)
    }
}

/// So much for each, no more than it wants, and for nobody more while another has less than that.
pub(crate) fn shared_out(
    wanted: BTreeMap<&Workload, u64>,
    mut left: u64,
) -> BTreeMap<&Workload, u64> {
    let mut by_want: Vec<(u64, &Workload)> =
        wanted.into_iter().map(|(workload, slabs)| (slabs, workload)).collect();
    by_want.sort();
    let count = by_want.len();
    let mut shares = BTreeMap::new();
    for (at, (slabs, workload)) in by_want.into_iter().enumerate() {
        let share = slabs.min(left / (count - at) as u64);
        left -= share;
        shares.insert(workload, share);
    }
    shares
}

impl Outlook {
    fn new(windows: Windows) -> Self {
        let forecaster =
            |method| Forecaster::new(RESOURCES, windows, method).expect("the windows are checked");
        Self {
            in_use: Amounts::default(),
            foretold: None,
            persistence: None,
            score: Score::default(),
            persistence_score: Score::default(),
            forecaster: forecaster(Method::Var { lags: LAGS }),
            persists: forecaster(Method::LastPeak),
            reservation: Reservation::new(POLICY).expect("the policy makes sense"),
            peaks: Amounts::default(),
            idle_samples: 0,
        }
    }

    /// Slabs that it is foretold to need at most, with the margin that past errors have taught; no
    /// less than it uses.
    pub fn reserved_slabs(&self) -> u64 {
        self.reservation.slabs()
    }

    fn take(&mut self, amounts: Amounts, begins: bool) {
        let is_idle = amounts.iter().all(|amount| *amount == 0.0);
        self.idle_samples = if is_idle { self.idle_samples + 1 } else { 0 };
        if begins {
            self.begin_window();
        }
        self.in_use = amounts;
        for (peak, amount) in self.peaks.iter_mut().zip(amounts) {
            *peak = peak.max(amount);
        }
        self.forecaster.observe(&amounts).expect("it is of as many resources, and no nonsense");
        self.persists.observe(&amounts).expect("it is of as many resources, and no nonsense");
        self.reservation.handle_use(amounts[MEMORY]).expect("it is an amount");
    }

    /// What the last window was, and what the next is foretold to be.
    fn begin_window(&mut self) {
        let peaks = std::mem::take(&mut self.peaks);
        if let (Some(foretold), Some(persistence)) = (&self.foretold, &self.persistence) {
            self.score.settle(foretold[MEMORY], peaks[MEMORY]);
            self.persistence_score.settle(persistence[MEMORY], peaks[MEMORY]);
        }
        let amounts = |peaks: Vec<f64>| Amounts::try_from(peaks).expect("as many resources");
        self.foretold = self.forecaster.peaks().map(amounts);
        self.persistence = self.persists.peaks().map(amounts);
        if let Some(foretold) = &self.foretold {
            self.reservation.handle_forecast(foretold[MEMORY]).expect("forecasts are amounts");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(user: &str) -> Workload {
        Workload { user: user.into(), purpose: "p".into() }
    }

    fn settings(share: f64) -> LookAhead {
        LookAhead { sample_ns: 10, windows: Windows { observation: 48, prediction: 4 }, share }
    }

    /// `ada` uses what `used` says, sample by sample.
    fn after(share: f64, samples: u64, used: impl Fn(u64) -> f64) -> Workloads {
        let mut workloads = Workloads::new(settings(share), 0);
        for sample in 0..samples {
            let now_ns = (sample + 1) * 10;
            assert!(workloads.is_due(now_ns) && !workloads.is_due(now_ns - 1));
            let amounts = [used(sample), 0.0, 1.0, 0.0];
            workloads.handle_sample(now_ns, [(workload("ada"), amounts)].into());
        }
        workloads
    }

    #[test]
    fn a_wave_is_foretold_better_than_persistence_does() {
        let wave = |at: u64| 20.0 + 10.0 * (at as f64 * std::f64::consts::TAU / 24.0).sin();
        let workloads = after(0.0, 200, wave);
        let (_, outlook) = workloads.iter().next().unwrap();
        assert!(outlook.score.windows > 40);
        let ours = outlook.score.off_slabs;
        assert!(ours * 2.0 < outlook.persistence_score.off_slabs, "{outlook:?}");
        assert_eq!(outlook.foretold.unwrap()[2], 1.0, "one network card throughout");
    }

    #[test]
    fn what_is_kept_is_bounded_and_nothing_without_a_share() {
        let high_then_low = |at: u64| if at % 8 < 4 { 40.0 } else { 4.0 };
        let kept = |share| {
            let workloads = after(share, 140, high_then_low);
            let kept = workloads.kept(100, |_| 4);
            kept.values().sum::<u64>()
        };
        assert_eq!(kept(0.0), 0);
        assert_eq!(kept(0.2), 20);
        assert!((30..=60).contains(&kept(1.0)), "{}", kept(1.0));
    }

    #[test]
    fn who_wants_little_has_it_before_others_have_more() {
        let [a, b, c] = ["a", "b", "c"].map(workload);
        let shared = |left| {
            let shares = shared_out([(&a, 4), (&b, 90), (&c, 7)].into(), left);
            [&a, &b, &c].map(|workload| shares[workload])
        };
        assert_eq!(shared(200), [4, 90, 7]);
        assert_eq!(shared(60), [4, 49, 7]);
        assert_eq!(shared(15), [4, 6, 5]);
        assert_eq!(shared(0), [0, 0, 0]);
    }

    #[test]
    fn who_is_gone_for_long_is_forgotten() {
        let mut workloads = after(1.0, 10, |_| 5.0);
        for sample in 11..70 {
            workloads.handle_sample(sample * 10, BTreeMap::new());
        }
        assert_eq!(workloads.iter().count(), 0);
        let many = (0..2 * MOST_WORKLOADS).map(|n| (workload(&n.to_string()), [1.0; RESOURCES]));
        workloads.handle_sample(1000, many.collect());
        assert_eq!(workloads.iter().count(), MOST_WORKLOADS);
    }
}
