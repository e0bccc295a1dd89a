//! `venice bench forecast`: forecasts of needs, evaluated on traces of real data centres.
//!
//! The benchmark walks a trace window by window ([`walk`]). A forecaster of `venice-rack` gets the
//! use so far and predicts a peak; the real use then gives shortage and excess, margin by margin
//! ([`score`]), and the result of slabs reserved in advance with a margin learnt on the way
//! ([`reserve`]). Plain persistence and perfect foresight, which has each window's peak, are the
//! baselines. The traces come from the Python package index or from a file ([`trace`], [`public`]).

mod public;
mod report;
mod reserve;
mod score;
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
    /// A trace file instead of the public ones: CSV, a line of names, then a line for each sample,
    /// evenly spaced in time.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "traces_dir"])]
    pub trace: Option<PathBuf>,

    /// Columns of it that are resources [default: every column of numbers].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "trace")]
    pub columns: Vec<String>,

    /// These public traces only.
    #[arg(long, value_enum, value_name = "TRACE,...", value_delimiter = ',',
          default_values_t = PublicTrace::ALL)]
    pub only: Vec<PublicTrace>,

    /// Folder of the public traces [default: ~/.cache/venice].
    #[arg(long, value_name = "DIR")]
    pub traces_dir: Option<PathBuf>,

    /// Observation window, in samples: the input of a forecast.
    #[arg(long, value_name = "SAMPLES", default_value_t = 288)]
    pub window: usize,

    /// Prediction window, in samples: the span of a reservation.
    #[arg(long, value_name = "SAMPLES", default_value_t = 12)]
    pub ahead: usize,

    /// Past samples used by an autoregression.
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub lags: usize,

    /// Past errors used by ARMA.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub errors: usize,

    /// Share of windows that may be short when the methods are compared.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01,
          value_parser = venice_measure::arguments::share)]
    pub short: f64,

    /// Size of a slab in the reservation test, as a share of the first observation window's peak.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01,
          value_parser = venice_measure::arguments::share)]
    pub slab: f64,

    /// Past prediction windows that the reservation test learns its margin from.
    #[arg(long, value_name = "WINDOWS", default_value_t = 168)]
    pub remembered: usize,

    /// Largest margin of the curves, as a share of the forecast.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3,
          value_parser = venice_measure::arguments::share)]
    pub most_margin: f64,

    /// Output arguments.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Forecasting method, or baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Predictor {
    /// Plain persistence: the present use.
    LastValue,
    /// The peak of the last prediction window.
    LastPeak,
    /// Autoregression, each resource by itself.
    Ar,
    /// The same with past errors.
    Arma,
    /// All resources together.
    Var,
    /// Perfect foresight: the window's peak, the bound of every forecast.
    Foresight,
}

impl Predictor {
    const ALL: [Predictor; 6] = [
        Predictor::LastValue,
        Predictor::LastPeak,
        Predictor::Ar,
        Predictor::Arma,
        Predictor::Var,
        Predictor::Foresight,
    ];

    fn name(self) -> &'static str {
        match self {
            Predictor::LastValue => "persistence",
            Predictor::LastPeak => "last peak",
            Predictor::Ar => "AR",
            Predictor::Arma => "ARMA",
            Predictor::Var => "VAR",
            Predictor::Foresight => "foresight",
        }
    }

    /// Returns the forecaster's method; `None` for foresight, which needs none.
    fn method(self, lags: usize, errors: usize) -> Option<Method> {
        Some(match self {
            Predictor::LastValue => Method::LastValue,
            Predictor::LastPeak => Method::LastPeak,
            Predictor::Ar => Method::Ar { lags },
            Predictor::Arma => Method::Arma { lags, errors },
            Predictor::Var => Method::Var { lags },
            Predictor::Foresight => return None,
        })
    }
}

/// Evaluates the forecasts, prints the tables, writes JSON, plots and page.
///
/// # Errors
/// On an invalid command line, when a trace is unavailable or unreadable, and when a file cannot be
/// written.
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
            tables: tables::all(&report),
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
        let phase = Phase::new(trace.name.clone(), Predictor::ALL.len() as u64);
        let mut forecasts = Vec::new();
        for predictor in Predictor::ALL {
            let method = predictor.method(args.lags, args.errors);
            forecasts.push((predictor, walk::along(trace, windows, method)?));
            phase.advance(1);
        }
        for (at, resource) in trace.names.iter().enumerate() {
            let seen = trace.used[at][..windows.observation].iter().copied().fold(0.0, f64::max);
            let policy = reserve::policy(args, seen);
            let mut scored = Vec::new();
            for (predictor, windows) in &forecasts {
                let windows: Vec<_> = windows.iter().map(|window| window.of(at)).collect();
                let ahead = reserve::ahead(&windows, policy)?;
                scored.push(score::score(*predictor, &windows, ahead, args));
            }
            report.series.push(SeriesReport {
                trace: trace.name.clone(),
                resource: resource.clone(),
                samples: trace.samples(),
                windows: forecasts[0].1.len(),
                methods: scored,
            });
        }
    }
    Ok(report)
}
