//! The workloads of a rack: the use of each, sample by sample; its forecast need, beside the
//! persistence forecast; and the slabs reserved for it.

use std::collections::BTreeMap;

use crate::kind::ResourceKind;

use super::forecaster::{Forecaster, Method, Windows};
use super::reservation::{Policy, Reservation};

/// The kinds of resources that are forecast.
pub const FORECAST_KINDS: [ResourceKind; RESOURCES] = ResourceKind::GRANTED;
/// The number of these kinds.
const RESOURCES: usize = ResourceKind::GRANTED.len();
/// A workload's use of each kind, in its units: slabs, MiB, devices.
pub type Amounts = [f64; RESOURCES];
/// The index of memory.
const MEMORY: usize = 0;
const _: () = assert!(matches!(FORECAST_KINDS[MEMORY], ResourceKind::Memory));
/// Lags of the VAR forecast; fewer where there are few samples.
const LAGS: usize = 6;
/// Most workloads followed; later ones get no forecast.
const MOST_WORKLOADS: usize = 256;
/// The reservation policy: one window of twenty may fall short, judged by the last day of windows
/// of an hour.
const POLICY: Policy = Policy { slab: 1.0, short: 0.05, remembered: 24, first_margin: 0.1 };

/// Settings of the forecasts of a rack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForecastSettings {
    /// Time between two samples, in nanoseconds.
    pub sample_ns: u64,
    /// Lengths of the windows, in samples.
    pub windows: Windows,
    /// The share of the memory of living nodes that may be reserved for workloads beyond their use,
    /// 0 to 1; 0: nothing is reserved.
    pub share: f64,
}

impl Default for ForecastSettings {
    /// A sample every five minutes, a day back, an hour ahead; nothing is reserved.
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
    /// The purpose.
    pub purpose: String,
}

/// The accuracy of forecasts of memory.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    /// Prediction windows that are over.
    pub windows: u64,
    /// Windows whose peak exceeded the forecast by a slab or more.
    pub short: u64,
    /// The sum of the forecast errors, in slabs.
    pub off_slabs: f64,
}

impl Score {
    fn record(&mut self, forecast: f64, came: f64) {
        self.windows += 1;
        self.short += u64::from(came - forecast >= 1.0);
        self.off_slabs += (came - forecast).abs();
    }
}

/// The forecast of one workload.
#[derive(Debug, Clone)]
pub struct WorkloadForecast {
    /// Its use at the last sample, including refused requests.
    pub in_use: Amounts,
    /// The forecast peaks of the current window; `None` before the first one.
    pub forecast: Option<Amounts>,
    /// The peaks of the window before: the persistence forecast.
    pub persistence: Option<Amounts>,
    /// The accuracy of the forecasts of memory.
    pub score: Score,
    /// The accuracy of the persistence forecasts.
    pub persistence_score: Score,
    forecaster: Forecaster,
    persistence_forecaster: Forecaster,
    reservation: Reservation,
    /// The peaks of the current window so far.
    peaks: Amounts,
    idle_samples: usize,
}

/// The workloads that are followed.
#[derive(Debug)]
pub struct Workloads {
    settings: ForecastSettings,
    next_sample_ns: u64,
    /// Samples of the current window.
    in_window: usize,
    known: BTreeMap<Workload, WorkloadForecast>,
    /// The most memory a workload would have had since the last sample, had there been room.
    wanted: BTreeMap<Workload, f64>,
}

impl Workloads {
    /// Creates an empty set; the first sample is due after one interval.
    pub fn new(settings: ForecastSettings, now_ns: u64) -> Self {
        let next_sample_ns = now_ns.saturating_add(settings.sample_ns);
        let (known, wanted) = (BTreeMap::new(), BTreeMap::new());
        Self { settings, next_sample_ns, in_window: 0, known, wanted }
    }

    /// Records that a workload would have this many slabs now, had there been room. Ignored for a
    /// workload that was never granted anything.
    pub fn handle_refused(&mut self, workload: Workload, slabs: u64) {
        if self.known.contains_key(&workload) {
            let wanted = self.wanted.entry(workload).or_default();
            *wanted = wanted.max(slabs as f64);
        }
    }

    /// True if slabs may be reserved.
    pub fn keeps(&self) -> bool {
        self.settings.share > 0.0
    }

