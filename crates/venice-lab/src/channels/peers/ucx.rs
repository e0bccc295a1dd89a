//! UCX's `ucx_perftest`: one-sided accesses, atomics and messages, all cases in one batch.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use super::not_installed;
use super::pair::{Pair, Place, free_port};
use crate::channels::measure::{Effort, Ends};
use crate::channels::path::Path;
use crate::channels::series::{Latency, Medium, Operation, Point, Series, System};
use venice_measure::interrupt;

/// Transports by UCX's names.
const TRANSPORTS: [(Medium, &str); 3] =
    [(Medium::Shm, "posix"), (Medium::Shm, "sysv"), (Medium::Udp, "tcp")];

/// CRMA carries up to a page; larger accesses are compared with RDMA.
const PAGE_BYTES: u64 = 4096;

/// A test of latency and one of bandwidth, with Venice's operation that they are compared with.
struct Test {
    operation: Operation,
    name: &'static str,
    latency: &'static str,
    bandwidth: &'static str,
}

const TESTS: [Test; 7] = [
    test(Operation::Read, "ucp_get", "ucp_get -O 1", "ucp_get -O 32"),
    test(Operation::Write, "ucp_put", "ucp_put_lat", "ucp_put_bw -O 32"),
    test(Operation::Atomic, "ucp_fadd", "ucp_fadd -O 1", "ucp_fadd -O 32"),
    test(Operation::BulkRead, "ucp_get", "ucp_get -O 1", "ucp_get -O 32"),
    test(Operation::BulkWrite, "ucp_put", "ucp_put_lat", "ucp_put_bw -O 32"),
    test(Operation::Message, "tag", "tag_lat", "tag_bw -O 32"),
    test(Operation::Message, "ucp_am", "ucp_am_lat", "ucp_am_bw -O 32"),
];

const fn test(
    operation: Operation,
    name: &'static str,
    latency: &'static str,
    bandwidth: &'static str,
) -> Test {
    Test { operation, name, latency, bandwidth }
}

impl Test {
    fn carries(&self, size_bytes: u64) -> bool {
        match self.operation {
            Operation::BulkRead | Operation::BulkWrite => size_bytes > PAGE_BYTES,
            operation => operation.carries(size_bytes),
        }
    }
}

/// Runs every test by size over each transport that fits `media`.
///
/// # Errors
/// On an interrupt only: a transport's failure is recorded in its series.
pub(in crate::channels) fn ucx(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    media: &[Medium],
    sizes: &[u64],
    mut done: impl FnMut(),
) -> Result<Vec<Series>> {
    let mut found = Vec::new();
    for (medium, transport) in TRANSPORTS.into_iter().filter(|(medium, _)| media.contains(medium)) {
        let mut every = of_transport(medium, transport, sizes);
        if let Some(reason) = not_installed("ucx_perftest") {
            every.iter_mut().for_each(|case| case.series.absent = Some(reason.clone()));
        } else {
            measure(effort, ends, path, transport, &mut every);
        }
        found.extend(every.into_iter().map(|case| case.series));
        interrupt::check()?;
        done();
    }
    Ok(found)
}

/// A test of one transport, and its series.
struct Case {
    test: &'static Test,
    /// Its number in the batch.
    number: usize,
    sizes: Vec<u64>,
    series: Series,
}

fn of_transport(medium: Medium, transport: &str, sizes: &[u64]) -> Vec<Case> {
    let case = |(number, test): (usize, &'static Test)| {
        let sizes = if test.operation == Operation::Atomic { &[8] } else { sizes };
        let sizes = sizes.iter().copied().filter(|size| test.carries(*size)).collect();
        let variant = format!("{transport} {}", test.name);
        let series = Series::new(System::Ucx, medium, test.operation, &variant);
        Case { test, number, sizes, series }
    };
    TESTS.iter().enumerate().map(case).filter(|case| !case.sizes.is_empty()).collect()
}

/// Runs all cases in one batch; a case that did not run records the reason.
fn measure(effort: &Effort, ends: Ends, path: &Path, transport: &str, cases: &mut [Case]) {
    let Some(first) = cases.first() else { return };
    let path = (first.series.medium == Medium::Udp).then_some(path);
    let lines: String = cases.iter().map(|case| case.lines(effort)).collect();
    let (said, ended) =
        batch(ends, path, transport, &lines).unwrap_or_else(|error| (String::new(), Err(error)));
    let rows = parse_perftest(&said);
    for case in cases {
        let points = case.sizes.iter().filter_map(|size| point(&rows, case.number, *size));
        case.series.points = points.collect();
        if case.series.points.len() < case.sizes.len() {
            let reason = match &ended {
                Ok(()) => format!("no figures for some sizes: {}", last_line(&said)),
                Err(error) => format!("failed: {error:#}"),
            };
            case.series.absent = Some(reason);
        }
    }
}

impl Case {
    /// Builds the lines of a batch file: for each size the median, the 99th percentile and the
    /// bandwidth.
    fn lines(&self, effort: &Effort) -> String {
        let mut text = String::new();
        let test = self.test;
        for &size_bytes in &self.sizes {
            let count = count(effort, self.series.medium, size_bytes);
            let common = format!("-s {size_bytes} -n {count} -w {}", (count / 10).max(2));
            for (kind, arguments) in [
                ("p50", test.latency.to_owned()),
                ("p99", format!("{} -R 99", test.latency)),
                ("bw", test.bandwidth.to_owned()),
            ] {
                text += &format!("{}.{size_bytes}.{kind} -t {arguments} {common}\n", self.number);
            }
        }
        text
    }
}

