//! Any messages of several recipients to the connections of a service host: none panics, nobody is
//! admitted without the secret, and every answer has a request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use venice_service::wire::{Hello, Message};
use venice_service::{ConnectionId, HostConnections, ServiceSecret, echo};

const SECRET: ServiceSecret = ServiceSecret::from_bytes([7; 32]);

// Each step: a connection (the lower two bits), an act, and the length of the message that follows.
fuzz_target!(|steps: &[u8]| {
    let mut connections = HostConnections::new(echo::Echo::default(), SECRET, 2);
    let (mut rest, mut now_ns) = (steps, 0);
    let mut out = Vec::new();
    while let Some((&[step, len], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(usize::from(len).min(after.len()));
        rest = after;
        now_ns += 500_000_000;
        let id = ConnectionId(u64::from(step & 3));
        match step >> 2 & 7 {
            0 => connections.handle_connect(now_ns, id),
            1 => connections.handle_disconnect(now_ns, id),
            2 => {
                let hello = Hello { version: 1, secret: SECRET, service: "echo" };
                Message::Hello(hello).emit(&mut out);
                connections.handle_message(now_ns, id, &out);
            }
            3 => connections.handle_timeout(now_ns),
            _ => {
                round_trip(bytes);
                connections.handle_message(now_ns, id, bytes);
            }
        }
        connections.collect_answers(now_ns);
        if step & 128 == 0 {
            while let Some(message) = connections.poll_message(id) {
                Message::parse(message).expect("a host sends sound messages");
                connections.handle_sent(id);
            }
        }
        while connections.poll_closed().is_some() {}
    }
    let counts = connections.counts();
    assert!(counts.answers <= counts.requests);
});

/// Checks that a message that is read is written back alike, but for bytes that readers ignore.
fn round_trip(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else { return };
    let (mut again, mut once_more) = (Vec::new(), Vec::new());
    message.emit(&mut again);
    assert_eq!(again.len(), bytes.len());
    Message::parse(&again).expect("it was written").emit(&mut once_more);
    assert_eq!(again, once_more);
}
