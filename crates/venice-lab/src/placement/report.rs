//! Report types of `venice bench placement`.

use serde::{Deserialize, Serialize};
use venice_rack::placement::Policy;

/// Aim of the median cost above the optimum, as a share.
pub const AIM: f64 = 0.05;

/// The report that `venice bench placement --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementReport {
    /// The first seed.
    pub seed: u64,
    /// Requested racks of each size.
    pub seeds: u64,
    /// Racks evaluated, of all sizes.
    pub racks: u64,
    /// True if an interrupt ended the run early.
    pub interrupted: bool,
    /// Aim of the median cost above the optimum: 0.05 is 5 %.
    pub aim: f64,
    /// By policy, then by size, all sizes together first.
    pub rows: Vec<PolicyReport>,
}

/// One policy on racks of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The policy.
    pub policy: Policy,
    /// Nodes of the racks; `None`: all sizes.
    pub nodes: Option<usize>,
    /// Racks on which all requests found room.
    pub racks: usize,
    /// Racks on which a request found no room.
    pub refused: usize,
    /// Median cost above the optimum, as a share of it. `None` without racks, here and below.
    pub median_above: Option<f64>,
    /// 90th percentile.
    pub p90_above: Option<f64>,
    /// The worst rack.
    pub max_above: Option<f64>,
    /// Share of the racks within the aim.
    pub within_aim: Option<f64>,
    /// The same for every twentieth of the racks, from the best rack to the worst.
    pub above_by_twentieths: Vec<f64>,
}

impl PolicyReport {
    /// Builds the report from costs above the optimum, rack by rack.
    pub(super) fn of(
        policy: Policy,
        nodes: Option<usize>,
        mut above: Vec<f64>,
        refused: usize,
    ) -> Self {
        above.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (above.len() as f64 * share).ceil().max(1.0) as usize;
            above.get(rank - 1).copied()
        };
        let within = above.iter().filter(|it| **it <= AIM).count();
        Self {
            policy,
            nodes,
            racks: above.len(),
            refused,
            median_above: at(0.5),
            p90_above: at(0.9),
            max_above: at(1.0),
            within_aim: (!above.is_empty()).then(|| within as f64 / above.len() as f64),
            above_by_twentieths: (0..=20).filter_map(|part| at(f64::from(part) / 20.0)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_racks() {
        let above: Vec<f64> = (0..10).rev().map(|it| f64::from(it) / 100.0).collect();
        let report = PolicyReport::of(Policy::Nearest, Some(4), above, 2);
        assert_eq!(report.median_above, Some(0.04));
        assert_eq!((report.p90_above, report.max_above), (Some(0.08), Some(0.09)));
        assert_eq!(report.within_aim, Some(0.6));
        assert_eq!(report.above_by_twentieths.len(), 21);
        assert_eq!(PolicyReport::of(Policy::Pack, None, Vec::new(), 0).median_above, None);
    }
}
