//! Mailboxes of confined hosts.

use std::time::Duration;

use venice_accel::mailbox::{
    AWAIT, Argument, EmulatedModel, Executable, MailboxError, Mailboxes, ResultCode, Shape,
};
use venice_accel::region::Region;
use venice_rack::types::ServiceAccess;
use venice_service::ServiceClient;
use venice_testkit::random::SplitMix64;

use crate::common::{Fixture, LIMIT, PORTS, Port};

const FAST: &str = "fft+sum+scale@1GB/s";

fn start(fixture: &Fixture, grant: u64, port: Port, options: &str) -> ServiceAccess {
    fixture.start(grant, "mailbox", port, |spec| options.clone_into(&mut spec.options))
}

fn open(access: &ServiceAccess) -> Mailboxes {
    Mailboxes::open(access, LIMIT).unwrap()
}

/// Complex numbers, as bytes.
fn numbers(random: &mut SplitMix64, count: usize) -> Vec<u8> {
    let mut float = || (random.draw() % 2000) as f32 / 1000.0 - 1.0;
    (0..2 * count).flat_map(|_| float().to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    let each = bytes.chunks_exact(4);
    each.map(|it| f64::from(f32::from_le_bytes(it.try_into().unwrap()))).collect()
}

/// Transforms by the definition.
fn transform(input: &[u8], points: usize) -> Vec<f64> {
    let (input, mut output) = (floats(input), Vec::new());
    for batch in input.chunks(2 * points) {
        for k in 0..points {
            let (mut re, mut im) = (0.0, 0.0);
            for (n, number) in batch.chunks_exact(2).enumerate() {
                let (sin, cos) =
                    (-std::f64::consts::TAU * (k * n % points) as f64 / points as f64).sin_cos();
                re += number[0] * cos - number[1] * sin;
                im += number[0] * sin + number[1] * cos;
            }
            output.extend([re, im]);
        }
    }
    output
}

#[test]
fn transforms_are_right() {
    let mut random = SplitMix64(16);
    for port in PORTS {
        let fixture = Fixture::new();
        let access = start(&fixture, 1, port, FAST);
        let mut mailboxes = open(&access);
        assert_eq!(mailboxes.functions(), ["fft", "sum", "scale"]);
        for (points, count) in [(1, 3), (8, 8 * 500), (60, 60 * 3), (256, 512)] {
            let input = numbers(&mut random, count);
            let fft = Executable::built_in("fft").with_number(points as u64);
            let (result, output) = mailboxes.run(&fft, &input, input.len() as u64).unwrap();
            assert_eq!(result.outcome, Ok(input.len() as u64), "{port:?}");
            let model: EmulatedModel = FAST.parse().unwrap();
            assert!(result.time_ns >= model.time_ns(input.len() as u64));
            for (got, expected) in floats(&output).iter().zip(transform(&input, points)) {
                assert!((got - expected).abs() < 1e-3 * points as f64, "{got} {expected}");
            }
        }
        fixture.end(&access);
    }
}

#[test]
fn both_mailboxes_run_in_turn() {
    for port in PORTS {
        let fixture = Fixture::new();
        let mut mailboxes = open(&start(&fixture, 1, port, FAST));
        let sum = Executable::built_in("sum");
        let ones = |count: usize| 1f32.to_le_bytes().repeat(count);
        mailboxes.start(0, &sum, &ones(1), 8).unwrap();
        for round in 1..200usize {
            let (next, done) = ((round % 2) as u32, (round as u32 + 1) % 2);
            mailboxes.start(next, &sum, &ones(round * 7), 8).unwrap();
            let again = mailboxes.start(next, &sum, &[], 8).unwrap_err();
            assert!(matches!(again, MailboxError::State { .. }), "{again}");
            assert_eq!(mailboxes.wait(done).unwrap().outcome, Ok(8));
            let mut bytes = [0; 8];
            mailboxes.read_output(done, 0, &mut bytes).unwrap();
            assert_eq!(f64::from_le_bytes(bytes), ((round - 1) * 7).max(1) as f64);
        }
        mailboxes.wait(1).unwrap();
        assert_eq!(mailboxes.counts().unwrap().tasks, 200);
    }
}

#[test]
fn failures_are_the_tasks_own() {
    let fixture = Fixture::new();
    let mut mailboxes = open(&start(&fixture, 1, Port::Shm, FAST));
    let code = |mailboxes: &mut Mailboxes, executable: &Executable, input: &[u8], room| {
        mailboxes.run(executable, input, room).unwrap().0.outcome.unwrap_err()
    };
    let crypto = code(&mut mailboxes, &Executable::built_in("crypto"), &[0; 8], 8);
    assert_eq!(crypto.code, ResultCode::Unsupported);
    assert!(crypto.message.contains("fft, sum, scale"), "{crypto}");
    let odd = code(&mut mailboxes, &Executable::built_in("fft").with_number(3), &[0; 16], 16);
    assert_eq!(odd.code, ResultCode::Malformed);
    let short = code(&mut mailboxes, &Executable::built_in("fft").with_number(1), &[0; 16], 8);
    assert_eq!(short.code, ResultCode::OutputTooLong);
    let scale = Executable {
        arguments: vec![Argument::Value(2f32.to_le_bytes().to_vec())],
        ..Executable::built_in("scale")
    };
    let (_, twice) = mailboxes.run(&scale, &3f32.to_le_bytes(), 4).unwrap();
    assert_eq!(twice, 6f32.to_le_bytes());
    let most = mailboxes.shape().input_bytes;
    let long = mailboxes.run(&scale, &vec![0; most as usize + 1], 4).unwrap_err();
    assert!(matches!(long, MailboxError::TooLong { .. }), "{long}");
    assert_eq!(mailboxes.counts().unwrap().failed, 3);
}

#[test]
fn next_program_continues_numbers() {
    for port in [Port::Shm, Port::SealedUdp] {
        let fixture = Fixture::new();
        let access = start(&fixture, 1, port, FAST);
        let sum = Executable::built_in("sum");
        for _ in 0..3 {
            let mut mailboxes = open(&access);
            let (_, output) = mailboxes.run(&sum, &1f32.to_le_bytes(), 8).unwrap();
            assert_eq!(output, 1f64.to_le_bytes());
            // Left behind without a wait.
            mailboxes.start(1, &sum, &[], 8).unwrap();
        }
    }
}

#[test]
fn repeated_start_word_is_harmless() {
    let fixture = Fixture::new();
    let access = start(&fixture, 1, Port::Shm, FAST);
    let mut mailboxes = open(&access);
    mailboxes.run(&Executable::built_in("sum"), &[0; 4], 8).unwrap();
    for word in [1, 0, 1] {
        mailboxes.region().store_word(136, word).unwrap();
    }
    mailboxes.run(&Executable::built_in("sum"), &[0; 4], 8).unwrap();
    assert_eq!(mailboxes.counts().unwrap().tasks, 2);
}

#[test]
fn hostile_recipient_harms_itself() {
    let fixture = Fixture::new();
    let access = start(&fixture, 1, Port::Shm, FAST);
    let mut client = ServiceClient::open(&access, Some(LIMIT)).unwrap();
    let region = Region::open(&access, None, Shape::default().region_bytes(), LIMIT).unwrap();
    let mut random = SplitMix64(5);
    for round in 0..300 {
        // Noise in the head, the request, and around them.
        for _ in 0..random.draw() % 8 {
            let at = random.draw() % 9000 * 8;
            region.store_word(at, random.draw()).unwrap();
        }
        region.store_word(128, random.draw() % 200).unwrap();
        region.store_word(136, round).unwrap();
        let payload: Vec<u8> = (0..random.draw() % 20).map(|_| random.draw() as u8).collect();
        let opcode = (random.draw() % 5) as u16;
        if opcode != AWAIT {
            client.call(round, opcode, &payload).unwrap();
        }
    }
    client.request(1000, AWAIT, &[0xff; 16]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.answers().unwrap().entries().next().unwrap().code, 2, "no such mailbox");
    drop(client);
    let done = fixture.start(2, "mailbox", Port::Shm, |spec| FAST.clone_into(&mut spec.options));
    let mut mailboxes = open(&done);
    mailboxes.run(&Executable::built_in("sum"), &[0; 4], 8).unwrap();
    fixture.end(&access);
}

#[test]
fn death_ends_a_wait() {
    for port in PORTS {
        let fixture = Fixture::new();
        let access = start(&fixture, 1, port, "sum@1KB/s");
        let mut mailboxes = open(&access);
        // An hour on the accelerator.
        mailboxes.start(0, &Executable::built_in("sum"), &vec![0; 3_600_000], 8).unwrap();
        let waits = std::thread::spawn(move || mailboxes.wait(0).unwrap_err());
        std::thread::sleep(Duration::from_millis(50));
        fixture.end(&access);
        let error = waits.join().unwrap();
        assert!(error.is_lost(), "{port:?}: {error}");
    }
}

#[test]
fn unknown_model_fails_the_start() {
    let fixture = Fixture::new();
    let started = fixture.try_start(1, "mailbox", Port::Shm, |spec| spec.options = "fft".into());
    assert!(started.unwrap_err().contains("FUNCTION@RATE"));
}

/// Prints the times of short tasks. Asserts none.
#[test]
fn latency_is_printed() {
    for port in PORTS {
        let fixture = Fixture::new();
        let mut mailboxes = open(&start(&fixture, 1, port, "sum@1TB/s"));
        let mut times: Vec<_> = (0..2000)
            .map(|_| {
                let began = std::time::Instant::now();
                mailboxes.run(&Executable::built_in("sum"), &[0; 64], 8).unwrap();
                began.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("{port:?}: a short task p50 {:?} p99 {:?}", times[1000], times[1980]);
    }
}
