//! A server as a queue: its mean waits are those of theory.

use super::*;
use crate::application::Application;
use crate::traffic::Distribution;

/// A client whose datagrams come at random at a server that does nothing else, and costs nothing else.
const SERVER: &str = r#"
[topology]
kind = "single"
hosts = 2
[server]
frequency = "100GHz"
[server.nic]
dma-latency = "0ps"
interrupt-gap = "0ps"
[server.kernel]
idle-exit = "0ps"
timer-slack = "0ps"
sockets = { receive = "64MiB" }
noise = { tick = "0Hz", gap = { kind = "constant", value = 0 } }
[application]
kind = "echo"
datagrams = 20000
"#;

/// Mean service: 10 us.
const SERVICE: f64 = 1e6;
/// Runs with other random numbers.
const SEEDS: u64 = 12;

/// Returns the mean latency in services, and its standard error.
fn mean_latency(service: &str, load: f64) -> (f64, f64) {
    let mut config = config(SERVER);
    config.server.kernel.values.costs_mut().into_iter().for_each(|(_, cost)| *cost = 0);
    let Application::Echo(echo) = &mut config.application else { panic!() };
    echo.service = match service {
        "constant" => Distribution::Constant { value: SERVICE },
        _ => Distribution::Exponential { mean: SERVICE },
    };
    if load > 0.0 {
        echo.gap = Distribution::Exponential { mean: 10.0 / load };
    }
    let means: Vec<f64> = (0..SEEDS)
        .map(|seed| {
            let outcome = ran(&Config { seed, ..config.clone() }, 1).outcome();
            assert_eq!((outcome.counts["done"], outcome.counts["failed"]), (20_000, 0));
            outcome.value("latency.mean").unwrap().0 / 10.0
        })
        .collect();
    let mean = means.iter().sum::<f64>() / SEEDS as f64;
    let squares = means.iter().map(|one| (one - mean).powi(2)).sum::<f64>();
    (mean, (squares / (SEEDS * (SEEDS - 1)) as f64).sqrt())
}

/// The mean wait of M/G/1 is ρ (1 + c²) / 2(1 - ρ) services, with a coefficient of variation c of 1 for
/// M/M/1 and 0 for M/D/1 (Pollaczek and Khinchine). A closed loop waits for nothing.
#[test]
fn waits_agree_with_theory() {
    for (service, variation) in [("constant", 0.0), ("exponential", 1.0)] {
        let (alone, alone_error) = mean_latency(service, 0.0);
        for load in [0.3, 0.6, 0.8] {
            let theory = load * (1.0 + variation) / (2.0 * (1.0 - load));
            let (mean, error) = mean_latency(service, load);
            let (wait, error) = (mean - alone, error.hypot(alone_error));
            let is_near = (wait - theory).abs() < 4.0 * error + 0.002;
            assert!(is_near, "{service}, {load}: {wait} ± {error}, not {theory}");
            assert!(error < 0.05 * theory, "{load}: an error of {error} proves little");
        }
    }
}

#[test]
fn lost_datagrams_are_given_up() {
    let mut config = config(SERVER);
    config.server.kernel.values.sockets.receive = venice_simkernel::units::Bytes(4096);
    let Application::Echo(echo) = &mut config.application else { panic!() };
    echo.service = Distribution::Constant { value: SERVICE };
    // Twice what the server can do.
    echo.gap = Distribution::Exponential { mean: 5.0 };
    let outcome = ran(&config, 1).outcome();
    let (done, failed) = (outcome.counts["done"], outcome.counts["failed"]);
    assert_eq!(done + failed, 20_000);
    assert_eq!(failed, outcome.counts["drops.socket_buffer"]);
    assert!((8_000..12_000).contains(&done), "{done}");
}