/// Chooses iterations for about the duration of one of Venice's repetitions.
fn count(effort: &Effort, medium: Medium, size_bytes: u64) -> u64 {
    let (each_ns, bytes_per_ns) = if medium == Medium::Shm { (400, 8) } else { (60_000, 2) };
    let once_ns = each_ns + size_bytes / bytes_per_ns;
    (effort.length.as_nanos() as u64 / once_ns).clamp(8, 200_000)
}

fn last_line(said: &str) -> &str {
    said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output")
}

fn batch(
    ends: Ends,
    path: Option<&Path>,
    transport: &str,
    cases: &str,
) -> Result<(String, Result<()>)> {
    let mut file = NamedTempFile::with_prefix("venice-bench-ucx-").context("no temporary file")?;
    file.write_all(cases.as_bytes()).context("cannot write the batch")?;
    let port = free_port()?.to_string();
    let batch = file.path().display().to_string();
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let far = path.map_or("127.0.0.1".to_owned(), |path| path.far().to_string());
    let devices = path.map_or(("lo", "lo"), Path::devices);
    let environment = |device: &str| {
        vec![
            ("UCX_TLS", format!("{transport},self")),
            ("UCX_NET_DEVICES", device.to_owned()),
            ("UCX_LOG_LEVEL", "error".to_owned()),
        ]
    };
    let pair = Pair {
        program: "ucx_perftest",
        server: own(&["-p", &port, "-b", &batch, "-f"]),
        client: own(&[&far, "-p", &port, "-b", &batch, "-v"]),
        environment: [environment(devices.0), environment(devices.1)],
    };
    pair.run_as_far_as_it_goes(Place { path, ends, limit: Duration::from_secs(180) })
}

/// One line of `ucx_perftest -v` in a batch.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    /// Case's name in the batch; the batch file's own name may precede it.
    name: String,
    percentile_us: f64,
    average_us: f64,
    bytes_per_s: f64,
}

/// Parses the columns: names, iterations, a percentile, average and overall latency in µs, average
/// and overall bandwidth in MiB/s, average and overall rate.
fn parse_perftest(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split(',').map(str::trim).collect();
        let (names, figures) = columns.split_at(columns.len().checked_sub(8)?);
        let figure = |at: usize| figures[at].parse::<f64>().ok();
        Some(Row {
            name: (*names.last()?).to_owned(),
            percentile_us: figure(1)?,
            average_us: figure(3)?,
            bytes_per_s: figure(5)? * f64::from(1 << 20),
        })
    };
    text.lines().filter_map(row).collect()
}

fn point(rows: &[Row], number: usize, size_bytes: u64) -> Option<Point> {
    let find = |kind: &str| {
        let name = format!("{number}.{size_bytes}.{kind}");
        rows.iter().find(|row| row.name == name)
    };
    let (middle, tail, bandwidth) = (find("p50")?, find("p99")?, find("bw")?);
    Some(Point {
        size_bytes,
        latency: Some(Latency {
            mean_ns: middle.average_us * 1e3,
            p50_ns: Some(middle.percentile_us * 1e3),
            p99_ns: Some(tail.percentile_us * 1e3),
        }),
        bandwidth_bytes_per_s: Some(bandwidth.bytes_per_s),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
b1,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
0.64.p50,20000,0.055,0.056,0.056,1099.30,1099.30,18010967,18010967
0.64.p99,20000,0.121,0.056,0.056,1099.30,1099.30,18010967,18010967
0.64.bw,5000,0.180,9.221,9.221,6778.02,6778.02,108448,108448
0.4096.p50,5000,0.180,9.221,9.221,6778.02,6778.02,108448,108448
[1795304328.1] [vm:1] perftest.c:123 UCX  ERROR something, with, commas, in, it, and, more, of, them
";

    #[test]
    fn figures_are_parsed_and_noise_ignored() {
        let rows = parse_perftest(SAID);
        assert_eq!(rows.len(), 4);
        let found = point(&rows, 0, 64).unwrap();
        let latency = found.latency.unwrap();
        assert_eq!((latency.p50_ns, latency.p99_ns), (Some(55.0), Some(121.0)));
        assert_eq!(latency.mean_ns, 56.0);
        assert_eq!(found.bandwidth_bytes_per_s.unwrap().round(), 7_107_269_100.0);
        // Only half of its cases ran.
        assert_eq!(point(&rows, 0, 4096), None);
        assert!(parse_perftest("").is_empty());
    }

    #[test]
    fn each_size_has_three_lines() {
        let cases = of_transport(Medium::Shm, "posix", &[64, 4096]);
        // Bulk operations start above a page: none here.
        assert_eq!(cases.len(), 5);
        let text = cases[0].lines(&Effort::quick());
        assert_eq!(text.lines().count(), 6);
        assert!(text.starts_with("0.64.p50 -t ucp_get -O 1 -s 64 -n "), "{text}");
    }
}
