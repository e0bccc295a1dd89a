//! `venice bench forecast`: forecasts of what will be needed, judged on traces of real data centres.
//!
//! Window by window along a trace ([`walk`]): a forecaster of `venice-rack` sees what was used so far and
//! foretells a peak; then what was really used shows how much would have been too little and how much too
//! much, margin by margin ([`judge`]), and what comes of slabs that are reserved ahead with a margin that
//! is learnt on the way ([`reserve`]). Beside it plain persistence, and perfect foresight, which knows
//! each window's peak. The traces come from the Python package index or from a file ([`trace`],
//! [`public`]).

mod judge;
mod public;
mod report;
mod reserve;
mod tables;
mod trace;
mod walk;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use venice_rack::forecast::{Method, Windows};

pub use report::{AheadReport, CurvePoint, ForecastReport, MethodReport, SeriesReport};

use crate::page::Page;
use public::PublicTrace;
use trace::Trace;
use venice_cli::failure::usage;
use venice_measure::arguments::OutputArgs;
use venice_measure::progress::Phase;

/// Arguments of `venice bench forecast`.
#[derive(Debug, Clone, Args)]
pub struct ForecastArgs {
    /// A trace of your own instead of the public ones: CSV, a line of names, then a line for each
    /// sample, evenly spaced in time.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "traces_dir"])]
    pub trace: Option<PathBuf>,

    /// The columns of it that are resources [default: every column of numbers].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "trace")]
    pub columns: Vec<String>,

    /// These public traces only.
    #[arg(long, value_enum, value_name = "TRACE,...", value_delimiter = ',',
          default_values_t = PublicTrace::ALL)]
    pub only: Vec<PublicTrace>,

    /// Where the public traces lie, or are put [default: ~/.cache/venice].
    #[arg(long, value_name = "DIR")]
    pub traces_dir: Option<PathBuf>,

    /// Observation window, in samples: what a forecast is made from.
    #[arg(long, value_name = "SAMPLES", default_value_t = 288)]
    pub window: usize,

    /// Prediction window, in samples: what is reserved for.
    #[arg(long, value_name = "SAMPLES", default_value_t = 12)]
    pub ahead: usize,

    /// Past samples that an autoregression goes by.
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub lags: usize,

    /// Past errors that ARMA goes by.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub errors: usize,

    /// Windows that may be short when the methods are compared by what they take for that.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01,
          value_parser = venice_measure::arguments::share)]
    pub short: f64,

    /// What one slab holds where slabs are reserved ahead, of the peak of the first observation window.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01,
          value_parser = venice_measure::arguments::share)]
    pub slab: f64,

    /// Past prediction windows that its margin is learnt from where slabs are reserved ahead.
    #[arg(long, value_name = "WINDOWS", default_value_t = 168)]
    pub remembered: usize,

    /// The margins of the curves go from 0 to this share of the forecast.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3,
          value_parser = venice_measure::arguments::share)]
    pub most_margin: f64,

    /// Output arguments.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Who foretells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Teller {
    /// Plain persistence: what is used now.
    LastValue,
    /// The peak of the last prediction window.
    LastPeak,
    /// Autoregression, each resource by itself.
    Ar,
    /// The same with past errors.
    Arma,
    /// All resources together.
    Var,
    /// Knows the window's peak: what no forecast can do better.
    Foresight,
}

impl Teller {
    const ALL: [Teller; 6] = [
        Teller::LastValue,
        Teller::LastPeak,
        Teller::Ar,
        Teller::Arma,
        Teller::Var,
        Teller::Foresight,
    ];

    fn name(self) -> &'static str {
        match self {
            Teller::LastValue => "persistence",
            Teller::LastPeak => "last peak",
            Teller::Ar => "AR",
            Teller::Arma => "ARMA",
            Teller::Var => "VAR",
            Teller::Foresight => "foresight",
        }
    }

    /// The forecaster's method; `None` of foresight, which needs none.
    fn method(self, lags: usize, errors: usize) -> Option<Method> {
        Some(match self {
            Teller::LastValue => Method::LastValue,
            Teller::LastPeak => Method::LastPeak,
            Teller::Ar => Method::Ar { lags },
            Teller::Arma => Method::Arma { lags, errors },
            Teller::Var => Method::Var { lags },
            Teller::Foresight => return None,
        })
    }
}

/// Judges the forecasts, prints the tables, writes JSON, plots and page.
///
/// # Errors
/// When the command line makes no sense, a trace cannot be had or read, and when a file cannot be written.
pub fn execute(args: ForecastArgs) -> Result<()> {
    let windows = Windows { observation: args.window, prediction: args.ahead };
    walk::check(windows, args.lags, args.errors)?;
    reserve::check(&args)?;
    let traces = match &args.trace {
        Some(path) => vec![trace::read(path, &args.columns)?],
        None => public::all(&args.only, args.traces_dir.as_deref())?,
    };
    for trace in &traces {
        let needed = args.window + args.ahead;
        if trace.samples() < needed {
            return Err(usage(format!(
                "{} has {} samples: one observation window and one prediction window take {needed} \
                 (--window, --ahead)",
                trace.name,
                trace.samples()
            )));
        }
    }
    let report = measure(&args, windows, &traces)?;
    if let Some(folder) = &args.output.plots {
        let plots = tables::plots(&report)?;
        let page = Page {
            title: tables::TITLE,
            header: tables::header(&report),
            legend: tables::LEGEND,
            plots: &plots,
            sheets: tables::all(&report),
            closing: Vec::new(),
        };
        page.publish(folder)?;
    }
    venice_measure::report::publish(&tables::text(&report), args.output.json.as_deref(), &report)
}

fn measure(args: &ForecastArgs, windows: Windows, traces: &[Trace]) -> Result<ForecastReport> {
    let mut report = ForecastReport {
        window: args.window,
        ahead: args.ahead,
        lags: args.lags,
        errors: args.errors,
        short: args.short,
        slab: args.slab,
        remembered: args.remembered,
        series: Vec::new(),
    };
    for trace in traces {
        let phase = Phase::new(trace.name.clone(), Teller::ALL.len() as u64);
        let mut told = Vec::new();
        for teller in Teller::ALL {
            let method = teller.method(args.lags, args.errors);
            told.push((teller, walk::along(trace, windows, method)?));
            phase.advance(1);
        }
        for (at, resource) in trace.names.iter().enumerate() {
            let seen = trace.used[at][..windows.observation].iter().copied().fold(0.0, f64::max);
            let policy = reserve::policy(args, seen);
            let mut judged = Vec::new();
            for (teller, windows) in &told {
                let windows: Vec<_> = windows.iter().map(|window| window.of(at)).collect();
                let ahead = reserve::ahead(&windows, policy)?;
                judged.push(judge::judge(*teller, &windows, ahead, args));
            }
            report.series.push(SeriesReport {
                trace: trace.name.clone(),
                resource: resource.clone(),
                samples: trace.samples(),
                windows: told[0].1.len(),
                methods: judged,
            });
        }
    }
    Ok(report)
}
