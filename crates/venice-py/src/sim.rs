//! `_venice.Experiment`, and the experiments that come with Venice. Data crosses as JSON.

use std::ops::ControlFlow;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use venice_client::Error;
use venice_experiment::run::run_point;
use venice_experiment::{
    Experiment as Inner, ExperimentError, Filter, Host, Point, PointResult, Results, Simulation,
    State, WorldKind,
};
use venice_worlds::{catalogue, world_of};

use crate::errors::exception;

/// An experiment in a simulated world.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Experiment(Inner);

#[pymethods]
impl Experiment {
    /// The one of a name.
    #[staticmethod]
    fn named(py: Python<'_>, name: &str) -> PyResult<Self> {
        Ok(Self(known(py, catalogue().get(name))?))
    }

    /// The one of a text in TOML.
    #[staticmethod]
    fn read(py: Python<'_>, text: &str) -> PyResult<Self> {
        Ok(Self(known(py, catalogue().read(text))?))
    }

    fn to_toml(&self) -> String {
        self.0.to_toml()
    }

    /// All of it but the configuration.
    fn about(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &self.0)
    }

    fn config(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &known(py, self.world(py)?.whole_config(&self.0))?)
    }

    fn quick(&self, py: Python<'_>) -> PyResult<Self> {
        self.changed(py, Inner::make_quick)
    }

    fn set(&self, py: Python<'_>, key: &str, value: &str) -> PyResult<Self> {
        let value = of_json(py, key, value)?;
        self.changed(py, |experiment| experiment.set(key, value))
    }

    fn sweep(&self, py: Python<'_>, key: &str, values: &str) -> PyResult<Self> {
        let values = of_json(py, key, values)?;
        self.changed(py, |experiment| experiment.sweep(key, values))
    }

    /// The points that `filter` takes.
    fn points(&self, py: Python<'_>, filter: &str) -> PyResult<String> {
        let filter = known(py, Filter::parse(filter, &self.0.sweeps))?;
        let points = known(py, self.world(py)?.points(&self.0, &filter))?;
        let shown = |point: &Point| json!({ "place": point.coordinates, "config": point.config });
        let taken = points.iter().filter(|point| filter.takes(&point.coordinates));
        to_json(py, &taken.map(shown).collect::<Vec<_>>())
    }

    /// Runs the points that `filter` takes; `observe` is called some times a second. What it raises ends
    /// the run: it is returned beside the results so far.
    fn run(
        &self,
        py: Python<'_>,
        filter: &str,
        threads: usize,
        machine: String,
        observe: Py<PyAny>,
    ) -> PyResult<(String, Option<Py<PyAny>>)> {
        let world = self.world(py)?;
        let filter = known(py, Filter::parse(filter, &self.0.sweeps))?;
        let points = known(py, world.points(&self.0, &filter))?;
        let config = known(py, world.whole_config(&self.0))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let results = Results {
            host: Host { machine, threads, ranks: None },
            command: "venice.sim".to_owned(),
            started_unix_s: since.map_or(0, |since| since.as_secs()),
            ..Results::not_run(&self.0, config, &points)
        };
        let mut run = Run { world, threads, observe: &observe, results, raised: None };
        let ran = py.detach(|| run.run(&self.0, &points, &filter));
        known(py, ran)?;
        let raised = run.raised.map(|error| error.into_value(py).into_any());
        Ok((to_json(py, &run.results)?, raised))
    }
}

impl Experiment {
    fn world(&self, py: Python<'_>) -> PyResult<&'static WorldKind> {
        known(py, world_of(&self.0))
    }

    fn changed(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Inner) -> Result<(), ExperimentError>,
    ) -> PyResult<Self> {
        let mut changed = self.0.clone();
        known(py, change(&mut changed))?;
        Ok(Self(changed))
    }
}

/// A run of points.
struct Run<'a> {
    world: &'static WorldKind,
    threads: usize,
    observe: &'a Py<PyAny>,
    results: Results,
    /// The exception of `observe`, or of a signal's handler.
    raised: Option<PyErr>,
}

impl Run<'_> {
    fn run(
        &mut self,
        experiment: &Inner,
        points: &[Point],
        filter: &Filter,
    ) -> Result<(), ExperimentError> {
        let wanted = |at: &usize| filter.takes(&points[*at].coordinates);
        let wanted: Vec<usize> = (0..points.len()).filter(wanted).collect();
        for (done, at) in wanted.iter().enumerate() {
            let simulation = self.world.start(&points[*at], self.threads)?;
            let start = Instant::now();
            let place = self.results.points[*at].place();
            let (observe, raised) = (self.observe, &mut self.raised);
            let ran = run_point(simulation, false, &mut |simulation| {
                let took_s = start.elapsed().as_secs_f64();
                match tell(observe, (done, wanted.len()), &place, simulation, took_s) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        *raised = Some(error);
                        ControlFlow::Break(())
                    }
                }
            });
            let result = &mut self.results.points[*at];
            (result.state, result.wall_s) = (ran.state, start.elapsed().as_secs_f64());
            result.outcome = Some(ran.outcome);
            if self.raised.is_some() {
                break;
            }
        }
        self.results.interrupted = self.raised.is_some();
        self.results.judge(experiment);
        Ok(())
    }
}

/// Tells Python how far a point is, and lets signals be handled.
fn tell(
    observe: &Py<PyAny>,
    (done, points): (usize, usize),
    place: &str,
    simulation: &dyn Simulation,
    took_s: f64,
) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        let (now, events) = (simulation.now(), simulation.events());
        let end = simulation.expected_end();
        observe.call1(py, (done, points, place, now, end, events, took_s)).map(drop)
    })
}

/// The experiments that come with Venice: name, title, paper, world.
#[pyfunction]
pub fn sim_list(py: Python<'_>) -> PyResult<Vec<(String, String, String, String)>> {
    let all = catalogue();
    let row = |name| {
        let Inner { name, title, paper, world, .. } = known(py, all.get(name))?;
        Ok((name, title, paper, world))
    };
    all.names().map(row).collect()
}

/// The figures of each point of results, with their units.
#[pyfunction]
pub fn sim_values(py: Python<'_>, results: &str) -> PyResult<String> {
    let results: Results = of_json(py, "results", results)?;
    let values = |point: &PointResult| {
        let outcome = point.outcome.as_ref().filter(|_| point.state != State::NotRun);
        let outcome = outcome.into_iter();
        let named = outcome.flat_map(|outcome| {
            outcome.names().into_iter().filter_map(|name| {
                let (value, unit) = outcome.value(&name)?;
                Some((name, json!([value, unit])))
            })
        });
        named.collect::<serde_json::Map<String, serde_json::Value>>()
    };
    to_json(py, &results.points.iter().map(values).collect::<Vec<_>>())
}

fn known<T>(py: Python<'_>, result: Result<T, ExperimentError>) -> PyResult<T> {
    result.map_err(|error| exception(py, &Error::Invalid(error.to_string())))
}

fn to_json<T: Serialize>(py: Python<'_>, value: &T) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| exception(py, &Error::Invalid(error.to_string())))
}

fn of_json<T: DeserializeOwned>(py: Python<'_>, name: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text)
        .map_err(|error| exception(py, &Error::Invalid(format!("{name}: {error}"))))
}
