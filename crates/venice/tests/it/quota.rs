//! Quotas of two users of one machine, over a rack's real processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::{Place, is_root, kill, pid, skipped};
use rustix::process::Uid;
use serde_json::{Value, json};
use venice_control::client::{Access, AgentClient, Login, MonitorClient};
use venice_control::{
    AllocationRequest, ControlError, DEFAULT_PRIORITY, Grant, Limits, Queueing, QuotaFor,
    QuotaRecord, Want,
};
use venice_recipient::local_rack::MONITOR_SOCKET;
use venice_wire::SLAB_BYTES;

pub const NOBODY: u32 = 65534;
pub const DAEMON: u32 = 1;
const MIB: u64 = 1 << 20;

/// A rack of four slabs that any user of this machine may use.
pub struct Rack {
    pub place: Place,
    addr: String,
}

impl Rack {
    pub fn new() -> Rack {
        let place = Place::new();
        place.up(2);
        let addr = place.status()["monitor"]["addr"].as_str().unwrap().to_string();
        let rack = Rack { place, addr };
        rack.open();
        rack
    }

    fn socket(&self) -> PathBuf {
        self.place.run_dir().join(MONITOR_SOCKET)
    }

    /// Opens the sockets to all users, like the group `venice` on real machines.
    fn open(&self) {
        let run_dir = self.place.run_dir();
        let open_to = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        open_to(run_dir.parent().unwrap(), 0o711);
        open_to(&run_dir, 0o711);
        open_to(&self.socket(), 0o666);
    }

