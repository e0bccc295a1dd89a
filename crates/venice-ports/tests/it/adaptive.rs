//! Tests of adaptive streams as sockets, over rings and udp: every byte comes out once and in
//! order, whichever channel carried its segment.

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use venice_fabric::LinkModel;
use venice_fabric::adaptive::{ChannelKind, ChooserConfig, Pattern, StreamConfig};
use venice_ports::adaptive::{AdaptiveListener, AdaptiveReader, AdaptiveWriter};
use venice_ports::qpair::{QPairAddress, QPairListener, QPairSeal, QPairSocketError};
use venice_ports::seal::{SealedAs, node_key};
use venice_wire::{GrantId, KeyName, NodeSecret};

const SERVICE: u32 = 7;
const STREAM_BYTES: usize = 4 << 20;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
/// Trials frequent enough to give each channel some.
const CURIOUS: ChooserConfig = ChooserConfig {
    explore_percent: 5,
    seed: 0,
    min_samples: 4,
    margin_percent: 5,
    hopeless_factor: 4,
};

/// Returns the byte at a position of the stream.
fn byte_at(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ at as u8
}

/// A listener and its address.
struct Place {
    listener: AdaptiveListener,
    address: QPairAddress,
    _dir: tempfile::TempDir,
}

impl Place {
    fn lay(bind: impl FnOnce(&std::path::Path) -> QPairAddress) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut address = bind(&dir.path().join("stream.sock"));
        let listener = AdaptiveListener::bind(&address, SERVICE).unwrap();
        if let QPairAddress::Udp { address, .. } = &mut address {
            *address = listener.local_addr().unwrap();
        }
        Self { listener, address, _dir: dir }
    }

    /// Connects both ends of a stream.
    fn connect(&mut self) -> (AdaptiveWriter, AdaptiveReader) {
        let address = self.address.clone();
        let connecting = thread::spawn(move || {
            AdaptiveWriter::connect(&address, SERVICE, CURIOUS, None).unwrap()
        });
        let reader = self.listener.accept(PATIENCE).unwrap();
        let writer = connecting.join().unwrap();
        writer.set_timeout(PATIENCE);
        reader.set_timeout(PATIENCE);
        (writer, reader)
    }
}

fn ring() -> Place {
    Place::lay(|path| QPairAddress::ring(path))
}

fn udp() -> Place {
    Place::lay(|_| QPairAddress::plain_udp("127.0.0.1:0".parse().unwrap()))
}

/// Makes a sealed place: the listener takes keys, the caller one of them.
fn sealed_udp() -> Place {
    const SECRET: NodeSecret = NodeSecret([7; 32]);
    let name = KeyName::Grant(GrantId(9));
    let any = "127.0.0.1:0".parse().unwrap();
    let keys = QPairSeal::Keys(Arc::new(SECRET));
    let mut place = Place::lay(|_| QPairAddress::Udp { address: any, seal: Some(keys) });
    let QPairAddress::Udp { seal, .. } = &mut place.address else { unreachable!() };
    *seal = Some(QPairSeal::As(SealedAs { name, key: node_key(&SECRET, name) }));
    place
}

/// Reads to the end; returns how many bytes.
fn read_all(mut reader: AdaptiveReader) -> usize {
    let (mut read, mut buffer) = (0, vec![0; 100_000]);
    loop {
        let len = reader.read(&mut buffer).unwrap();
        if len == 0 {
            return read;
        }
        let is_right = |(n, byte): (usize, &u8)| *byte == byte_at(read + n);
        assert!(buffer[..len].iter().enumerate().all(is_right), "after byte {read}");
        read += len;
    }
}

