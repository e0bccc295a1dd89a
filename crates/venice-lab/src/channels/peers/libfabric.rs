//! libfabric's `fi_pingpong`, the one benchmark that Debian packages: round trips of messages.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::not_installed;
use super::pair::{Pair, Place, free_port};
use crate::channels::measure::{Effort, Ends};
use crate::channels::path::Path;
use crate::channels::series::{Latency, Medium, Operation, Point, Series, System};
use venice_measure::interrupt;

/// Providers and kinds of endpoint, as `fi_pingpong` calls them.
const KINDS: [(Medium, &str, &str); 3] =
    [(Medium::Shm, "shm", "rdm"), (Medium::Udp, "tcp", "rdm"), (Medium::Udp, "tcp", "msg")];

/// Measures messages by size over each provider that fits `media`.
///
/// # Errors
/// On an interrupt only: a provider's failure is recorded in its series.
pub(in crate::channels) fn libfabric(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    media: &[Medium],
    sizes: &[u64],
    mut done: impl FnMut(),
) -> Result<Vec<Series>> {
    let mut found = Vec::new();
    for (medium, provider, kind) in KINDS {
        if !media.contains(&medium) {
            continue;
        }
        let variant = format!("{provider} {kind}");
        let mut series = Series::new(System::Libfabric, medium, Operation::Message, &variant);
        series.absent = not_installed("fi_pingpong");
        let sizes = if series.absent.is_some() { &[] } else { sizes };
        for &size_bytes in sizes {
            let path = (medium == Medium::Udp).then_some(path);
            match ping_pong(effort, ends, path, (provider, kind), size_bytes) {
                Ok(latency) => series.points.push(Point {
                    size_bytes,
                    latency: Some(latency),
                    bandwidth_bytes_per_s: None,
                }),
                Err(error) => series.absent = Some(format!("failed: {error:#}")),
            }
            interrupt::check()?;
            done();
        }
        found.push(series);
    }
    Ok(found)
}

fn ping_pong(
    effort: &Effort,
    ends: Ends,
    path: Option<&Path>,
    (provider, kind): (&str, &str),
    size_bytes: u64,
) -> Result<Latency> {
    let rounds = rounds(effort, provider, size_bytes);
    let port = free_port()?.to_string();
    let arguments = |port_flag: &str| -> Vec<String> {
        let fixed = ["-p", provider, "-e", kind, port_flag, &port];
        let sized = ["-S".to_owned(), size_bytes.to_string(), "-I".to_owned(), rounds.to_string()];
        fixed.iter().map(|text| (*text).to_owned()).chain(sized).collect()
    };
    let far = path.map_or("127.0.0.1".to_owned(), |path| path.far().to_string());
    let mut client = arguments("-P");
    client.push(far);
    let pair = Pair { program: "fi_pingpong", server: arguments("-B"), client, ..Pair::default() };
    let said = pair.run(Place { path, ends, limit: Duration::from_secs(30) })?;
    Ok(Latency { mean_ns: parse_pingpong(&said, size_bytes)?, p50_ns: None, p99_ns: None })
}

/// Chooses rounds for about the duration of one of Venice's repetitions; messages of 16 MiB are
/// few.
fn rounds(effort: &Effort, provider: &str, size_bytes: u64) -> u64 {
    let (each_ns, bytes_per_ns) = if provider == "shm" { (1_000, 4) } else { (25_000, 1) };
    let round_ns = 2 * (each_ns + size_bytes / bytes_per_ns);
    let length_ns = effort.length.as_nanos() as u64 * effort.repetitions as u64;
    (length_ns / round_ns).clamp(8, 100_000)
}

/// Parses the mean nanoseconds of one way. The last line holds, in this order: bytes, sent,
/// acknowledged, total, time, MB/s, µs a transfer, millions of transfers a second.
fn parse_pingpong(text: &str, size_bytes: u64) -> Result<f64> {
    let row: Vec<&str> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .rfind(|words| {
            words.len() == 8 && words[0].starts_with(|first: char| first.is_ascii_digit())
        })
        .with_context(|| format!("fi_pingpong printed no figures: {}", text.trim()))?;
    let bytes = with_suffix(row[0]).context("fi_pingpong's size cannot be read")?;
    if bytes != size_bytes {
        bail!("fi_pingpong measured {bytes} bytes instead of {size_bytes}");
    }
    let micros: f64 = row[6].parse().with_context(|| format!("{:?} is not a time", row[6]))?;
    Ok((micros * 1e3).round())
}

/// Parses `64`, `4k`, `1.5k`, `16m`.
fn with_suffix(text: &str) -> Option<u64> {
    let (digits, scale) = match text.char_indices().last()? {
        (at, 'k') => (&text[..at], 1u64 << 10),
        (at, 'm') => (&text[..at], 1 << 20),
        (at, 'g') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    Some((digits.parse::<f64>().ok()? * scale as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      2k      =2k      250k        0.07s      3.42      18.71       0.05
";

    #[test]
    fn one_way_times_are_parsed() {
        assert_eq!(parse_pingpong(SAID, 64).unwrap(), 18_710.0);
        let large = "warning: something\n16m  8  =8  256m  0.53s  506.91   33096.81  0.00\n";
        assert_eq!(parse_pingpong(large, 16 << 20).unwrap(), 33_096_810.0);
    }

    #[test]
    fn missing_figures_are_an_error() {
        for (said, size_bytes) in [("", 64), ("fi_getinfo(): No data available", 64), (SAID, 128)] {
            assert!(parse_pingpong(said, size_bytes).is_err(), "{said}");
        }
    }

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(with_suffix("1.5k"), Some(1536));
        assert_eq!(with_suffix("768"), Some(768));
        assert_eq!(with_suffix("x"), None);
    }
}
