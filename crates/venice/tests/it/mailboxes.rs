//! Pools of emulated accelerators on a rack of real processes.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use venice_accel::mailbox::Executable;
use venice_accel::pool::Pool;
use venice_control::ServiceAccess;
use venice_testkit::process::ChildGuard;

use crate::common::{Place, kill, pid, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Holds the accelerator of a node, by a command of its own: a command ends with any of its grants.
/// Returns the way to its service.
fn hold(place: &Place, node: &str) -> (ChildGuard, ServiceAccess) {
    let file = place.file(&format!("{node}.json"));
    let path = file.display();
    let tell = format!(
        "printf '%s\n' \"$VENICE_GRANT_ENDPOINTS\" > {path}.new; mv {path}.new {path}; exec sleep 600"
    );
    let get = ["get", "accelerator:sum", "--donor", node, "--", "sh", "-c", &tell];
    let mut command = place.command(&get);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = ChildGuard(command.spawn().unwrap());
    wait_until("the command runs", || file.exists());
    let text = fs::read_to_string(&file).unwrap();
    let [access] = serde_json::from_str::<[ServiceAccess; 1]>(&text).unwrap();
    (child, access)
}

#[test]
fn pool_outlives_an_agent() {
    let place = Place::new();
    let offers = [1, 2, 3].map(|node| format!("node{node}/accelerator:emulated{node}=sum@2MB/s"));
    let mut words = vec!["up", "--nodes", "3", "--lend", "32MiB"];
    offers.iter().for_each(|offer| words.extend(["--offer", offer]));
    place.venice(&words).expect(0);
    let held = ["node1", "node2", "node3"].map(|node| (node, hold(&place, node)));
    let named = held.iter().map(|(node, (_, access))| ((*node).to_owned(), access.clone()));
    let mut pool = Pool::open(named, LIMIT).unwrap();

    // 10 ms each, 500 ms in all.
    let ones: Vec<Vec<u8>> = (0..150).map(|it| 1f32.to_le_bytes().repeat(5000 + it)).collect();
    let runs = std::thread::spawn(move || {
        let sums = pool.map(&Executable::built_in("sum"), &ones).unwrap();
        (sums, pool.lost())
    });
    std::thread::sleep(Duration::from_millis(100));
    let status = place.status();
    let mut agents = status["agents"].as_array().unwrap().iter();
    kill(pid(agents.find(|row| row["name"] == "node2").unwrap()));
    let (sums, lost) = runs.join().unwrap();
    for (at, sum) in sums.iter().enumerate() {
        assert_eq!(f64::from_le_bytes(sum[..].try_into().unwrap()), (5000 + at) as f64);
    }
    assert_eq!(lost.iter().map(|(node, _)| node).collect::<Vec<_>>(), ["node2"]);
}
