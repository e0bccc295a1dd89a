//! `echo` as a twin in virtual time: the same answers as the real host, at the times of the model.

use std::collections::{BTreeMap, VecDeque};

use venice_service::wire::{BatchKind, BatchWriter, Entry, Hello, Message};
use venice_service::{
    ConnectionId, DeviceModel, Emulated, HostConnections, HostSpec, Service, echo,
};
use venice_testkit::random::SplitMix64;

use crate::common::{Fixture, SECRET, connect};

const CONNECTION: ConnectionId = ConnectionId(0);

/// A recipient and the connections of a host, at the two ends of a link with a delay.
struct World<S> {
    connections: HostConnections<S>,
    link_ns: u64,
    now_ns: u64,
    /// Messages on their way, by time of arrival.
    to_host: BTreeMap<u64, VecDeque<Vec<u8>>>,
    to_recipient: BTreeMap<u64, VecDeque<Vec<u8>>>,
    /// Status and payload of each answer, with its time.
    answers: BTreeMap<u64, (u64, u16, Vec<u8>)>,
}

impl<S: Service> World<S> {
    fn new(service: S, link_ns: u64) -> Self {
        let mut world = Self {
            connections: HostConnections::new(service, SECRET, 1),
            link_ns,
            now_ns: 0,
            to_host: BTreeMap::new(),
            to_recipient: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        world.connections.handle_connect(0, CONNECTION);
        let mut hello = Vec::new();
        let service = world.connections.service().name();
        Message::Hello(Hello { version: 1, secret: SECRET, service }).emit(&mut hello);
        world.send(hello);
        world.run();
        world
    }

    fn send(&mut self, message: Vec<u8>) {
        self.to_host.entry(self.now_ns + self.link_ns).or_default().push_back(message);
    }

    /// Lets time pass until nothing is under way.
    fn run(&mut self) {
        loop {
            self.connections.handle_timeout(self.now_ns);
            self.connections.collect_answers(self.now_ns);
            while let Some(message) = self.connections.poll_message(CONNECTION) {
                let message = message.to_vec();
                self.connections.handle_sent(CONNECTION);
                let at_ns = self.now_ns + self.link_ns;
                self.to_recipient.entry(at_ns).or_default().push_back(message);
            }
            let next = [&self.to_host, &self.to_recipient]
                .into_iter()
                .filter_map(|messages| messages.first_key_value().map(|(at_ns, _)| *at_ns))
                .chain(self.connections.poll_timeout())
                .min();
            let Some(at_ns) = next else { return };
            self.now_ns = self.now_ns.max(at_ns);
            for message in self.to_host.remove(&at_ns).into_iter().flatten() {
                self.connections.handle_message(self.now_ns, CONNECTION, &message);
            }
            for message in self.to_recipient.remove(&at_ns).into_iter().flatten() {
                self.take_answers(&message);
            }
        }
    }

    fn take_answers(&mut self, message: &[u8]) {
        match Message::parse(message).unwrap() {
            Message::Answers(batch) => {
                for Entry { id, code, payload } in batch.entries() {
                    let answer = (self.now_ns, code, payload.to_vec());
                    assert!(self.answers.insert(id, answer).is_none(), "{id} answered twice");
                }
            }
            Message::Welcome(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Requests of a seed, in batches that may be outstanding together.
fn requests(seed: u64) -> Vec<Vec<(u64, u16, Vec<u8>)>> {
    let mut random = SplitMix64(seed);
    let mut id = 0;
    let mut request = |random: &mut SplitMix64| {
        id += 1 + random.below(1000);
        let len = random.below(2000) as usize;
        (id, random.below(4) as u16, random.bytes(len))
    };
    (0..20)
        .map(|_| (0..1 + random.clone().below(30)).map(|_| request(&mut random)).collect())
        .collect()
}

#[test]
fn twin_answers_as_the_host() {
    let requests = requests(11);
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let mut client = connect(&endpoints[0], "echo");
    let model = DeviceModel { latency_ns: 70_000, bytes_per_s: 300_000_000 };
    let mut twin = World::new(Emulated::new(echo::Echo::default(), model), 1_000);
    let mut real = BTreeMap::new();
    for batch in &requests {
        let mut message = BatchWriter::new(BatchKind::Requests, 60_000);
        for (id, opcode, payload) in batch {
            assert!(message.push(Entry { id: *id, code: *opcode, payload }));
            client.request(*id, *opcode, payload).unwrap();
        }
        twin.send(message.message().to_vec());
        twin.run();
        client.flush().unwrap();
        let all = real.len() + batch.len();
        while real.len() < all {
            for answer in client.answers().unwrap().entries() {
                real.insert(answer.id, (answer.code, answer.payload.to_vec()));
            }
        }
    }
    let of_twin: BTreeMap<_, _> =
        twin.answers.into_iter().map(|(id, (_, code, payload))| (id, (code, payload))).collect();
    assert_eq!(of_twin, real);
    fixture.end();
}

#[test]
fn twin_takes_the_modelled_time() {
    let model = DeviceModel { latency_ns: 50_000, bytes_per_s: 1_000_000_000 };
    let mut world = World::new(Emulated::new(echo::Echo::default(), model), 2_000);
    let begin_ns = world.now_ns;
    let mut message = BatchWriter::new(BatchKind::Requests, 60_000);
    for id in 0..3 {
        // 500 bytes in and as many out: a microsecond.
        assert!(message.push(Entry { id, code: echo::ECHO, payload: &[0; 500] }));
    }
    world.send(message.message().to_vec());
    world.run();
    let times: Vec<u64> = world.answers.values().map(|(at_ns, _, _)| at_ns - begin_ns).collect();
    // Latencies overlap, bytes do not; the link is passed twice.
    assert_eq!(times, [55_000, 56_000, 57_000]);
}

#[test]
fn virtual_runs_repeat() {
    let run = || {
        let model = DeviceModel { latency_ns: 9_000, bytes_per_s: 50_000_000 };
        let mut world = World::new(Emulated::new(echo::Echo::default(), model), 700);
        for batch in requests(5) {
            let mut message = BatchWriter::new(BatchKind::Requests, 60_000);
            for (id, opcode, payload) in &batch {
                assert!(message.push(Entry { id: *id, code: *opcode, payload }));
            }
            world.send(message.message().to_vec());
            world.run();
        }
        world.answers
    };
    assert_eq!(run(), run());
}