    /// Runs `work` as a user of this machine.
    pub fn as_user<T: Send>(
        &self,
        uid: u32,
        work: impl AsyncFnOnce(MonitorClient) -> T + Send,
    ) -> T {
        let (socket, addr) = (self.socket(), self.addr.clone());
        let body = move || {
            // The credentials of this thread alone, which the kernel reports to its peers.
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).unwrap();
            runtime().block_on(async {
                let access = Access::new(addr, Login::at_sockets(vec![socket]));
                let client = MonitorClient::connect(&access).await.unwrap();
                work(client).await
            })
        };
        thread::scope(|scope| scope.spawn(body).join().unwrap())
    }

    pub fn ask(&self, uid: u32, client_id: u128, mib: u64) -> Result<Vec<Grant>, ControlError> {
        self.as_user(uid, async |mut client| client.allocate(request(client_id, mib)).await)
    }

    /// Fails unless the request is refused for the quota; returns the user's message.
    fn expect_over(&self, uid: u32, client_id: u128, mib: u64) -> String {
        let said = self.ask(uid, client_id, mib).unwrap_err().to_string();
        assert!(said.contains("of a quota of"), "{said}");
        said
    }

    /// The grants, without volatile fields.
    fn grants(&self) -> Value {
        let mut rows = self.place.venice(&["grants", "--json"]).expect(0).json();
        for row in rows.as_array_mut().unwrap() {
            row.as_object_mut().unwrap().remove("age_s").unwrap();
        }
        rows
    }

    fn quotas(&self) -> Value {
        self.place.venice(&["quota", "list", "--json"]).expect(0).json()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn request(client_id: u128, mib: u64) -> AllocationRequest {
    AllocationRequest {
        client_id,
        recipient: "root@everywhere".into(),
        wants: vec![Want::memory(mib * MIB, 1)],
        donors: vec![],
        home: String::new(),
        placement: None,
        purpose: "test".into(),
        queueing: Default::default(),
    }
}

/// Renews leases at the donors until it is dropped.
struct Kept {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    fn new(rack: &Rack, grants: Vec<Grant>) -> Kept {
        let login = Login::at_sockets(vec![rack.socket()]);
        // Connected while the Monitor Node lives; renewal needs only the donors.
        runtime().block_on(login.info()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let keep = async move || {
            let patience = Duration::from_secs(20);
            while !stopped.load(Ordering::Relaxed) {
                for grant in &grants {
                    let (name, addr) = (&grant.donor, &grant.control_addr);
                    if let Ok(mut agent) = AgentClient::connect(&login, name, addr, patience).await
                    {
                        let _ = agent.renew(&[(grant.id, grant.key)]).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let thread = Some(thread::spawn(move || runtime().block_on(keep())));
        Kept { stop, thread }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn quotas_survive_monitor_restart() {
    if !is_root() {
        skipped("quotas_survive_monitor_restart", "needs root");
        return;
    }
    let rack = Rack::new();
    let place = &rack.place;
    place.venice(&["quota", "set", "nobody", "memory=32MiB"]).expect(0);
    let set =
        place.venice(&["quota", "set", "--default", "memory=16MiB", "--json"]).expect(0).json();
    assert_eq!(set, json!({ "user": null, "quota": { "memory": 16 * MIB } }));

    let mut grants = rack.ask(NOBODY, 1, 32).unwrap();
    let said = rack.expect_over(NOBODY, 2, 16);
    for told in ["nobody has 32MiB of memory of a quota of 32MiB", "16MiB more", "venice quota set"]
    {
        assert!(said.contains(told), "{said}");
    }
    // Quotas are separate by user, and a request's own text about itself is ignored.
    rack.expect_over(DAEMON, 3, 32);
    grants.extend(rack.ask(DAEMON, 4, 16).unwrap());
    let kept = Kept::new(&rack, grants.clone());
    let owners: Vec<_> = rack.grants().as_array().unwrap().iter().map(owner).collect();
    assert_eq!(owners.iter().filter(|owner| *owner == "nobody").count(), grants.len() - 1);
    assert!(owners.contains(&"daemon".to_string()), "{owners:?}");

    let before = (rack.grants(), rack.quotas());
    kill(pid(&place.status()["monitor"]));
    place.up(2);
    rack.open();
    assert_eq!((rack.grants(), rack.quotas()), before);
    let row = |user: &str, mib: u64, is_own: bool| {
        json!({
            "user": user, "is_own": is_own, "quota": { "memory": mib * MIB },
            "used": { "memory": mib * MIB, "accelerator": 0, "nic": 0, "storage": 0 },
        })
    };
    let users = [row("daemon", 16, false), row("nobody", 32, true)];
    assert_eq!(
        (&before.1["users"], &before.1["default"]["memory"]),
        (&json!(users), &json!(16 * MIB))
    );
    rack.expect_over(NOBODY, 5, 16);
    rack.expect_over(DAEMON, 6, 16);
    assert_eq!(rack.ask(DAEMON, 4, 16).unwrap()[0].id, grants.last().unwrap().id);
    let stolen = rack.ask(NOBODY, 4, 16).unwrap_err();
    assert!(matches!(stolen, ControlError::Forbidden(_)), "{stolen}");

    // Only administrators may use higher priorities.
    let queueing = Queueing { priority: DEFAULT_PRIORITY + 1, ..Queueing::default() };
    let pushy = AllocationRequest { queueing, ..request(11, 16) };
    let pushed = rack.as_user(NOBODY, async |mut client| client.allocate(pushy).await);
    let said = pushed.unwrap_err().to_string();
    assert!(said.contains("for priorities above 100"), "{said}");
    // A request over its quota waits, and reports that at the end.
    let queueing = Queueing { wait_ms: 300, ..Queueing::default() };
    let patient = AllocationRequest { queueing, ..request(12, 16) };
    let waited = rack.as_user(NOBODY, async |mut client| client.allocate(patient).await);
    let said = waited.unwrap_err().to_string();
    assert!(said.contains("nobody has 32MiB of memory of a quota of 32MiB"), "{said}");

    // A quota below the use takes nothing away, but blocks new grants.
    place.venice(&["quota", "set", "nobody", "memory=16MiB"]).expect(0);
    assert_eq!(rack.grants(), before.0);
    rack.expect_over(NOBODY, 7, 16);
    drop(kept);
    let own: Vec<_> = grants.iter().take(grants.len() - 1).map(|it| (it.id, it.key)).collect();
    rack.as_user(NOBODY, async |mut client| client.release(&own).await).unwrap();
    rack.ask(NOBODY, 8, 16).unwrap();
    rack.expect_over(NOBODY, 9, 16);
    place.venice(&["quota", "set", "nobody", "memory=unlimited"]).expect(0);
    rack.ask(NOBODY, 10, 16).unwrap();
    let listed = place.venice(&["quota", "list"]).expect(0).out;
    assert!(listed.contains("nobody           32MiB  own"), "{listed}");
}

fn owner(row: &Value) -> String {
    row["owner_user"].as_str().unwrap().to_string()
}

#[test]
fn run_respects_user_quota() {
    if !is_root() {
        skipped("run_respects_user_quota", "needs root");
        return;
    }
    let rack = Rack::new();
    let place = &rack.place;
    place.venice(&["quota", "set", "root", "memory=16MiB"]).expect(0);
    let run = |words: &[&str]| {
        let start = ["run", "--mode", "window", "--local", "16MiB"];
        place.venice(&[&start, words, &["--", "true"]].concat())
    };
    let said = run(&["--remote", "32MiB"]).expect(125);
    assert!(said.complaint().contains("root has 0B of memory of a quota of 16MiB"), "{}", said.err);
    // A default --remote is reduced to the quota.
    run(&[]).expect(0);

    // Only administrators may set quotas.
    let quota = QuotaRecord { of: QuotaFor::Others, limits: Limits::of_memory(Some(SLAB_BYTES)) };
    let refused = rack.as_user(NOBODY, async |mut client| {
        client.set_quota(quota).await.unwrap_err();
        client.remove_quota(QuotaFor::User("root".into())).await.unwrap_err()
    });
    let said = refused.to_string();
    assert!(said.contains("nobody@") && said.contains("root on the Monitor Node's"), "{said}");
    assert_eq!(
        rack.as_user(NOBODY, async |mut client| client.quotas().await).unwrap().users[0].user,
        "root"
    );

    place.venice(&["quota", "remove", "root"]).expect(0);
    let said = place.venice(&["quota", "remove", "root"]).expect(1);
    assert!(said.complaint().contains("root has no quota of its own"), "{}", said.err);
    for wrong in [
        &["quota", "set", "ada"][..],
        &["quota", "set", "ada", "memory=much"],
        &["quota", "set", "ada", "memory=1GiB", "--default"],
        &["quota", "set", "--default", "unlimited"],
        &["quota", "set", "memory=1GiB"],
        &["quota", "remove"],
        &["quota", "remove", "ada", "--default"],
    ] {
        place.venice(wrong).expect(2);
    }
}