/// Writes pieces of all lengths, `STREAM_BYTES` at least and until `is_enough`; returns how many
/// bytes.
fn write_until(writer: &mut AdaptiveWriter, is_enough: impl Fn(&AdaptiveWriter) -> bool) -> usize {
    let mut lens = [64, 700, 4096, 20_000, 65_536].into_iter().cycle();
    let mut written = 0;
    while written < STREAM_BYTES || !is_enough(writer) {
        assert!(written < 64 * STREAM_BYTES, "timed out: {:?}", writer.segments());
        let end = written + lens.next().expect("without end");
        let bytes: Vec<u8> = (written..end).map(byte_at).collect();
        writer.write_all(&bytes).unwrap();
        written = end;
    }
    written
}

fn a_stream(mut place: Place) {
    place.listener.set_config(StreamConfig { inline_bytes: 64 << 10, ..StreamConfig::default() });
    let (mut writer, reader) = place.connect();
    let reading = thread::spawn(move || read_all(reader));
    writer.set_pattern(Pattern::Sequential);
    // The time of each first trial depends on scheduling.
    let has_tried_all = |writer: &AdaptiveWriter| writer.segments().iter().all(|taken| *taken > 0);
    let written = write_until(&mut writer, has_tried_all);
    writer.finish().unwrap();
    assert_eq!(reading.join().unwrap(), written);
    assert!(writer.write(b"more").is_err(), "the writer has finished");
}

#[test]
fn stream_over_rings_uses_all_channels() {
    a_stream(ring());
}

#[test]
fn stream_over_emulated_link() {
    a_stream(Place::lay(|path| QPairAddress::emulated(path, LinkModel::PAPER)));
}

#[test]
fn stream_over_udp() {
    a_stream(udp());
}

#[test]
fn stream_over_sealed_udp() {
    a_stream(sealed_udp());
}

/// Runs several writers at one address, each with a landing region of its own; none ends its stream
/// explicitly.
fn streams_at_once(mut place: Place) {
    // Bytes outstanding at the drop of a writer may be read for seconds; this limits their amount.
    place.listener.set_config(StreamConfig { window_segments: 8, ..StreamConfig::default() });
    let streams: Vec<_> = (0..3).map(|_| place.connect()).collect();
    thread::scope(|scope| {
        for (mut writer, reader) in streams {
            let reading = scope.spawn(move || read_all(reader));
            scope.spawn(move || {
                let written = write_until(&mut writer, |_| true);
                drop(writer);
                assert_eq!(reading.join().unwrap(), written);
            });
        }
    });
}

#[test]
fn concurrent_streams_over_rings() {
    streams_at_once(ring());
}

#[test]
fn concurrent_streams_at_one_udp_address() {
    streams_at_once(udp());
}

/// Landed bytes arrive even if the writer makes no further call: a flush notifies the reader, or
/// the thread that serves the link.
fn check_idle_writer_notifies(mut place: Place) {
    // No room for messages: all segments must land.
    place.listener.set_config(StreamConfig { inline_bytes: 0, ..StreamConfig::default() });
    let (mut writer, mut reader) = place.connect();
    let mut buffer = [0; 64];
    for flushes in [true, false] {
        assert!(matches!(reader.try_read(&mut buffer), Err(QPairSocketError::WouldBlock)));
        writer.write_all(&[5; 50]).unwrap();
        if flushes {
            writer.flush().unwrap();
        }
        reader.read_exact(&mut buffer[..50]).unwrap();
        assert_eq!(buffer[..50], [5; 50]);
    }
    assert_eq!(writer.segments()[ChannelKind::QPair.index()], 0);
}

#[test]
fn idle_writer_notifies_reader() {
    check_idle_writer_notifies(ring());
    check_idle_writer_notifies(udp());
}

