//! `venice paper 3` and `venice paper 15`: the Venice paper's figures about remote memory, run
//! here.
//!
//! The papers show their bars only as pictures; statements of their text server beside the figures
//! measured here.

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use venice_wire::ByteSize;

use super::application::Application;
use super::closing::Pictured;
use super::mode::Mode;
use super::report::{Cell, MemoryReport};
use super::tables::{self, times};
use super::{CommonArgs, MemoryArgs, SizeArgs, measure};
use crate::plot::{BarChart, BarSeries, Plot, Unit};
use crate::report_table::ReportTable;

/// Local share of Figure 3: 4 GB of local memory for an array of 6 GB.
const FIGURE_3_SHARE: f64 = 4.0 / 6.0;
/// Local share of Figure 15.
const FIGURE_15_SHARE: f64 = 0.25;

/// One figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Figure {
    /// Random access to remote memory over commodity interconnects.
    Three,
    /// Remote memory directly and as swap space.
    Fifteen,
}

/// Arguments of `venice paper 3`.
#[derive(Debug, Clone, Args)]
pub struct Figure3Args {
    /// Arguments shared with `venice bench memory`.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Arguments of `venice paper 15`.
#[derive(Debug, Clone, Args)]
pub struct Figure15Args {
    /// Arguments shared with `venice bench memory`.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Application sizes.
    #[command(flatten)]
    pub sizes: SizeArgs,

    /// Only these applications [default: all but grep-file, which runs on swap only].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "APP,...")]
    pub only: Vec<Application>,
}

/// The report that is written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigureReport {
    /// The figure.
    pub figure: Figure,
    /// Statements of the paper's text.
    pub paper: Vec<String>,
    /// Direct access beside swap, case by case; Figure 15 only.
    pub contest: Vec<Contest>,
    /// All measured figures.
    pub memory: MemoryReport,
}

/// Direct access and swap to the same donors, with a quarter of the memory local.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contest {
    /// Application with its parameters.
    pub case: String,
    /// Slowdown of loads and stores to the mapped window, against all-local; `None` if it did not
    /// end, as in the fields below.
    pub direct_slowdown: Option<f64>,
    /// Slowdown of kernel swap to the donors, against all-local.
    pub swap_slowdown: Option<f64>,
    /// Slowdown of paging by Venice's own pager, where it was measured.
    pub paged_slowdown: Option<f64>,
    /// Slowdown of swap to the local disk, where it was measured.
    pub local_swap_slowdown: Option<f64>,
    /// Least factor by which the whole run of one of direct and swap is faster, where the time
    /// limit ended the other.
    pub whole_run_factor: Option<f64>,
}

impl Contest {
    /// Returns the factor by which the better of the two modes is faster, if both ended.
    fn factor(&self) -> Option<f64> {
        let ratio = self.swap_slowdown? / self.direct_slowdown?;
        Some(ratio.max(1.0 / ratio))
    }

    /// Returns the better of the two, or the only one.
    fn winner(&self) -> Option<&'static str> {
        match (self.direct_slowdown, self.swap_slowdown) {
            (Some(direct), Some(swap)) if swap < direct => Some("swap"),
            (Some(_), _) => Some("direct"),
            (None, Some(_)) => Some("swap"),
            (None, None) => None,
        }
    }

    /// Returns the winner's slowdown.
    fn best(&self) -> Option<f64> {
        self.direct_slowdown.into_iter().chain(self.swap_slowdown).reduce(f64::min)
    }
}

/// Measures Figure 3, prints its tables, writes its JSON, its plot and its page.
///
/// # Errors
/// The same as [`super::execute`].
pub fn execute_figure_3(args: Figure3Args) -> Result<()> {
    let only = vec![Application::BerkeleyDb];
    execute_figure(
        Figure::Three,
        memory_args(Figure::Three, args.common, SizeArgs::default(), only),
    )
}

/// Measures Figure 15, prints its tables, writes its JSON, its plot and its page.
///
/// # Errors
/// The same as [`super::execute`].
pub fn execute_figure_15(args: Figure15Args) -> Result<()> {
    let only = if args.only.is_empty() {
        // Both modes are compared; grep's file runs in one only.
        Application::ALL.into_iter().filter(|one| *one != Application::GrepFile).collect()
    } else {
        args.only
    };
    execute_figure(Figure::Fifteen, memory_args(Figure::Fifteen, args.common, args.sizes, only))
}

