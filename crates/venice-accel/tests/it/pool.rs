//! Pools of confined hosts.

use std::time::{Duration, Instant};

use venice_accel::mailbox::Executable;
use venice_accel::pool::{Pool, PoolError};
use venice_rack::types::ServiceAccess;

use crate::common::{Fixture, LIMIT, PORTS, Port};

fn start(fixture: &Fixture, count: u64, port: Port, options: &str) -> Vec<ServiceAccess> {
    let one = |grant| fixture.start(grant, "mailbox", port, |spec| spec.options = options.into());
    (1..=count).map(one).collect()
}

fn open(accesses: &[ServiceAccess]) -> Pool {
    let named = accesses.iter().map(|access| (format!("node{}", access.grant.0), access.clone()));
    Pool::open(named, LIMIT).unwrap()
}

/// Inputs of different lengths: so many ones each.
fn ones(counts: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    counts.into_iter().map(|count| 1f32.to_le_bytes().repeat(count)).collect()
}

fn sums(outputs: &[Vec<u8>]) -> Vec<usize> {
    outputs.iter().map(|it| f64::from_le_bytes(it[..].try_into().unwrap()) as usize).collect()
}

#[test]
fn outputs_come_in_order() {
    for port in PORTS {
        let fixture = Fixture::new();
        let accesses = start(&fixture, 3, port, "sum@1GB/s");
        let mut pool = open(&accesses);
        for tasks in [0, 1, 2, 100] {
            let inputs = ones((0..tasks).map(|it| it * 37 % 5000));
            let outputs = pool.map(&Executable::built_in("sum"), &inputs).unwrap();
            let expected: Vec<_> = (0..tasks).map(|it| it * 37 % 5000).collect();
            assert_eq!(sums(&outputs), expected);
        }
        let done: u64 = pool.counts().iter().map(|it| it.counts.unwrap().tasks).sum();
        assert!(done >= 103, "{done}");
    }
}

#[test]
fn lost_accelerator_is_replaced() {
    for port in PORTS {
        let fixture = Fixture::new();
        let accesses = start(&fixture, 3, port, "sum@2MB/s");
        let mut pool = open(&accesses);
        // 10 ms each, 300 ms in all.
        let runs = std::thread::spawn(move || {
            let outputs =
                pool.map(&Executable::built_in("sum"), &ones((0..90).map(|it| 5000 + it)));
            (outputs.unwrap(), pool)
        });
        std::thread::sleep(Duration::from_millis(80));
        fixture.end(&accesses[1]);
        let (outputs, mut pool) = runs.join().unwrap();
        assert_eq!(sums(&outputs), (0..90).map(|it| 5000 + it).collect::<Vec<_>>());
        assert_eq!(pool.len(), 2, "{port:?}");
        assert_eq!(pool.lost()[0].0, "node2");
        let again = pool.map(&Executable::built_in("sum"), &ones([3, 4])).unwrap();
        assert_eq!(sums(&again), [3, 4]);
    }
}

#[test]
fn last_loss_names_its_node() {
    let fixture = Fixture::new();
    let accesses = start(&fixture, 1, Port::Shm, "sum@1KB/s");
    let mut pool = open(&accesses);
    let runs = std::thread::spawn(move || {
        pool.map(&Executable::built_in("sum"), &ones([100_000; 4])).unwrap_err()
    });
    std::thread::sleep(Duration::from_millis(50));
    fixture.end(&accesses[0]);
    let error = runs.join().unwrap();
    assert!(matches!(&error, PoolError::Lost { node, .. } if node == "node1"), "{error}");
}

#[test]
fn donors_reason_of_loss_is_told() {
    let fixture = Fixture::new();
    let accesses = start(&fixture, 1, Port::Shm, "sum@1KB/s");
    let mut pool = open(&accesses);
    // The reason comes after the loss.
    let asked = std::sync::atomic::AtomicU32::new(0);
    pool.set_reasons(move |at| {
        let is_told = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 3;
        is_told.then(|| format!("SIGSEGV of {at}"))
    });
    let runs = std::thread::spawn(move || {
        let error = pool.map(&Executable::built_in("sum"), &ones([100_000; 4])).unwrap_err();
        (error, pool)
    });
    std::thread::sleep(Duration::from_millis(50));
    fixture.end(&accesses[0]);
    let (error, pool) = runs.join().unwrap();
    let PoolError::Lost { node, why } = &error else { panic!("{error}") };
    assert_eq!((&**node, &**why), ("node1", "SIGSEGV of 0"));
    assert_eq!(pool.lost(), [("node1".to_owned(), "SIGSEGV of 0".to_owned())]);
}

#[test]
fn map_ends_when_caller_does() {
    for port in PORTS {
        let fixture = Fixture::new();
        let mut pool = open(&start(&fixture, 2, port, "sum@1KB/s"));
        // 400 seconds each.
        let (inputs, mut outputs) = (ones([100_000; 4]), [[0; 8]; 4]);
        let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        let mut places: Vec<_> = outputs.iter_mut().map(|it| &mut it[..]).collect();
        for _ in 0..2 {
            let began = Instant::now();
            let mut looks = 0;
            let ended = pool.map_while(&Executable::built_in("sum"), &inputs, &mut places, || {
                looks += 1;
                looks < 4
            });
            assert!(matches!(ended, Err(PoolError::Interrupted)), "{ended:?}");
            assert!(began.elapsed() < Duration::from_secs(20), "{port:?}: {:?}", began.elapsed());
            assert_eq!(pool.len(), 2, "{port:?}");
        }
    }
}

#[test]
fn running_task_shows_as_usage() {
    let fixture = Fixture::new();
    let accesses = start(&fixture, 1, Port::Shm, "sum@1KB/s");
    let mut pool = open(&accesses);
    let (inputs, mut outputs) = (ones([100_000]), [0; 8]);
    let began = Instant::now();
    let mut busy_ns = 0;
    let ended =
        pool.map_while(&Executable::built_in("sum"), &[&inputs[0]], &mut [&mut outputs], || {
            busy_ns = fixture.busy_ns(&accesses[0]);
            busy_ns == 0 && began.elapsed() < LIMIT
        });
    assert!(matches!(ended, Err(PoolError::Interrupted)), "{ended:?}");
    assert!(busy_ns > 0);
}

#[test]
fn failed_task_names_its_node() {
    let fixture = Fixture::new();
    let mut pool = open(&start(&fixture, 2, Port::Shm, "fft@1GB/s"));
    let fft = Executable::built_in("fft").with_number(4);
    let error = pool.map(&fft, &[vec![0; 32], vec![0; 33], vec![0; 32]]).unwrap_err();
    assert!(matches!(&error, PoolError::Task { task: 1, .. }), "{error}");
    assert!(error.to_string().contains("of node"), "{error}");
    let long = pool.map(&fft, &[vec![0; 17 << 20]]).unwrap_err();
    assert!(matches!(&long, PoolError::Refused { task: 0, .. }), "{long}");
    pool.map(&fft, &[vec![0; 32]]).unwrap();
    assert!(matches!(Pool::open([], LIMIT), Err(PoolError::Empty)));
}
