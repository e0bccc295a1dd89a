//! The order of segments under chosen losses, beside that of Linux: `tests/linux/record.py` made the
//! traces.

use venice_tcp::{Config, Congestion};

use crate::pair::Pair;

const MS: u64 = 1_000_000;

/// Linux pushes after each half of the greatest window so far, here of 64 KiB, and a receiver acknowledges
/// what was pushed once it is read: messages of as many segments.
const PUSHED: u32 = 33;

/// A recorded transfer.
struct Trace {
    segments: u32,
    dropped: Vec<u64>,
    marked: Vec<u64>,
    config: Config,
    /// Microseconds and numbers of segments.
    sent: Vec<(u64, u32)>,
}

fn parse(text: &str) -> Trace {
    let mut config = Config { nagle: false, mss: 1_012, ..Config::linux_today() };
    config.rto.granularity_ns = 4 * MS;
    let mut trace =
        Trace { segments: 0, dropped: Vec::new(), marked: Vec::new(), config, sent: Vec::new() };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let config = &mut trace.config;
        match key {
            "segments" => trace.segments = value.parse().expect("a number"),
            "dropped" => trace.dropped = numbers(value),
            "marked" => trace.marked = numbers(value),
            "tcp_ecn" => config.ecn = value == "1",
            "tcp_frto" => {}
            "congestion" => {
                config.congestion = match value {
                    "reno" => Congestion::NewReno,
                    "cubic" => Congestion::Cubic,
                    other => panic!("{other}"),
                }
            }
            "tcp_early_retrans" => config.tail_loss_probe = value != "0",
            "tcp_sack" => config.sack = value != "0",
            "tcp_timestamps" => {
                config.timestamps = value != "0";
                config.mss = 1_000;
            }
            at => trace
                .sent
                .push((at.parse().expect("microseconds"), value.parse().expect("a number"))),
        }
    }
    trace
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|n| n.parse().expect("a number")).collect()
}

fn ours(trace: &Trace) -> Vec<(u64, u32)> {
    let mut pair = Pair::new([trace.config.clone(), trace.config.clone()], 99, 1);
    pair.delay = 10 * MS;
    pair.run();
    pair.now += 200 * MS;
    pair.clear_log();
    pair.drop_data(&trace.dropped);
    pair.mark_data(&trace.marked);
    let mut rest = trace.segments;
    while rest > 0 {
        let part = rest.min(PUSHED);
        pair.queue(0, part * 1_000);
        rest -= part;
    }
    pair.flush(0);
    pair.run();
    let start = pair.sent_at;
    pair.numbered(0).into_iter().map(|(at, number)| ((at - start) / 1_000, number)).collect()
}

/// Returns the waits of more than 100 ms, with the index of the segment that ended each: time-outs.
fn waits(sent: &[(u64, u32)]) -> Vec<(usize, u64)> {
    let gaps = sent.windows(2).map(|pair| pair[1].0 - pair[0].0);
    gaps.enumerate().filter(|(_, gap)| *gap > 100_000).collect()
}

/// Compares the order, and that time-outs come at the same places and are as long: to an eighth, of
/// which the ticks and the machine of the record need most.
#[test]
fn order_is_that_of_linux() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/linux");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).expect("the traces") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_string_lossy();
        let trace = parse(&std::fs::read_to_string(&path).expect("a trace"));
        let ours = ours(&trace);
        let [mine, theirs] =
            [&ours, &trace.sent].map(|sent| sent.iter().map(|(_, n)| *n).collect::<Vec<_>>());
        assert_eq!(mine, theirs, "{name}");
        let [mine, theirs] = [&ours, &trace.sent].map(|sent| waits(sent));
        assert_eq!(mine.len(), theirs.len(), "{name}");
        for ((at, wait), (their_at, their_wait)) in mine.into_iter().zip(theirs) {
            assert_eq!(at, their_at, "{name}");
            assert!(wait.abs_diff(their_wait) <= their_wait / 8, "{name}: {wait} {their_wait}");
        }
        compared += 1;
    }
    assert!(compared >= 30, "{compared}");
}
