//! Tests of the choices of an adaptive stream, as a subscriber sees them. Alone in its program: the
//! set of wanted events is computed once for all threads.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;

use tracing_subscriber::EnvFilter;
use venice_fabric::adaptive::ChooserConfig;
use venice_ports::adaptive::{AdaptiveListener, AdaptiveWriter};
use venice_ports::qpair::QPairAddress;

const SERVICE: u32 = 7;
/// Enough for three trials of any duration.
const MOST_SEGMENTS: u64 = 20_000;

/// Output of the subscriber.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn lines(&self) -> Vec<String> {
        let captured = self.0.lock().unwrap();
        String::from_utf8_lossy(&captured).lines().map(str::to_owned).collect()
    }
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn is_debug(line: &&String) -> bool {
    line.contains("DEBUG venice_ports::adaptive: ")
}

#[test]
fn traces_channel_choices() {
    let captured = Captured::default();
    let to = captured.clone();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("venice_ports::adaptive=trace"))
        .with_ansi(false)
        .with_writer(move || to.clone())
        .init();

    let any = QPairAddress::plain_udp("127.0.0.1:0".parse().unwrap());
    let listener = AdaptiveListener::bind(&any, SERVICE).unwrap();
    let address = QPairAddress::plain_udp(listener.local_addr().unwrap());
    let reading = thread::spawn(move || {
        let mut reader = listener.accept(None).unwrap();
        std::io::copy(&mut reader.by_ref(), &mut std::io::sink()).unwrap()
    });
    let mut writer =
        AdaptiveWriter::connect(&address, SERVICE, ChooserConfig::default(), None).unwrap();
    let segments = |writer: &AdaptiveWriter| writer.segments().iter().sum::<u64>();
    let is_judged = |line: &String| line.contains("reason=Best");
    while segments(&writer) % 100 != 99 || !captured.lines().iter().any(is_judged) {
        assert!(
            segments(&writer) < MOST_SEGMENTS,
            "no choice has reason Best: {:#?}",
            captured.lines()
        );
        writer.write_all(&[1; 64]).unwrap();
        writer.flush().unwrap();
    }
    let count = segments(&writer);
    writer.finish().unwrap();
    assert_eq!(reading.join().unwrap(), count * 64);

    let lines = captured.lines();
    assert_eq!(lines.len() as u64, count, "one event for each segment");
    for line in &lines {
        for part in [
            " venice_ports::adaptive: ",
            " for 64 B, Message: ",
            "; each takes ",
            " channel=",
            " reason=",
            " pattern=Message",
            " len_bytes=64",
            " class_bytes=64",
            " in_flight=",
        ] {
            assert!(line.contains(part), "no {part:?} in: {line}");
        }
    }
    let debug: Vec<_> = lines.iter().filter(is_debug).collect();
    assert!(debug[0].contains("reason=Unmeasured"), "{}", debug[0]);
    let best =
        debug.iter().find(|line| is_judged(line)).expect("the end of a trial is logged at debug");
    for field in [" crma_ns=", " rdma_ns=", " qpair_ns="] {
        assert!(best.contains(field), "all three were measured: {best}");
    }
    assert!(debug.len() < lines.len() / 2, "a repeated choice is logged at trace: {debug:#?}");
}