    /// True when a sample is due.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_sample_ns
    }

    /// Takes the present use of every workload with grants; a refused request since the last sample
    /// counts as granted. Workloads without use for a whole observation window are forgotten.
    pub fn handle_sample(&mut self, now_ns: u64, mut used: BTreeMap<Workload, Amounts>) {
        // Missed samples are skipped.
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
                let mut outlook = WorkloadForecast::new(self.settings.windows);
                outlook.take(amounts, begins);
                self.known.insert(workload, outlook);
            }
        }
    }

    /// Iterates over all workloads, by user and purpose.
    pub fn iter(&self) -> impl Iterator<Item = (&Workload, &WorkloadForecast)> {
        self.known.iter()
    }

    /// Returns the slabs reserved for each workload beyond its present use, where living nodes lend
    /// `total_slabs`.
    ///
    /// Each workload's forecast need is its due. If the dues exceed the total, small ones are met
    /// before large ones get more: a greedy workload leaves the small ones what they need. Between
    /// use and due no more than the share is reserved, again small ones first.
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

/// Shares `left` out: no one gets more than it wants, nor more while another has less and wants it.
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

impl WorkloadForecast {
    fn new(windows: Windows) -> Self {
        let forecaster =
            |method| Forecaster::new(RESOURCES, windows, method).expect("the windows are checked");
        Self {
            in_use: Amounts::default(),
            forecast: None,
            persistence: None,
            score: Score::default(),
            persistence_score: Score::default(),
            forecaster: forecaster(Method::Var { lags: LAGS }),
            persistence_forecaster: forecaster(Method::LastPeak),
            reservation: Reservation::new(POLICY).expect("the policy is valid"),
            peaks: Amounts::default(),
            idle_samples: 0,
        }
    }

    /// Returns the most slabs of its forecast need, with the margin learnt from past errors; no
    /// less than its use.
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
        self.forecaster.observe(&amounts).expect("the sample has valid amounts of all resources");
        self.persistence_forecaster
            .observe(&amounts)
            .expect("the sample has valid amounts of all resources");
        self.reservation.handle_use(amounts[MEMORY]).expect("it is an amount");
    }

    /// Scores the last window and forecasts the next.
    fn begin_window(&mut self) {
        let peaks = std::mem::take(&mut self.peaks);
        if let (Some(forecast), Some(persistence)) = (&self.forecast, &self.persistence) {
            self.score.record(forecast[MEMORY], peaks[MEMORY]);
            self.persistence_score.record(persistence[MEMORY], peaks[MEMORY]);
        }
        let amounts = |peaks: Vec<f64>| Amounts::try_from(peaks).expect("as many resources");
        self.forecast = self.forecaster.peaks().map(amounts);
        self.persistence = self.persistence_forecaster.peaks().map(amounts);
        if let Some(forecast) = &self.forecast {
            self.reservation.handle_forecast(forecast[MEMORY]).expect("forecasts are amounts");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(user: &str) -> Workload {
        Workload { user: user.into(), purpose: "p".into() }
    }

    fn settings(share: f64) -> ForecastSettings {
        ForecastSettings {
            sample_ns: 10,
            windows: Windows { observation: 48, prediction: 4 },
            share,
        }
    }

    /// Index of network cards among the forecast kinds.
    const NIC: usize = 2;

    /// Feeds the use of `ada`, sample by sample.
    fn after(share: f64, samples: u64, used: impl Fn(u64) -> f64) -> Workloads {
        let mut workloads = Workloads::new(settings(share), 0);
        for sample in 0..samples {
            let now_ns = (sample + 1) * 10;
            assert!(workloads.is_due(now_ns) && !workloads.is_due(now_ns - 1));
            let mut amounts = [0.0; RESOURCES];
            amounts[MEMORY] = used(sample);
            amounts[NIC] = 1.0;
            workloads.handle_sample(now_ns, [(workload("ada"), amounts)].into());
        }
        workloads
    }

    #[test]
    fn wave_forecast_beats_persistence() {
        let wave = |at: u64| 20.0 + 10.0 * (at as f64 * std::f64::consts::TAU / 24.0).sin();
        let workloads = after(0.0, 200, wave);
        let (_, outlook) = workloads.iter().next().unwrap();
        assert!(outlook.score.windows > 40);
        let ours = outlook.score.off_slabs;
        assert!(ours * 2.0 < outlook.persistence_score.off_slabs, "{outlook:?}");
        assert_eq!(outlook.forecast.unwrap()[NIC], 1.0, "one network card throughout");
    }

    #[test]
    fn reservations_stay_below_share() {
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
    fn small_wants_are_met_first() {
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
    fn idle_workloads_are_forgotten() {
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
