//! `venice-soak --port shm|udp [--seconds N] [--seed N] [--report FILE]`: the data-integrity soak
//! of `make soak`. Exit code 0: no byte was wrong. `VENICE_BIN` names the `venice` binary under
//! test.
#![forbid(unsafe_code)]

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use venice_e2e::programs::Port;
use venice_e2e::programs::soak::{Plan, soak};

const USAGE: &str = "usage: venice-soak --port shm|udp [--seconds N] [--seed N] [--report FILE]";

fn main() -> std::process::ExitCode {
    let Some((plan, report)) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return 2.into();
    };
    let Plan { port, seed, lasting } = plan;
    println!("soak: --port {port} --seconds {} --seed {seed}", lasting.as_secs());
    let began = Instant::now();
    let outcome = soak(plan, |what| println!("soak: {:>5} s: {what}", began.elapsed().as_secs()));
    println!("{outcome}");
    let Some(path) = report else { return 0.into() };
    let file = std::fs::File::options().create(true).append(true).open(&path);
    match file.and_then(|mut file| writeln!(file, "{outcome}\n")) {
        Ok(()) => 0.into(),
        Err(error) => {
            eprintln!("venice-soak: {path}: {error}");
            1.into()
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<(Plan, Option<String>)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let mut plan =
        Plan { port: Port::Shm, seed: now.as_nanos() as u64, lasting: Duration::from_secs(3600) };
    let mut report = None;
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--port" if value == "shm" => plan.port = Port::Shm,
            "--port" if value == "udp" => plan.port = Port::Udp,
            "--seconds" => plan.lasting = Duration::from_secs(value.parse().ok()?),
            "--seed" => plan.seed = value.parse().ok()?,
            "--report" => report = Some(value),
            _ => return None,
        }
    }
    Some((plan, report))
}
