//! Slabs reserved before they are needed, and released where the forecast was too high.

use std::collections::VecDeque;

use super::forecaster::{ForecastError, LARGEST_SAMPLE};

/// Most windows that may be remembered.
const MOST_REMEMBERED: usize = 100_000;
/// More slabs than any rack has; larger forecasts are clipped to this.
const MOST_SLABS: f64 = 1e12;

/// The policy by which reservations follow forecasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// The size of one slab, in the resource's unit.
    pub slab: f64,
    /// The share of prediction windows that may fall short, of 1.
    pub short: f64,
    /// Prediction windows whose errors are remembered: the margin is learnt from them.
    pub remembered: usize,
    /// The margin while no window is remembered, as a share of the forecast.
    pub first_margin: f64,
}

/// A change of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// No change.
    None,
    /// Reserve this many more slabs.
    Reserve(u64),
    /// Release this many slabs.
    Release(u64),
}

/// The slabs of one resource that are reserved for one workload.
///
/// A prediction window begins with [`Reservation::handle_forecast`]; the use during it goes into
/// [`Reservation::handle_use`]. Slabs in use are never released. Use beyond the reservation is
/// reserved at once: late, which the forecast is there to avoid.
#[derive(Debug, Clone)]
pub struct Reservation {
    policy: Policy,
    slabs: u64,
    in_use: f64,
    /// The forecast of this window, and the most used in it so far, if any sample came.
    window: Option<(f64, Option<f64>)>,
    /// Peak over forecast of past windows, oldest first.
    factors: VecDeque<f64>,
}

impl Reservation {
    /// Creates an empty reservation.
    ///
    /// # Errors
    /// [`ForecastError`] if a parameter of the policy is out of range.
    pub fn new(policy: Policy) -> Result<Self, ForecastError> {
        let bound = |what, value: f64, allowed: bool| {
            if allowed { Ok(()) } else { Err(ForecastError::Policy { what, value }) }
        };
        let Policy { slab, short, remembered, first_margin } = policy;
        bound("the size of a slab", slab, slab > 0.0 && slab <= LARGEST_SAMPLE)?;
        bound("the share of short windows", short, (0.0..1.0).contains(&short))?;
        bound("the first margin", first_margin, (0.0..=1e6).contains(&first_margin))?;
        if !(1..=MOST_REMEMBERED).contains(&remembered) {
            let what = "the number of remembered windows";
            return Err(ForecastError::OutOfBounds {
                what,
                value: remembered,
                most: MOST_REMEMBERED,
            });
        }
        Ok(Self { policy, slabs: 0, in_use: 0.0, window: None, factors: VecDeque::new() })
    }

    /// Returns the slabs reserved now.
    #[must_use]
    pub fn slabs(&self) -> u64 {
        self.slabs
    }

    /// Begins a prediction window with the forecast `peak`. Learns from the last window and returns
    /// the change for this one.
    ///
    /// # Errors
    /// [`ForecastError::Sample`] if the forecast is out of range. Nothing changes then.
    pub fn handle_forecast(&mut self, peak: f64) -> Result<Change, ForecastError> {
        amount(peak)?;
        if let Some((forecast, Some(came))) = self.window.replace((peak, None)) {
            self.learn(forecast, came);
        }
        let wanted = self.slabs_for((peak * (1.0 + self.margin())).max(self.in_use));
        Ok(self.change_to(wanted))
    }

    /// Takes the present use. Slabs beyond the reservation are reserved late.
    ///
    /// # Errors
    /// [`ForecastError::Sample`] if the amount is out of range. Nothing changes then.
    pub fn handle_use(&mut self, amount_used: f64) -> Result<Change, ForecastError> {
        amount(amount_used)?;
        self.in_use = amount_used;
        if let Some((_, most)) = &mut self.window {
            *most = Some(most.map_or(amount_used, |most| most.max(amount_used)));
        }
        let needed = self.slabs_for(amount_used);
        Ok(if needed > self.slabs { self.change_to(needed) } else { Change::None })
    }

    /// Returns the margin on top of a forecast, as a share of it; below 0 where forecasts were too
    /// high.
    #[must_use]
    pub fn margin(&self) -> f64 {
        let mut factors: Vec<f64> = self.factors.iter().copied().collect();
        factors.sort_unstable_by(|a, b| b.total_cmp(a));
        let may_be_short = (self.policy.short * factors.len() as f64) as usize;
        factors.get(may_be_short).map_or(self.policy.first_margin, |factor| factor - 1.0)
    }

    fn learn(&mut self, forecast: f64, came: f64) {
        // No factor turns a forecast of 0 into anything: such a window is not learnt from.
        if forecast <= 0.0 {
            return;
        }
        if self.factors.len() == self.policy.remembered {
            self.factors.pop_front();
        }
        self.factors.push_back(came / forecast);
    }

