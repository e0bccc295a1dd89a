//! A peer may send anything: no segment makes a connection panic, or send for ever.

use proptest::prelude::*;
use venice_tcp::{Config, Congestion, Connection, Flags, SackBlocks, Segment, Timestamps};

/// A number near one that means something: an offset, or anything at all.
fn near() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..30_000u32,
        2 => (0..3_000u32).prop_map(|offset| offset.wrapping_neg()),
        1 => any::<u32>(),
    ]
}

/// A segment whose numbers are offsets.
fn any_segment() -> impl Strategy<Value = Segment> {
    let flags = prop_oneof![
        8 => Just(Flags::ACK.0),
        4 => any::<u16>().prop_map(|flags| flags & !Flags::RST.0 | Flags::ACK.0),
        1 => any::<u16>(),
    ];
    let blocks = prop::collection::vec((near(), near()), 0..4);
    let options = (any::<u16>(), prop::option::of((any::<u32>(), near())), any::<Option<u64>>());
    (near(), near(), near(), near(), flags, blocks, options).prop_map(
        |(seq, ack, len, window, flags, blocks, (mss, timestamps, message))| {
            let mut sack = SackBlocks::default();
            for (first, end) in blocks {
                sack.push(first, end);
            }
            let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            let flags = Flags(flags);
            Segment { seq, ack, len, window, flags, mss, sack, timestamps, message }
        },
    )
}

/// Moves offsets to where the connection is.
fn relative(segment: &Segment, last: &Segment) -> Segment {
    let mut moved = Segment { sack: SackBlocks::default(), ..*segment };
    moved.seq = last.ack.wrapping_add(segment.seq);
    moved.ack = last.seq.wrapping_add(segment.ack);
    for &(first, end) in segment.sack.as_slice() {
        moved.sack.push(last.seq.wrapping_add(first), last.seq.wrapping_add(end));
    }
    moved
}

proptest! {
    #[test]
    fn any_segment_is_survived(
        segments in prop::collection::vec((any_segment(), 0..400_000_000u64, any::<bool>()), 1..60),
        preset in 0..4usize,
        congestion in prop_oneof![Just(Congestion::Cubic), Just(Congestion::Dctcp)],
        isn in any::<u32>(),
    ) {
        let base = [Config::linux_2_6_39(), Config::linux_3_5(), Config::linux_today(), Config::rfc()];
        let config = Config { congestion, ecn: true, ..base[preset].clone() };
        let mut connection = Connection::connect(isn, &config);
        let mut now = 1;
        let syn = connection.poll_transmit(now, &config).expect("a SYN");
        let answer = Segment {
            seq: 77,
            ack: syn.seq.wrapping_add(1),
            flags: Flags::SYN.with(Flags::ACK).with(Flags::ECE).with(Flags::SACK_PERMITTED),
            window: 60_000,
            mss: 1_460,
            timestamps: syn.timestamps,
            ..Segment::default()
        };
        connection.handle_segment(now, &config, &answer, false);
        connection.write(40_000, 1, &config);
        let mut last = Segment { seq: isn, ack: 78, ..Segment::default() };
        for (segment, wait, is_marked) in segments {
            for _ in 0..10_000 {
                let Some(sent) = connection.poll_transmit(now, &config) else { break };
                last = sent;
            }
            prop_assert_eq!(connection.poll_transmit(now, &config), None, "it sends for ever");
            now += wait;
            while connection.poll_timeout().is_some_and(|at| at <= now) {
                let at = connection.poll_timeout();
                connection.handle_timeout(now, &config);
                while connection.poll_transmit(now, &config).is_some() {}
                prop_assert_ne!(connection.poll_timeout(), at, "its timer stands still");
            }
            connection.handle_segment(now, &config, &relative(&segment, &last), is_marked);
            connection.read(u32::MAX, &config);
            connection.write(500, 2, &config);
        }
    }
}