fn execute_figure(figure: Figure, args: MemoryArgs) -> Result<()> {
    let memory = measure(&args)?;
    let report = FigureReport {
        figure,
        paper: figure.statements().iter().map(|line| (*line).to_owned()).collect(),
        contest: if figure == Figure::Fifteen { contest(&memory) } else { Vec::new() },
        memory,
    };
    let text = text(&report);
    tables::closing(&report.memory)
        .publish(&args.common.run.output, (&report, &text), || pictured(&report))
}

impl Figure {
    fn title(self) -> &'static str {
        match self {
            Figure::Three => "Figure 3: random access to an array of which two thirds are local",
            Figure::Fifteen => "Figure 15: remote memory directly and as swap, a quarter local",
        }
    }

    /// Returns the statements of the paper's text: its bars cannot be read from the text.
    fn statements(self) -> &'static [&'static str] {
        match self {
            Figure::Three => &[
                "paper: swap over 10 Gb/s Ethernet and over InfiniBand, swap and cache lines over \
                 PCIe: all far slower than local memory, most by an order of magnitude.",
            ],
            Figure::Fifteen => &[
                "paper: with Venice 1.03 to 2.5 times slower than all-local; the two modes differ \
                 by up to 6.8 times, either way round, by application.",
                "paper: if swapping to local storage is avoided, performance can be orders of \
                 magnitude higher.",
            ],
        }
    }

    fn share(self) -> f64 {
        match self {
            Figure::Three => FIGURE_3_SHARE,
            Figure::Fifteen => FIGURE_15_SHARE,
        }
    }

    fn modes(self) -> &'static [Mode] {
        match self {
            Figure::Three => &Mode::ALL,
            Figure::Fifteen => {
                &[Mode::VeniceShm, Mode::VeniceWindow, Mode::VeniceSwapShm, Mode::SwapDisk]
            }
        }
    }
}

fn memory_args(
    figure: Figure,
    common: CommonArgs,
    sizes: SizeArgs,
    only: Vec<Application>,
) -> MemoryArgs {
    MemoryArgs {
        common,
        sizes,
        only,
        modes: figure.modes().into(),
        local: Some(vec![figure.share()]),
        value_sizes: Some(vec![ByteSize(4 << 10)]),
        clients: vec![1],
    }
}

fn contest(memory: &MemoryReport) -> Vec<Contest> {
    let contest = |case: &str| {
        let slowdown = |mode| memory.cell(case, mode, FIGURE_15_SHARE).map(|cell| cell.slowdown);
        Contest {
            case: case.to_owned(),
            direct_slowdown: slowdown(Mode::VeniceWindow),
            swap_slowdown: slowdown(Mode::VeniceSwapShm),
            paged_slowdown: slowdown(Mode::VeniceShm),
            local_swap_slowdown: slowdown(Mode::SwapDisk),
            whole_run_factor: whole_run_factor(memory, case),
        }
    };
    memory.cases().into_iter().map(contest).collect()
}

/// Computes the factor from the limit that ended one mode and the duration of the other's run.
fn whole_run_factor(memory: &MemoryReport, case: &str) -> Option<f64> {
    let share = FIGURE_15_SHARE;
    let both = [Mode::VeniceWindow, Mode::VeniceSwapShm];
    let too_slow = both.iter().find(|mode| memory.is_too_slow(case, **mode, share))?;
    let ended = both.iter().find(|mode| *mode != too_slow)?;
    let cell = memory.cell(case, *ended, share)?;
    Some(memory.limit_s / cell.whole_s)
}

fn text(report: &FigureReport) -> String {
    let header = tables::header(&report.memory).join("\n");
    let tables: Vec<String> = tables(report).iter().map(ReportTable::text).collect();
    format!("{header}\n\n{}\n{}", tables.join("\n"), tables::closing(&report.memory).line())
}

fn tables(report: &FigureReport) -> Vec<ReportTable> {
    let mut own = match report.figure {
        Figure::Three => figure_3(report),
        Figure::Fifteen => figure_15(report),
    };
    own.notes.extend(report.paper.iter().cloned());
    vec![own, tables::runs(&report.memory)]
}