    fn slabs_for(&self, wanted: f64) -> u64 {
        (wanted / self.policy.slab).ceil().min(MOST_SLABS) as u64
    }

    fn change_to(&mut self, slabs: u64) -> Change {
        let before = std::mem::replace(&mut self.slabs, slabs);
        match (slabs.checked_sub(before), before.checked_sub(slabs)) {
            (Some(0), _) => Change::None,
            (Some(more), _) => Change::Reserve(more),
            (None, less) => Change::Release(less.expect("one of them is the larger")),
        }
    }
}

fn amount(value: f64) -> Result<(), ForecastError> {
    // Forecasts may exceed all samples by as much again.
    let is_one = (0.0..=2.0 * LARGEST_SAMPLE).contains(&value);
    if is_one { Ok(()) } else { Err(ForecastError::Sample { value }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Policy = Policy { slab: 16.0, short: 0.0, remembered: 3, first_margin: 0.5 };

    #[test]
    fn reservation_follows_forecast() {
        let mut reservation = Reservation::new(POLICY).unwrap();
        assert_eq!(reservation.handle_forecast(100.0), Ok(Change::Reserve(10)), "150 of 16");
        assert_eq!(reservation.handle_use(100.0), Ok(Change::None));
        // The forecast was exact: the margin is gone.
        assert_eq!(reservation.handle_forecast(100.0), Ok(Change::Release(3)));
        assert_eq!(reservation.handle_use(113.0), Ok(Change::Reserve(1)), "late");
        // The forecast was 13 % too low.
        assert!((reservation.margin() - 0.0).abs() < 1e-12);
        assert_eq!(reservation.handle_forecast(120.0), Ok(Change::Reserve(1)), "135.6 of 16");
        assert!((reservation.margin() - 0.13).abs() < 1e-12);
        // Slabs in use stay, whatever the forecast.
        assert_eq!(reservation.handle_forecast(1.0), Ok(Change::Release(1)));
        assert_eq!(reservation.slabs(), 8);
        assert_eq!(reservation.handle_use(0.0), Ok(Change::None), "a pause is not the end");
        assert_eq!(reservation.handle_forecast(0.0), Ok(Change::Release(8)));
    }

    #[test]
    fn old_errors_are_forgotten() {
        let mut reservation = Reservation::new(POLICY).unwrap();
        for used in [300.0, 100.0, 100.0, 100.0] {
            reservation.handle_forecast(100.0).unwrap();
            reservation.handle_use(used).unwrap();
        }
        assert_eq!(reservation.margin(), 2.0);
        reservation.handle_forecast(100.0).unwrap();
        assert_eq!(reservation.margin(), 0.0);
    }

    #[test]
    fn zero_forecast_is_not_learnt() {
        let mut reservation = Reservation::new(POLICY).unwrap();
        reservation.handle_forecast(0.0).unwrap();
        assert_eq!(reservation.handle_use(5.0), Ok(Change::Reserve(1)));
        reservation.handle_forecast(5.0).unwrap();
        assert_eq!(reservation.margin(), 0.5);
    }

    #[test]
    fn invalid_input_is_refused() {
        for wrong in [
            Policy { slab: 0.0, ..POLICY },
            Policy { slab: f64::NAN, ..POLICY },
            Policy { short: 1.0, ..POLICY },
            Policy { remembered: 0, ..POLICY },
            Policy { first_margin: -1.0, ..POLICY },
        ] {
            Reservation::new(wrong).unwrap_err();
        }
        let mut reservation = Reservation::new(POLICY).unwrap();
        for value in [-1.0, f64::NAN, f64::INFINITY] {
            reservation.handle_forecast(value).unwrap_err();
            reservation.handle_use(value).unwrap_err();
        }
        assert_eq!(reservation.slabs(), 0);
    }

    proptest! {
        #[test]
        fn use_is_reserved_and_changes_add_up(
            steps in prop::collection::vec((any::<bool>(), 0.0..1e4), 1..200), short in 0.0..0.9,
        ) {
            let mut reservation = Reservation::new(Policy { short, ..POLICY }).unwrap();
            let (mut slabs, mut used) = (0, 0.0f64);
            for (is_forecast, value) in steps {
                let change = if is_forecast {
                    reservation.handle_forecast(value).unwrap()
                } else {
                    used = value;
                    let change = reservation.handle_use(value).unwrap();
                    prop_assert!(!matches!(change, Change::Release(_)), "in the middle of a window");
                    change
                };
                match change {
                    Change::None => {}
                    Change::Reserve(more) => slabs += more,
                    Change::Release(less) => slabs -= less,
                }
                prop_assert_eq!(slabs, reservation.slabs());
                prop_assert!(slabs as f64 * POLICY.slab >= used);
            }
        }
    }
}
