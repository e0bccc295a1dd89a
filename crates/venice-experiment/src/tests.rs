use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use toml::Value;

use super::*;
use crate::outcome::{Metric, Outcome};

/// The configuration of a world that only has one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Config {
    seed: u64,
    app: App,
    cpu: Cpu,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct App {
    servers: u32,
    api: String,
}

impl Default for App {
    fn default() -> Self {
        Self { servers: 1, api: "pthread".into() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Cpu {
    clock: String,
}

struct Still;

impl World for Still {
    const NAME: &'static str = "still";
    const EXPERIMENTS: &'static [(&'static str, &'static str)] = &[];

    type Config = Config;

    fn check(config: &Config) -> Result<(), BadConfig> {
        match config.app.servers {
            0 => Err(BadConfig::new("app.servers", "0 servers: set 1 or more")),
            _ => Ok(()),
        }
    }

    fn new(config: &Config, _: usize) -> Result<Self, BadConfig> {
        Self::check(config).map(|()| Self)
    }
}

impl Simulation for Still {
    fn advance(&mut self, _: u64) {}

    fn now(&self) -> u64 {
        0
    }

    fn is_over(&self) -> bool {
        true
    }

    fn events(&self) -> u64 {
        0
    }

    fn progress(&self) -> Option<(u64, u64)> {
        None
    }

    fn outcome(&self) -> Outcome {
        Outcome::default()
    }
}

const INCAST: &str = r#"
name = "incast"
title = "Incast"
paper = "section 4.1"
description = "Several servers answer at once."

[config]
seed = 7
cpu.clock = "4GHz"

[[sweep]]
key = "app.servers"
values = [1, 8, 16]

[[sweep]]
label = "client"
set = [
  { label = "pthread", app.api = "pthread" },
  { label = "epoll, slow", app.api = "epoll", "cpu.clock" = "2GHz" },
]

[quick]
config.seed = 8
sweep.servers = [1, 8]
sweep.client = ["pthread"]

[[figure]]
name = "6a"
title = "Goodput"
x = "servers"
y = "goodput"
series = ["client"]
log = ["x"]
[[figure.paper]]
label = "DIABLO"
of = "pthread"
source = "figure 6a, read off"
points = [[1, 800], [8, 400.5]]

[[finding]]
claim = "The goodput collapses."
paper = "section 4.1"
holds = "goodput{servers=8,client=pthread} < 0.5 * goodput{servers=1,client=pthread}"

[[finding]]
claim = "One client is never worse."
holds = "min(goodput{client=pthread} / 2) > 0 and max(goodput) <= 1000"
"#;

fn incast() -> Experiment {
    Experiment::from_toml(INCAST).unwrap()
}

fn config_of(point: &Point) -> Config {
    point.config.clone().try_into().unwrap()
}

fn error(text: &str) -> String {
    Experiment::from_toml(text).unwrap_err().to_string()
}

/// Runs all points of an experiment, with a goodput of 1000 / servers.
fn results(experiment: &Experiment) -> Results {
    let points = experiment.points::<Still>(&Filter::default()).unwrap().into_iter().map(|point| {
        let goodput = 1000.0 / f64::from(config_of(&point).app.servers);
        let metrics = vec![Metric::new("goodput", goodput, "Mb/s")];
        PointResult {
            coordinates: point.coordinates,
            state: State::Done,
            wall_s: 0.5,
            outcome: Some(Outcome { metrics, ..Outcome::default() }),
        }
    });
    let mut results = Results {
        format: Results::FORMAT,
        name: experiment.name.clone(),
        experiment: experiment.to_toml(),
        config: experiment.whole_config::<Still>().unwrap(),
        points: points.collect(),
        ..Results::default()
    };
    results.judge(experiment);
    results
}

#[test]
fn points_are_all_combinations() {
    let points = incast().points::<Still>(&Filter::default()).unwrap();
    let configs: Vec<Config> = points.iter().map(config_of).collect();
    let place =
        |config: &Config| (config.app.servers, config.app.api.clone(), config.cpu.clock.clone());
    let places: Vec<_> = configs.iter().map(place).collect();
    let wanted = [1, 8, 16].map(|n| {
        [(n, "pthread", "4GHz"), (n, "epoll", "2GHz")]
            .map(|(n, api, clock)| (n, api.to_owned(), clock.to_owned()))
    });
    assert_eq!(places, wanted.concat());
    assert_eq!(points[3].coordinates[0], Coordinate { name: "servers".into(), value: 8.into() });
    assert_eq!(points[3].coordinates[1].text(), "epoll, slow");
    assert!(configs.iter().all(|config| config.seed == 7));
    assert_eq!(keys::get(&points[3].config, "app.servers"), Some(&8.into()));
}

#[test]
fn quick_variant_is_smaller() {
    let mut quick = incast();
    quick.make_quick().unwrap();
    let points = quick.points::<Still>(&Filter::default()).unwrap();
    assert_eq!(points.len(), 2);
    assert_eq!(
        config_of(&points[1]),
        Config {
            seed: 8,
            app: App { servers: 8, ..App::default() },
            cpu: Cpu { clock: "4GHz".into() },
        }
    );
}

#[test]
fn text_survives_round_trip() {
    let mut experiment = incast();
    assert_eq!(Experiment::from_toml(&experiment.to_toml()), Ok(experiment.clone()));
    experiment.make_quick().unwrap();
    experiment.set("cpu.clock", "3GHz".into()).unwrap();
    assert_eq!(Experiment::from_toml(&experiment.to_toml()), Ok(experiment));
}

#[test]
fn layers_change_experiment() {
    let mut experiment = incast();
    let over = Experiment::part_from_toml(
        "base = 'incast'\nname = 'mine'\n[config]\napp.api = 'epoll'\n[[sweep]]\n\
         key = 'app.servers'\nvalues = [2]\n[[sweep]]\nkey = 'seed'\nvalues = [1, 2]\n\
         [[finding]]\nclaim = 'mine'\nholds = 'goodput{servers=2,client=pthread,seed=1} > 1'",
    );
    let mut over = over.unwrap();
    experiment.lay(over.clone()).unwrap();
    assert_eq!(experiment.figures[0].series, ["client", "seed"]);
    over.figures = incast().figures;
    let wrong = incast().lay(over).unwrap_err().to_string();
    assert_eq!(wrong, "figure 1: seed varies: name it in x, series or at");
    assert_eq!((&*experiment.name, experiment.findings.len()), ("mine", 1));
    assert_eq!(experiment.points::<Still>(&Filter::default()).unwrap().len(), 4);
    let wrong = experiment.sweep("cpu.clock", vec!["1GHz".into()]).unwrap_err().to_string();
    assert_eq!(wrong, "sweep 4: cpu.clock is set by the variants of client too");
}

#[test]
fn settings_fix_or_vary_keys() {
    let mut experiment = incast();
    experiment.set("app.servers", 3.into()).unwrap();
    experiment.set("seed", 4.into()).unwrap();
    let points = experiment.points::<Still>(&Filter::default()).unwrap();
    assert_eq!(points.len(), 2);
    let configs = points.iter().map(config_of);
    assert!(configs.into_iter().all(|config| (config.app.servers, config.seed) == (3, 4)));
    experiment.sweep("servers", vec![1.into(), 2.into()]).unwrap();
    experiment.sweep("seed", vec![1.into(), 2.into(), 3.into()]).unwrap();
    assert_eq!(experiment.points::<Still>(&Filter::default()).unwrap().len(), 12);
    assert_eq!(experiment.figures[0].series, ["client", "seed"]);
    let verdicts = results(&experiment).findings.into_iter().map(|finding| finding.verdict);
    assert_eq!(verdicts.collect::<Vec<_>>(), [Verdict::NotRun, Verdict::Holds]);
    let wrong = experiment.set("app.api", "epoll".into()).unwrap_err().to_string();
    assert!(wrong.contains("--points client=NAME"), "{wrong}");
    let wrong = experiment.set("client", "kqueue".into()).unwrap_err().to_string();
    assert_eq!(wrong, "sweep client: no variant 'kqueue': write one of pthread, epoll, slow");
}

#[test]
fn bad_keys_are_named() {
    let mut experiment = incast();
    experiment.set("app.server", 3.into()).unwrap();
    let wrong = experiment.points::<Still>(&Filter::default()).unwrap_err().to_string();
    assert_eq!(wrong, "unknown key app.server: the nearest is app.servers");
    let mut experiment = incast();
    experiment.set("servers", 0.into()).unwrap();
    let wrong = experiment.points::<Still>(&Filter::default()).unwrap_err().to_string();
    assert_eq!(wrong, "app.servers: 0 servers: set 1 or more (at servers=0 client=pthread)");
    experiment.set("servers", "many".into()).unwrap();
    let wrong = experiment.points::<Still>(&Filter::default()).unwrap_err().to_string();
    assert!(wrong.starts_with("app.servers: \"many\": invalid type"), "{wrong}");
    let names = nearest("incats-1g", ["incast-1g", "incast-10g", "rack-scale"].into_iter());
    assert_eq!(names, ["incast-1g", "incast-10g"]);
    assert!(nearest("zzz", ["incast-1g"].into_iter()).is_empty());
}

#[test]
fn inconsistent_files_are_refused() {
    let head = "name = 'x'\ntitle = ''\n";
    let sweep = "[[sweep]]\nkey = 'a.b'\nvalues = [1, 2]\n";
    for (text, wanted) in [
        ("title = ''", "name: '': write letters"),
        ("name = 'a b'", "name: 'a b'"),
        ("name = 'x'\ntitel = ''", "line 2: unknown field `titel`"),
        ("name = 'x'\n[[sweep]]\nvalues = [1]", "sweep 1: values need a key"),
        ("name = 'x'\n[[sweep]]\nkey = 'a'", "sweep 1: it has no values"),
        ("name = 'x'\n[[sweep]]\nkey = 'a'\nvalues = [1, 1]", "the value 1 is there twice"),
        ("name = 'x'\n[[sweep]]\nset = [{label='a'}]", "sweep 1: variants need a label for"),
        ("name = 'x'\n[[sweep]]\nlabel = 'a'\nset = [{b = 1}]", "sweep 1: variant 1 needs a label"),
        (&format!("{head}{sweep}{sweep}"), "sweep 2: a second sweep named b"),
        (
            &format!("{head}{sweep}[[sweep]]\nkey = 'c'\nvalues = {:?}", Vec::from_iter(0..2501)),
            "sweep c: 2 x 2501 points: an experiment has 5000 at most",
        ),
        (
            &format!(
                "{head}{sweep}[[figure]]\nname = 'f'\ny = 'p99'\nx = 'b'\n\
                 [[figure.paper]]\nlabel = ''\nsource = ''\npoints = [[1, nan]]"
            ),
            "figure 1: paper: [1, NaN] is no point",
        ),
        (&format!("{head}{sweep}[[figure]]\nname = 'f'\ny = 'p99'"), "figure 1: lines need an x"),
        (
            &format!("{head}{sweep}[[figure]]\nname = 'f'\ny = 'p99'\nkind = 'cdf'"),
            "figure 1: b varies: name it in x, series or at",
        ),
        (
            &format!("{head}{sweep}[[figure]]\nname = 'f'\ny = 'p99'\nx = 'c'"),
            "figure 1: c is not swept: write one of b",
        ),
        (
            &format!("{head}{sweep}[[finding]]\nclaim = ''\nholds = 'p99 > '"),
            "finding 1: holds: column 7: a figure or a number is missing at the end",
        ),
        (
            &format!("{head}[[finding]]\nclaim = ''\nholds = 'p99{{c=1}} > 1'"),
            "finding 1: c is not swept: nothing is",
        ),
    ] {
        assert!(error(text).contains(wanted), "{text}\n{}", error(text));
    }
    let mut experiment = incast();
    experiment.quick.sweep.insert("ports".into(), Value::from(vec![1]));
    let wrong = experiment.make_quick().unwrap_err().to_string();
    assert_eq!(wrong, "quick.sweep: ports is not swept: write one of servers, client");
}

#[test]
fn filters_choose_points() {
    let experiment = incast();
    let chosen = |text| {
        let filter = Filter::parse(text, &experiment.sweeps)?;
        let points = experiment.points::<Still>(&Filter::default())?;
        Ok::<_, ExperimentError>(
            points.iter().filter(|point| filter.takes(&point.coordinates)).count(),
        )
    };
    assert_eq!(chosen(""), Ok(6));
    assert_eq!(chosen("servers=1|16"), Ok(4));
    assert_eq!(chosen("app.servers=8, client=pthread"), Ok(1));
    for (text, wanted) in [
        ("servers", "write NAME=VALUE"),
        ("ports=1", "ports is not swept: swept are servers, client"),
        ("servers=9", "no value 9: servers is 1, 8, 16"),
    ] {
        let wrong = chosen(text).unwrap_err().to_string();
        assert!(wrong.contains(wanted), "{wrong}");
    }
}

#[test]
fn findings_show_numbers() {
    let experiment = incast();
    let mut run = results(&experiment);
    let verdicts: Vec<_> = run.findings.iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [Verdict::Holds, Verdict::Holds]);
    let first = &run.findings[0].numbers;
    let sides = &first.comparisons[0];
    assert_eq!((sides.left, &*sides.order, sides.right), (125.0, "<", 500.0));
    assert_eq!(first.readings[0].figure, "goodput{servers=8,client=pthread}");
    assert_eq!(first.readings[0].unit, "Mb/s");
    // A point that did not come to its end has no figures.
    run.points[2].state = State::Interrupted;
    run.judge(&experiment);
    assert_eq!(run.findings[0].verdict, Verdict::NotRun);
    assert!(run.findings[0].numbers.missing[0].contains("servers=8"), "{:?}", run.findings[0]);
}

#[test]
fn results_survive_json() {
    let run = results(&incast());
    let text = serde_json::to_string_pretty(&run).unwrap();
    let again: Results = serde_json::from_str(&text).unwrap();
    assert_eq!(again, run);
    assert_eq!(again.experiment().unwrap(), incast());
    assert_eq!(again.figure_names(), ["goodput", "events", "virtual_s"]);
}

#[test]
fn figures_have_curve_per_series() {
    let experiment = incast();
    let run = results(&experiment);
    let curves = experiment.figures[0].curves(&run.points);
    let labels: Vec<_> = curves.iter().map(|curve| &*curve.label).collect();
    assert_eq!(labels, ["pthread", "epoll, slow"]);
    assert_eq!(curves[0].points, [(1.0, 1000.0), (8.0, 125.0), (16.0, 62.5)]);
    assert_eq!(experiment.figures[0].unit(&run.points), "Mb/s");
    let paper: Vec<_> =
        run.points.iter().map(|point| experiment.figures[0].paper_at(&point.coordinates)).collect();
    assert_eq!(paper, [Some(800.0), None, Some(400.5), None, None, None]);
}

/// Points with one coordinate `n`, and a figure `f` of 10 n.
struct Tens(Vec<[Coordinate; 1]>);

impl expression::Source for Tens {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn coordinates(&self, point: usize) -> &[Coordinate] {
        &self.0[point]
    }

    fn value(&self, point: usize, figure: &str) -> Option<(f64, &str)> {
        let n = self.0[point][0].text().parse::<f64>().unwrap();
        ["f", "drops.receive-ring"].contains(&figure).then_some((10.0 * n, "us"))
    }
}

fn evaluated(text: &str) -> Evaluation {
    let place = |n: i64| [Coordinate { name: "n".into(), value: n.into() }];
    Expression::parse(text).unwrap().evaluate(&Tens([1, 2, 3].map(place).into()))
}

#[test]
fn expressions_follow_arithmetic() {
    for (text, holds) in [
        ("1 + 2 * 3 > 6", true),
        ("(1 + 2) * 3 <= 8", false),
        ("8 / 2 / 2 >= 2", true),
        ("-f{n=1} < -9.5", true),
        ("1 < 2 < 3", true),
        ("1 < 3 < 2", false),
        ("f{n=2} >= 20 and f{n=3} > 29", true),
        ("f{n=2} > 20 or f{n=3} > 29", true),
        ("1 > 2 or 2 > 3 or 3 > 4", false),
        ("1 > 2 and 2 > 1 or 3 > 2", true),
        ("max(f) - min(f) > 19.5", true),
        ("max(drops.receive-ring)-1 > 28.9", true),
        ("drops.receive-ring{n=1}-f{n=1} >= 0", true),
        ("mean(f) <= 20", true),
        ("max(f{n=2} + 1) < 21.5", true),
        ("abs(f{n = '1'} / f{n=3.0} - 0.33) < 0.01", true),
    ] {
        assert_eq!(evaluated(text).holds, Some(holds), "{text}");
    }
    for (text, missing) in [
        ("f{n=4} > 1", "f{n=4}: no point"),
        ("f > 1", "f: 3 points: select one"),
        ("g{n=1} > 1", "g{n=1}: not run, or no such figure, at n=1"),
        ("max(f{n=9}) > 1 or 1 > 0", "f{n=9}: no point"),
        ("f{n=1} / 0 > f{n=7}", "10 / 0 is no number"),
        ("1 / 0 > 1", "1 / 0 is no number"),
    ] {
        let found = evaluated(text);
        assert_eq!((found.holds, &*found.missing[0]), (None, missing), "{text}");
    }
}

#[test]
fn broken_expressions_give_column() {
    for (text, column, why) in [
        ("", 1, "missing at the end"),
        ("f", 2, "a comparison is missing"),
        ("f > ", 5, "missing at the end"),
        ("f{n=1 > 2", 10, "a '}' is missing"),
        ("f{} > 2", 3, "NAME=VALUE"),
        ("f{n=} > 2", 5, "n has no value"),
        ("f{n='a, b}'x} > 2", 12, "a '}' is missing"),
        ("f{n=\"a, b} > 2", 15, "a '\"' is missing"),
        ("(1 > 2", 4, "a ')' is missing"),
        ("median(f) > 2", 1, "no function median"),
        ("1.2.3 > 2", 1, "1.2.3 is no number"),
        ("1 > 2 3", 7, "too much"),
        ("and > 2", 1, "'and' where"),
        ("1 > 2 and", 10, "missing at the end"),
    ] {
        let wrong = Expression::parse(text).unwrap_err();
        assert_eq!(wrong.column, column, "{text}: {wrong}");
        assert!(wrong.why.contains(why), "{text}: {wrong}");
    }
    let deep = format!("{}1{} > 0", "(".repeat(100_000), ")".repeat(100_000));
    assert!(Expression::parse(&deep).unwrap_err().why.contains("too many brackets"));
}

proptest! {
    #[test]
    fn nonsense_never_panics(text in any::<String>(), bits in "[a-f0-9 (){}<>=+*/,.'\"_-]{0,40}") {
        for text in [&text, &bits] {
            let _ = Expression::parse(text);
            let _ = Experiment::from_toml(text);
            let _ = Filter::parse(text, &incast().sweeps);
            let value = keys::value_of(text);
            let mut experiment = incast();
            if experiment.set(text, value).is_ok() {
                let _ = experiment.points::<Still>(&Filter::default());
            }
        }
    }

    #[test]
    fn parsed_expressions_evaluate(text in "(max\\(|f|\\{n=[1-4]\\}|[0-9]| [<>]=? |[-+*/()]| or | and ){1,12}") {
        if let Ok(expression) = Expression::parse(&text) {
            let place = |n: i64| [Coordinate { name: "n".into(), value: n.into() }];
            let found = expression.evaluate(&Tens([1, 2, 3].map(place).into()));
            prop_assert_eq!(found.holds.is_none(), !found.missing.is_empty(), "{:?}", found);
        }
    }

    #[test]
    fn any_value_round_trips(text in any::<String>(), number in any::<i64>(), float in -1e9..1e9f64) {
        for value in [Value::from(&*text), number.into(), float.into(), vec![number].into()] {
            let mut experiment = Experiment { name: "x".into(), ..Experiment::default() };
            experiment.set("a.b", value).unwrap();
            prop_assert_eq!(Experiment::from_toml(&experiment.to_toml()), Ok(experiment));
        }
    }
}
