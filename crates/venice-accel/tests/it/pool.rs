//! Pools of confined hosts.

use std::time::Duration;

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