/// Builds the table of Figure 3, a row for each way to the memory as the paper has a bar for each.
fn figure_3(report: &FigureReport) -> ReportTable {
    let head =
        ["memory", "the paper's counterpart", "time, local = 1", "load, local = 1", "resident"];
    let mut table = ReportTable::new(report.figure.title(), &head, 2);
    let cells = &report.memory.cells;
    let local_load_s = cells.iter().find(|cell| cell.mode == Mode::Local).map(|cell| cell.load_s);
    for cell in cells {
        table.rows.push(vec![
            cell.mode.to_string(),
            like_the_papers(cell.mode).to_owned(),
            times(cell.slowdown),
            local_load_s.map_or("-".to_owned(), |local_s| times(cell.load_s / local_s)),
            ByteSize(cell.resident_bytes).to_string(),
        ]);
    }
    let measured = |pick: fn(f64, f64) -> f64| {
        let far = cells.iter().filter(|cell| cell.mode != Mode::Local);
        far.map(|cell| cell.slowdown).reduce(pick)
    };
    if let (Some(least), Some(most)) = (measured(f64::min), measured(f64::max)) {
        table.notes.push(format!("here: {} to {}.", times(least), times(most)));
    }
    table
}

fn like_the_papers(mode: Mode) -> &'static str {
    match mode {
        Mode::Local => "local memory",
        Mode::VeniceWindow => "cache lines over PCIe (CRMA)",
        Mode::VeniceSwapShm => "swap over PCIe (DMA)",
        Mode::VeniceSwapUdp => "swap over Ethernet",
        Mode::FuseLoop | Mode::RamDisk => "swap to a virtual disk",
        Mode::VeniceShm | Mode::VeniceUdp | Mode::SwapDisk | Mode::Zram => "-",
    }
}

/// Builds the table of Figure 15, a row for each application: both modes and the winner.
fn figure_15(report: &FigureReport) -> ReportTable {
    let head = [
        "application",
        "direct (window)",
        "swap",
        "paged",
        "swap to disk",
        "direct / disk",
        "swap / disk",
        "wins",
        "by",
    ];
    let mut table = ReportTable::new(report.figure.title(), &head, 1);
    let formatted = |factor: Option<f64>| factor.map_or("-".to_owned(), times);
    for one in &report.contest {
        let gain = |slowdown: Option<f64>| {
            formatted(one.local_swap_slowdown.zip(slowdown).map(|(disk, own)| disk / own))
        };
        table.rows.push(vec![
            one.case.clone(),
            formatted(one.direct_slowdown),
            formatted(one.swap_slowdown),
            formatted(one.paged_slowdown),
            formatted(one.local_swap_slowdown),
            gain(one.direct_slowdown),
            gain(one.swap_slowdown),
            one.winner().unwrap_or("-").to_owned(),
            one.whole_run_factor
                .map_or_else(|| formatted(one.factor()), |least| format!("> {}", times(least))),
        ]);
    }
    table.notes.push(
        "First four: time relative to all-local. / disk: speed relative to swap to the local disk, \
         as in the paper's bars. wins: of direct and swap. -: it did not end, or was not \
         measured."
            .to_owned(),
    );
    if report.contest.iter().any(|one| one.whole_run_factor.is_some()) {
        table.notes.push(format!(
            "> N: the loser was ended after {} s. Factor of whole runs: start, fill, work, check.",
            report.memory.limit_s
        ));
    }
    table.notes.push(
        "Direct is a mapping of this machine's own memory: it includes no link latency; the \
         paper's has 1.4 µs in each cache miss."
            .to_owned(),
    );
    let wins = |name: &str| report.contest.iter().filter(|one| one.winner() == Some(name)).count();
    let most = report.contest.iter().filter_map(Contest::factor).fold(1.0, f64::max);
    let ended = report.contest.iter().filter_map(|one| one.whole_run_factor).fold(0.0, f64::max);
    let most = if ended > most { format!("more than {}", times(ended)) } else { times(most) };
    let best = report.contest.iter().filter_map(Contest::best);
    let (least, worst) = best.fold((f64::MAX, 0.0f64), |(low, high), s| (low.min(s), high.max(s)));
    if least <= worst {
        table.notes.push(format!(
            "here: the better mode is {} to {} of all-local; direct wins {} times, swap {}, by up \
             to {}.",
            times(least),
            times(worst),
            wins("direct"),
            wins("swap"),
            most,
        ));
    }
    table
}

