//! `venice bench placement`: the Monitor Node's placement compared with the optimum, on small
//! racks.
//!
//! A seed draws a rack and some requests ([`case`]). Each policy of `venice-rack` places them one
//! after the other, as they come, and moves none again; the optimum ([`optimum`]) has them all in
//! advance.

mod case;
mod optimum;
mod report;
mod tables;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;
use venice_rack::placement::Policy;

pub use report::{AIM, PlacementReport, PolicyReport};

use crate::page::Page;
use case::Case;
use venice_cli::failure::usage;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::progress::Phase;

/// Largest rack: in larger ones the optimum takes too long.
const MAX_NODES: i64 = 64;

/// Arguments of `venice bench placement`.
#[derive(Debug, Clone, Args)]
pub struct PlacementArgs {
    /// Racks of each size.
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub seeds: u64,

    /// First seed: the same seeds draw the same racks.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,

    /// Sizes of the racks, in nodes.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [3, 4, 5, 6, 7, 8],
          value_parser = clap::value_parser!(u32).range(2..=MAX_NODES))]
    pub nodes: Vec<u32>,

    /// Output arguments.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Results of every rack: costs above the optimum, and the number of racks without room.
type Outcomes = BTreeMap<(usize, usize), (Vec<f64>, usize)>;

/// Places, prints the table, writes JSON, plots and page.
///
/// # Errors
/// On an invalid command line, when a file cannot be written, and on an interrupt, after the
/// figures so far are printed.
pub fn execute(args: PlacementArgs) -> Result<()> {
    interrupt::catch_signals()?;
    let mut sizes: Vec<usize> = args.nodes.iter().map(|nodes| *nodes as usize).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if args.seed.checked_add(args.seeds).is_none() {
        return Err(usage("--seed plus --seeds exceeds the largest seed"));
    }
    let report = measure(&args, &sizes);
    if let Some(folder) = &args.output.plots {
        let plots = tables::plots(&report)?;
        let page = Page {
            title: tables::TITLE,
            header: tables::header(&report),
            legend: tables::LEGEND,
            plots: &plots,
            tables: vec![tables::table(&report)],
            closing: Vec::new(),
        };
        page.publish(folder)?;
    }
    venice_measure::report::publish(&tables::text(&report), args.output.json.as_deref(), &report)?;
    let wanted = args.seeds * sizes.len() as u64;
    if report.interrupted {
        bail!(
            "interrupted after {} of {wanted} racks: the figures are those of these",
            report.racks
        );
    }
    Ok(())
}

/// Takes the sizes in turns, so that an interrupted run has figures of each.
fn measure(args: &PlacementArgs, sizes: &[usize]) -> PlacementReport {
    let phase = Phase::new("placing", args.seeds * sizes.len() as u64);
    let mut outcomes = Outcomes::new();
    let racks = (args.seed..args.seed + args.seeds)
        .flat_map(|seed| sizes.iter().map(move |nodes| (seed, *nodes)));
    let (mut placed, mut interrupted) = (0, false);
    for (seed, nodes) in racks {
        interrupted = interrupt::check().is_err();
        if interrupted {
            break;
        }
        try_out(&Case::draw(seed, nodes), nodes, &mut outcomes);
        placed += 1;
        phase.advance(1);
    }
    let (seed, seeds, racks) = (args.seed, args.seeds, placed);
    PlacementReport { seed, seeds, racks, interrupted, aim: AIM, rows: rows(sizes, &outcomes) }
}

/// Places by every policy, beside the optimum.
///
/// # Panics
/// If a placement costs less than the optimum, which would be a bug of the solver.
fn try_out(case: &Case, nodes: usize, outcomes: &mut Outcomes) {
    let least = optimum::least_cost(case);
    for (at, policy) in Policy::ALL.into_iter().enumerate() {
        let (above, refused) = outcomes.entry((at, nodes)).or_default();
        let Some(placed) = case.one_by_one(policy) else {
            *refused += 1;
            continue;
        };
        let cost = case.cost(&placed);
        assert!(cost >= least, "the optimum {least} is above {cost}: {case:?}");
        above.push((cost - least) as f64 / least.max(1) as f64);
    }
}

fn rows(sizes: &[usize], outcomes: &Outcomes) -> Vec<PolicyReport> {
    let mut rows = Vec::new();
    for (at, policy) in Policy::ALL.into_iter().enumerate() {
        let its = |nodes: usize| outcomes.get(&(at, nodes)).cloned().unwrap_or_default();
        let all: Vec<(Vec<f64>, usize)> = sizes.iter().map(|nodes| its(*nodes)).collect();
        let above = all.iter().flat_map(|(above, _)| above.iter().copied()).collect();
        let refused = all.iter().map(|(_, refused)| refused).sum();
        rows.push(PolicyReport::of(policy, None, above, refused));
        for (nodes, (above, refused)) in sizes.iter().zip(all) {
            rows.push(PolicyReport::of(policy, Some(*nodes), above, refused));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(seeds: u64) -> PlacementArgs {
        let output = OutputArgs::default();
        PlacementArgs { seeds, seed: 0, nodes: vec![3, 4, 5, 6, 7, 8], output }
    }

    #[test]
    fn online_placement_is_near_the_optimum() {
        let report = measure(&asked(10), &[3, 4, 5, 6, 7, 8]);
        let nearest = &report.rows[0];
        assert_eq!((nearest.policy, nearest.nodes), (Policy::Nearest, None));
        assert_eq!((report.racks, nearest.racks + nearest.refused), (60, 60));
        assert!(nearest.racks > 54, "few are refused: {nearest:?}");
        assert!(nearest.median_above.unwrap() <= AIM, "{nearest:?}");
        assert!(!report.interrupted);
    }

    #[test]
    fn seed_determines_the_result() {
        let sizes = [3, 4, 5, 6, 7, 8];
        assert_eq!(measure(&asked(3), &sizes), measure(&asked(3), &sizes));
        let later = PlacementArgs { seed: 3, ..asked(3) };
        assert_ne!(measure(&later, &sizes).rows, measure(&asked(3), &sizes).rows);
    }
}
