//! Pools of emulated accelerators on a rack of real processes.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use venice_accel::mailbox::Executable;
use venice_accel::pool::Pool;
use venice_control::ServiceAccess;
use venice_testkit::process::ChildGuard;

use crate::accelerators::{opencl_rack, with_built_driver};
use crate::common::{Place, kill, pid, wait_until};
use crate::service_hosts::host_pids;

const LIMIT: Duration = Duration::from_secs(60);

/// Holds accelerators by a command. Returns their nodes and the ways to their services.
fn hold(place: &Place, want: &str) -> (ChildGuard, Vec<(String, ServiceAccess)>) {
    let file = place.file("endpoints.json");
    let path = file.display();
    let tell = format!(
        "printf '%s\n' \"$VENICE_GRANT_NODE\" \"$VENICE_GRANT_ENDPOINTS\" > {path}.new; \
         mv {path}.new {path}; exec sleep 600"
    );
    let get = ["get", want, "--", "sh", "-c", &tell];
    let mut command = with_built_driver(place, &get);
    let log = fs::File::create(place.file("log")).unwrap();
    command.stdout(Stdio::null()).stderr(log);
    let child = ChildGuard(command.spawn().unwrap());
    wait_until("the command runs", || file.exists());
    let told = fs::read_to_string(&file).unwrap();
    let (nodes, services) = told.split_once('\n').unwrap();
    let services: Vec<_> = serde_json::from_str(services).unwrap();
    (child, nodes.split(',').map(str::to_owned).zip(services).collect())
}

/// Runs again until the pool has lost an accelerator: a busy machine may kill it late.
fn until_one_is_lost(pool: &mut Pool, run: impl Fn(&mut Pool)) -> Vec<(String, String)> {
    let started = Instant::now();
    loop {
        run(pool);
        let lost = pool.lost();
        if !lost.is_empty() {
            return lost;
        }
        assert!(started.elapsed() < LIMIT, "no accelerator is lost");
    }
}

#[test]
fn pool_outlives_an_agent() {
    let place = Place::new();
    let offers = [1, 2, 3].map(|node| format!("node{node}/accelerator:emulated{node}=sum@2MB/s"));
    let mut words = vec!["up", "--nodes", "3", "--lend", "32MiB"];
    offers.iter().for_each(|offer| words.extend(["--offer", offer]));
    place.venice(&words).expect(0);
    let (mut holder, services) = hold(&place, "accelerator:sum=3");
    let mut pool = Pool::open(services, LIMIT).unwrap();

    let status = place.status();
    let mut agents = status["agents"].as_array().unwrap().iter();
    let agent = pid(agents.find(|row| row["name"] == "node2").unwrap());
    // 10 ms each, 500 ms in all.
    let ones: Vec<Vec<u8>> = (0..150).map(|it| 1f32.to_le_bytes().repeat(5000 + it)).collect();
    let runs = std::thread::spawn(move || {
        until_one_is_lost(&mut pool, |pool| {
            let sums = pool.map(&Executable::built_in("sum"), &ones).unwrap();
            for (at, sum) in sums.iter().enumerate() {
                assert_eq!(f64::from_le_bytes(sum[..].try_into().unwrap()), (5000 + at) as f64);
            }
        })
    });
    std::thread::sleep(Duration::from_millis(100));
    kill(agent);
    let lost = runs.join().unwrap();
    assert_eq!(lost.iter().map(|(node, _)| node).collect::<Vec<_>>(), ["node2"]);
    // The loss ends no command that learns it from its pool.
    let said = || fs::read_to_string(place.file("log")).unwrap();
    wait_until("the loss is told", || said().contains("of node2: its agent is gone"));
    assert!(holder.0.try_wait().unwrap().is_none(), "{}", said());
}

#[test]
fn kernels_outlive_a_host() {
    let Some(place) = opencl_rack("kernels_outlive_a_host") else { return };
    let (mut holder, services) = hold(&place, "accelerator:opencl=2");
    let mut pool = Pool::open(services, LIMIT).unwrap();
    let source = "kernel void slow(global const float *in, global float *out) { \
                  size_t at = get_global_id(0); float sum = in[at]; \
                  for (int step = 0; step < 50000; step++) sum += (float)(step & 1); \
                  out[at] = sum; }";
    let inputs: Vec<Vec<u8>> =
        (0..40_u8).map(|it| f32::from(it).to_le_bytes().repeat(500)).collect();
    let slow = Executable::open_cl(source, "slow");
    assert_eq!(pool.map(&slow, &inputs[..2]).unwrap().len(), 2, "both have built it");
    let host = host_pids(&place, "node2")[2];
    let runs = std::thread::spawn(move || {
        until_one_is_lost(&mut pool, |pool| {
            let outputs = pool.map(&slow, &inputs).unwrap();
            for (at, output) in outputs.iter().enumerate() {
                let expected = (at as f32 + 25_000.0).to_le_bytes().repeat(500);
                assert!(*output == expected, "output {at}");
            }
        })
    });
    std::thread::sleep(Duration::from_millis(20));
    kill(host);
    let lost = runs.join().unwrap();
    assert_eq!(lost.iter().map(|(node, _)| node).collect::<Vec<_>>(), ["node2"]);
    wait_until("the loss is told", || {
        fs::read_to_string(place.file("log")).unwrap().contains("of node2: its service has ended")
    });
    assert!(holder.0.try_wait().unwrap().is_none(), "the command goes on");
}
