//! Slabs reserved in advance along a trace: a rack's decisions, without knowledge of the future.

use anyhow::Result;
use venice_rack::forecast::{Change, ForecastError, Policy, Reservation};

use super::ForecastArgs;
use super::report::AheadReport;
use super::walk::ResourceForecast;
use venice_cli::failure::usage;

/// Margin until one is learnt: half as much again.
const FIRST_MARGIN: f64 = 0.5;

/// Checks that the arguments allow reservations.
///
/// # Errors
/// When they do not.
pub(super) fn check(args: &ForecastArgs) -> Result<()> {
    Reservation::new(policy(args, 1.0)).map_err(refused)?;
    if args.short >= 1.0 {
        return Err(usage(
            "--short 1: expected less than 1: with every window short, nothing is reserved",
        ));
    }
    Ok(())
}

/// Builds the policy for slabs of a resource whose first observation window has this peak.
pub(super) fn policy(args: &ForecastArgs, peak: f64) -> Policy {
    Policy {
        // A resource without use so far takes any slab size.
        slab: if peak > 0.0 { peak * args.slab } else { 1.0 },
        short: args.short,
        remembered: args.remembered,
        first_margin: FIRST_MARGIN,
    }
}

/// Runs the reservations along the windows.
///
/// # Errors
/// When a reservation refuses a forecast or a sample.
pub(super) fn ahead(windows: &[ResourceForecast<'_>], policy: Policy) -> Result<AheadReport> {
    let mut reservation = Reservation::new(policy).map_err(refused)?;
    let (mut late_windows, mut moved, mut held) = (0u64, 0u64, 0u64);
    let (mut used, mut over) = (0.0, 0.0);
    for (at, window) in windows.iter().enumerate() {
        let begun = reservation.handle_forecast(window.forecast).map_err(refused)?;
        // The first reservation counts no move.
        moved += if at == 0 { 0 } else { slabs(begun) };
        held += reservation.slabs();
        let mut is_late = false;
        for came in window.came {
            let change = reservation.handle_use(*came).map_err(refused)?;
            is_late |= change != Change::None;
            moved += slabs(change);
            used += came;
            over += reservation.slabs() as f64 * policy.slab - came;
        }
        late_windows += u64::from(is_late);
    }
    let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
    Ok(AheadReport {
        late_windows: share(late_windows as f64, windows.len() as f64),
        over: share(over, used),
        moved: share(moved as f64, held as f64),
    })
}

fn slabs(change: Change) -> u64 {
    match change {
        Change::None => 0,
        Change::Reserve(slabs) | Change::Release(slabs) => slabs,
    }
}

fn refused(error: ForecastError) -> anyhow::Error {
    usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_unused_and_moved_slabs_are_counted() {
        let policy = Policy { slab: 10.0, short: 0.0, remembered: 9, first_margin: 0.0 };
        let window = |forecast, came| ResourceForecast { forecast, came };
        let windows = [
            window(100.0, &[100.0, 90.0][..]),
            window(100.0, &[50.0, 120.0]),
            window(50.0, &[60.0, 60.0]),
        ];
        let report = ahead(&windows, policy).unwrap();
        // The third forecast times 1.2 is lower, but slabs in use are not released: 120 stays.
        assert!((report.late_windows - 1.0 / 3.0).abs() < 1e-12, "{report:?}");
        let over = (0.0 + 10.0) + (50.0 + 0.0) + (60.0 + 60.0);
        assert!((report.over - over / 480.0).abs() < 1e-12, "{report:?}");
        assert!((report.moved - 2.0 / 32.0).abs() < 1e-12, "{report:?}");
        let idle = ahead(&[window(0.0, &[0.0])], policy).unwrap();
        assert_eq!((idle.late_windows, idle.over, idle.moved), (0.0, 0.0, 0.0));
    }
}