#[test]
fn slow_reader_blocks_and_dead_reader_fails() {
    for mut place in [ring(), udp()] {
        let (mut writer, mut reader) = place.connect();
        let (bytes, mut written) = (vec![1; 64 << 10], 0);
        writer.set_timeout(Some(Duration::from_millis(200)));
        let error = loop {
            match writer.write(&bytes) {
                Ok(len) => written += len,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
        assert!(written <= 64 * bytes.len(), "{written} bytes are more than a window");
        let mut read = vec![0; written];
        reader.read_exact(&mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 1));
        writer.set_timeout(PATIENCE);
        writer.write_all(&bytes).unwrap();
        drop(reader);
        while writer.write(&bytes).is_ok() {}
        let error = writer.finish().unwrap_err();
        assert!(!matches!(error, QPairSocketError::TimedOut), "{error}");
    }
}

/// A reader whose writer's process is gone reads the bytes that came, then an error.
#[test]
fn broken_stream_is_not_end() {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::ring(dir.path().join("stream.sock"));
    let listener = AdaptiveListener::bind(&address, SERVICE).unwrap();
    // A peer without adaptive streams: it sends nothing and leaves.
    let other = thread::spawn(move || {
        let options = Default::default();
        venice_ports::qpair::QPairMessages::connect(&address, SERVICE, &options).unwrap()
    });
    let mut reader = listener.accept(PATIENCE).unwrap();
    drop(other.join().unwrap());
    reader.set_timeout(PATIENCE);
    let error = reader.read(&mut [0; 8]).unwrap_err();
    assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
}

/// The reverse: a listener for messages offers no stream.
#[test]
fn connect_rejects_message_listener() {
    let dir = tempfile::tempdir().unwrap();
    let address = QPairAddress::ring(dir.path().join("talk.sock"));
    let listener = QPairListener::bind(&address, SERVICE).unwrap();
    let connecting =
        thread::spawn(move || AdaptiveWriter::connect(&address, SERVICE, CURIOUS, None));
    let accepted = listener.accept_messages(Some(Duration::from_millis(500)));
    assert!(matches!(accepted, Err(QPairSocketError::TimedOut)));
    let error = connecting.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("no listener"), "{error}");
}

/// Polls both descriptors on one thread.
#[test]
fn polls_both_ends() {
    for mut place in [ring(), udp()] {
        let (mut writer, mut reader) = place.connect();
        let stream: Vec<u8> = (0..STREAM_BYTES).map(byte_at).collect();
        let (mut written, mut read, mut buffer) = (0, 0, vec![0; 1 << 16]);
        loop {
            let mut any = false;
            while written < stream.len() {
                match writer.try_write(&stream[written..]) {
                    Ok(len) => (written, any) = (written + len, true),
                    Err(QPairSocketError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
                if written == stream.len() {
                    writer.shutdown().unwrap();
                }
            }
            match reader.try_read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => {
                    assert!(buffer[..len] == stream[read..read + len], "after byte {read}");
                    (read, any) = (read + len, true);
                }
                Err(QPairSocketError::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
            if !any && writer.arm() && reader.arm() {
                let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
                let mut fds =
                    [PollFd::new(&writer, PollFlags::IN), PollFd::new(&reader, PollFlags::IN)];
                assert!(
                    poll(&mut fds, Some(&limit)).unwrap() > 0,
                    "nothing arrived after byte {read}"
                );
            }
            writer.attend();
            reader.attend();
        }
        assert_eq!(read, stream.len());
    }
}

#[test]
fn both_ends_as_futures() {
    for mut place in [ring(), udp()] {
        let (mut writer, mut reader) = place.connect();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        runtime.unwrap().block_on(async {
            let writing = tokio::spawn(async move {
                let stream: Vec<u8> = (0..STREAM_BYTES).map(byte_at).collect();
                let mut written = 0;
                while written < stream.len() {
                    written += writer.write_async(&stream[written..]).await.unwrap();
                }
                writer.flush_async().await.unwrap();
                writer.finish_async().await.unwrap();
            });
            let (mut read, mut buffer) = (0, vec![0; 1 << 16]);
            loop {
                let len = reader.read_async(&mut buffer).await.unwrap();
                if len == 0 {
                    break;
                }
                assert!((0..len).all(|at| buffer[at] == byte_at(read + at)), "after byte {read}");
                read += len;
            }
            assert_eq!(read, STREAM_BYTES);
            writing.await.unwrap();
        });
    }
}