fn plot(report: &FigureReport) -> Result<Vec<Plot>> {
    let memory = &report.memory;
    let cases = memory.cases();
    let speed = |cell: Option<&Cell>| cell.map(|cell| 100.0 / cell.slowdown);
    let series = memory.modes().into_iter().map(|mode| BarSeries {
        name: mode.to_string(),
        values: cases
            .iter()
            .map(|case| speed(memory.cell(case, mode, report.figure.share())))
            .collect(),
        is_peer: mode.is_peer(),
    });
    let name = match report.figure {
        Figure::Three => "figure-3",
        Figure::Fifteen => "figure-15",
    };
    let chart = BarChart {
        title: report.figure.title().to_owned(),
        x: "application",
        y: ("speed relative to local memory", Unit::Percent),
        groups: cases.iter().map(|case| (*case).to_owned()).collect(),
        series: series.collect(),
    };
    Ok(chart.svg()?.map(|svg| Plot { name: name.to_owned(), svg }).into_iter().collect())
}

fn pictured(report: &FigureReport) -> Result<Pictured<'_>> {
    Ok(Pictured {
        title: report.figure.title(),
        header: tables::header(&report.memory),
        legend: "Coloured bars: Venice. Grey: its peers.",
        plots: plot(report)?,
        tables: tables(report),
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::xml;

    fn report(figure: Figure) -> FigureReport {
        let mut memory = sample();
        memory.cells.retain(|cell| cell.mode == Mode::Local || cell.local_share == 0.25);
        for cell in memory.cells.iter_mut().filter(|cell| cell.mode != Mode::Local) {
            cell.local_share = figure.share();
        }
        FigureReport {
            figure,
            paper: figure.statements().iter().map(|line| (*line).to_owned()).collect(),
            contest: contest(&memory),
            memory,
        }
    }

    #[test]
    fn paper_sizes_are_accepted() {
        use clap::Parser;

        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Figure15Args,
        }
        let line = ["x", "--graph", "paper", "--scale", "22", "--fft", "512MiB", "--rounds", "1"];
        let Figure15Args { common, sizes, only } = Line::parse_from(line).args;
        let args = memory_args(Figure::Fifteen, common, sizes, only);
        let sizes = super::super::sizes(&args);
        assert_eq!((sizes.graph_vertices, sizes.graph_edges), (1_488_712, 8_678_566));
        assert_eq!((sizes.r_mat_scale, sizes.fft_bytes, sizes.rounds), (22, 512 << 20, 1));
        assert_eq!((sizes.clients, sizes.value_bytes), (vec![1], vec![4096]));
    }

    #[test]
    fn winner_stands_beside_the_paper() {
        let text = text(&report(Figure::Fifteen));
        // Direct 1.1, swap 4, disk 40: factors 3.64 between the two, 36.4 and 10 over the disk.
        for wanted in ["direct", "3.64 ×", "36.4 ×", "10.0 ×", "6.8 times", "swap 0, by up"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }

    #[test]
    fn unfinished_mode_keeps_its_row() {
        let mut report = report(Figure::Fifteen);
        report.memory.cells.retain(|cell| cell.mode != Mode::VeniceSwapShm);
        report.contest = contest(&report.memory);
        assert_eq!(
            (report.contest[0].winner(), report.contest[0].factor()),
            (Some("direct"), None)
        );
        let text = text(&report);
        assert!(text.contains("direct wins 1 times, swap 0"), "{text}");
        // The swap run was ended after 60 s; direct took 3.1 s.
        let ended = super::super::report::Unmeasured {
            name: Some("pagerank".into()),
            mode: Mode::VeniceSwapShm,
            local_share: Some(FIGURE_15_SHARE),
            fate: super::super::report::Fate::TooSlow,
            reason: "it did not end".into(),
        };
        report.memory.unmeasured.push(ended);
        report.contest = contest(&report.memory);
        let text = super::text(&report);
        for wanted in ["> 19.4 ×", "ended after 60 s", "by up to more than 19.4 ×"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        report.memory.cells.retain(|cell| cell.mode != Mode::VeniceWindow);
        report.contest = contest(&report.memory);
        assert_eq!((report.contest[0].winner(), report.contest[0].whole_run_factor), (None, None));
        assert!(!super::text(&report).contains("here:"));
    }

    #[test]
    fn each_mode_has_a_row() {
        let report = report(Figure::Three);
        let text = text(&report);
        for wanted in ["swap over PCIe (DMA)", "here: 1.10 × to 40.0 ×", "order of magnitude"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        crate::plot::write(&plot(&report).unwrap(), folder.path()).unwrap();
        tables::closing(&report.memory)
            .publish_page(pictured(&report).unwrap(), folder.path())
            .unwrap();
        let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
        assert!(xml::texts(&page).unwrap().iter().any(|text| text.contains("an array of which")));
        assert!(folder.path().join("figure-3.svg").is_file());
    }
}
