//! iperf3: throughput of one stream over the wire.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::not_installed;
use super::pair::{Pair, Place, free_port};
use crate::channels::measure::{Effort, Ends, median};
use crate::channels::path::Path;
use crate::channels::series::{Medium, Operation, Point, Series, System};

/// iperf3's own default for TCP: bytes of one write.
const BLOCK_BYTES: u64 = 128 << 10;
/// The largest datagram of Venice: a header and a page.
const DATAGRAM_BYTES: u64 = 4160;

/// Runs TCP with iperf3's defaults, and UDP in datagrams of Venice's size.
pub(in crate::channels) fn iperf3(effort: &Effort, ends: Ends, path: &Path) -> Result<Vec<Series>> {
    let series =
        |variant: &str| Series::new(System::Iperf3, Medium::Udp, Operation::Stream, variant);
    if let Some(reason) = not_installed("iperf3") {
        return Ok(vec![series("TCP").absent(reason.clone()), series("UDP").absent(reason)]);
    }
    let datagram = DATAGRAM_BYTES.to_string();
    let kinds = [
        ("TCP", BLOCK_BYTES, vec![]),
        ("UDP", DATAGRAM_BYTES, vec!["--udp", "--bitrate", "0", "--length", &datagram]),
    ];
    let mut found = Vec::new();
    for (variant, size_bytes, arguments) in kinds {
        let mut rates = Vec::new();
        let mut failed = None;
        for _ in 0..effort.repetitions {
            match stream(ends, path, &arguments) {
                Ok(rate) => rates.push(rate),
                Err(error) => failed = Some(format!("failed: {error:#}")),
            }
            venice_measure::interrupt::check()?;
        }
        let mut series = series(variant);
        series.absent = failed;
        if !rates.is_empty() {
            let bandwidth_bytes_per_s = Some(median(rates));
            series.points.push(Point { size_bytes, latency: None, bandwidth_bytes_per_s });
        }
        found.push(series);
    }
    Ok(found)
}

/// Measures the throughput of one TCP stream, in bytes per second.
///
/// # Errors
/// When iperf3 fails.
pub(in crate::channels) fn iperf3_tcp(ends: Ends, path: &Path) -> Result<f64> {
    stream(ends, path, &[])
}

fn stream(ends: Ends, path: &Path, arguments: &[&str]) -> Result<f64> {
    let port = free_port()?.to_string();
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let far = path.far().to_string();
    let mut client = own(&["--client", &far, "--port", &port, "--time", "1", "--json"]);
    client.extend(own(arguments));
    let pair = Pair {
        program: "iperf3",
        server: own(&["--server", "--one-off", "--port", &port]),
        client,
        ..Pair::default()
    };
    parse_iperf3(&pair.run(Place { path: Some(path), ends, limit: Duration::from_secs(20) })?)
}

/// Parses the received bytes per second.
fn parse_iperf3(text: &str) -> Result<f64> {
    let report: Value = serde_json::from_str(text).context("iperf3 gave no JSON")?;
    if let Some(error) = report["error"].as_str() {
        anyhow::bail!("iperf3: {error}");
    }
    // A UDP client computes the received bytes from its sum's loss; a TCP client has the receiver's
    // sum.
    let end = &report["end"];
    let rate = |sum: &Value| sum["bits_per_second"].as_f64();
    let bits = rate(&end["sum_received"])
        .filter(|bits| *bits > 0.0)
        .or_else(|| {
            let lost = end["sum"]["lost_percent"].as_f64()?;
            Some(rate(&end["sum"])? * (1.0 - lost / 100.0))
        })
        .context("iperf3's report has no sum of the received bytes")?;
    Ok(bits / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_are_parsed() {
        let tcp = r#"{"start":{},"end":{"sum_sent":{"bits_per_second":2.0e10},
            "sum_received":{"bits_per_second":19546286180.353775}}}"#;
        assert_eq!(parse_iperf3(tcp).unwrap().round(), 2_443_285_773.0);
        let udp = r#"{"end":{"sum":{"bits_per_second":8.0e9,"lost_percent":25.0}}}"#;
        assert_eq!(parse_iperf3(udp).unwrap(), 7.5e8);
    }

    #[test]
    fn errors_are_reported() {
        let refused = r#"{"start":{},"end":{},"error":"unable to connect to server"}"#;
        assert!(parse_iperf3(refused).unwrap_err().to_string().contains("unable to connect"));
        assert!(parse_iperf3("{\"end\":{}}").is_err());
        assert!(parse_iperf3("iperf3: command line").is_err());
    }
}
