//! Devices of a rack: offered by their nodes' operators, granted to one recipient at a time, held
//! while it lives, and reported when they vanish.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::process::{Child, Command, Stdio};

use crate::common::{Daemon, Place, exists, is_root, kill, pid, signal, skipped, wait, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// A rack of two nodes: the first lends 8 MiB of a directory, the second a device that looks like
/// an accelerator.
fn rack() -> Place {
    rack_with(&[])
}

fn rack_with(more: &[&str]) -> Place {
    let place = Place::new();
    std::fs::create_dir(place.file("pool")).unwrap();
    let pool = format!("storage:{}=8MiB,scratch", place.file("pool").display());
    let words = ["up", "--nodes", "2", "--lend", "32MiB", "--offer", &pool];
    let words = [&words[..], &["--offer", "node2/accelerator:/dev/zero,fft,crypto"], more].concat();
    place.venice(&words).expect(0);
    place
}

fn resource(place: &Place, kind: &str) -> Value {
    let rows = place.venice(&["resources", "--json"]).expect(0).json();
    rows.as_array().unwrap().iter().find(|row| row["kind"] == kind).unwrap().clone()
}

fn grants(place: &Place) -> Vec<Value> {
    let rows = place.venice(&["grants", "--json"]).expect(0).json();
    rows.as_array().unwrap().clone()
}

/// A grant held by a command until it ends.
fn holder(place: &Place, words: &[&str]) -> Child {
    let before = grants(place).len();
    let mut child = place.command(words).stdout(Stdio::null()).spawn().unwrap();
    wait_until("it is granted", || {
        assert_eq!(child.try_wait().unwrap(), None, "{words:?}");
        grants(place).len() > before
    });
    child
}

fn ended(mut child: Child, how: Signal) -> Option<i32> {
    signal(child.id().into(), how);
    wait(&mut child, &["get"]).code()
}

#[test]
fn device_grant_is_exclusive() {
    let place = rack();
    let row = resource(&place, "accelerator");
    assert_eq!((&row["node"], &row["address"]), (&"node2".into(), &"/dev/zero".into()));
    assert_eq!((&row["available"], &row["health"]), (&true.into(), &"ok".into()));
    assert_eq!(row["capabilities"], serde_json::json!(["fft", "crypto"]));

    let get = ["get", "accelerator:FFT", "--for", "spectra", "--json"];
    let first = holder(&place, &get);
    let [grant] = &grants(&place)[..] else { panic!("one grant") };
    assert_eq!((&grant["kind"], &grant["state"]), (&"accelerator".into(), &"committed".into()));
    assert_eq!((&grant["address"], &grant["purpose"]), (&"/dev/zero".into(), &"spectra".into()));
    assert_eq!(resource(&place, "accelerator")["available"], false);
    let refused = place.venice(&["get", "accelerator", "--", "true"]).expect(125);
    assert!(refused.complaint().contains("node2 /dev/zero: granted"), "{refused:?}");
    assert_eq!(ended(first, Signal::INT), Some(0));
    assert_eq!(grants(&place), Vec::<Value>::new());

    let echo = "echo $VENICE_GRANT_KIND $VENICE_GRANT_NODE $VENICE_GRANT_ADDRESS; exit 7";
    let said = place.venice(&["get", "accelerator", "--", "sh", "-c", echo]).expect(7);
    assert!(said.out.ends_with("accelerator node2 /dev/zero\n"), "{said:?}");
    let wrong = place.venice(&["get", "accelerator:cuda", "--", "true"]);
    assert!(wrong.expect(125).complaint().contains("cannot \"cuda\""));
    let none = place.venice(&["get", "nic", "--", "true"]).expect(125);
    assert!(none.complaint().contains("no node offers any"), "{none:?}");
    place.venice(&["get", "gpu"]).expect(2);
}

#[test]
fn command_dies_with_its_holder() {
    let place = rack();
    let pid_file = place.file("pid");
    let words = format!("echo $$ > {}; exec sleep 600", pid_file.display());
    let get = holder(&place, &["get", "accelerator", "--", "sh", "-c", &words]);
    let read = || std::fs::read_to_string(&pid_file).unwrap_or_default();
    wait_until("the command runs", || read().ends_with('\n'));
    assert_eq!(ended(get, Signal::KILL), None);
    let state = || {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", read().trim()));
        text.ok().and_then(|text| Some(text.rsplit_once(") ")?.1.chars().next()?.to_string()))
    };
    wait_until("the command is killed", || state().is_none_or(|state| state == "Z"));
}

#[test]
fn storage_is_granted_by_size() {
    let place = rack();
    let five = holder(&place, &["get", "storage=5MiB"]);
    assert_eq!(resource(&place, "storage")["free_bytes"], 3 << 20);
    let refused = place.venice(&["get", "storage=4MiB", "--", "true"]).expect(125);
    assert!(refused.complaint().contains("3MiB are left"), "{refused:?}");
    let said = place.venice(&["get", "storage=3MiB", "--json", "--", "true"]).expect(0);
    let got = &said.json()[0];
    assert_eq!((&got["kind"], &got["bytes"]), (&"storage".into(), &(3 << 20).into()));
    let memory = holder(&place, &["get", "memory=20MiB"]);
    let bytes: u64 = grants(&place).iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, (5 << 20) + (32 << 20));
    assert_eq!(ended(memory, Signal::TERM), Some(0));
    assert_eq!(ended(five, Signal::KILL), None);
    // A killed holder returns nothing: its lease expires.
    wait_until("the lease ends", || grants(&place).is_empty());
    assert_eq!(resource(&place, "storage")["free_bytes"], 8 << 20);
}

#[test]
fn vanished_device_is_not_granted() {
    let place = rack();
    let hold = ["get", "storage=1MiB", "--", "sleep", "600"];
    let err = std::fs::File::create(place.file("err")).unwrap();
    let said = || std::fs::read_to_string(place.file("err")).unwrap();
    let mut child = place.command(&hold).stderr(err).spawn().unwrap();
    wait_until("it is granted", || grants(&place).len() == 1);
    std::fs::remove_dir(place.file("pool")).unwrap();
    wait_until("it is seen", || resource(&place, "storage")["health"] != "ok");
    let row = resource(&place, "storage");
    assert_eq!(row["health"], "it is no longer there");
    assert_eq!(row["available"], false);
    let refused = place.venice(&["get", "storage=1MiB", "--", "true"]).expect(125);
    assert!(refused.complaint().contains("no longer there"), "{refused:?}");
    wait_until("its holder hears", || said().contains("the device is there no longer"));

    // The node's death ends the grant, and with it the command.
    kill(pid(&place.status()["agents"][0]));
    assert_eq!(wait(&mut child, &hold).code(), Some(125));
    assert!(said().contains("its agent is gone: the grant is over"), "{}", said());
}

fn queue(place: &Place) -> Vec<Value> {
    place.venice(&["queue", "--json"]).expect(0).json().as_array().unwrap().clone()
}

fn priorities(place: &Place) -> Vec<u64> {
    queue(place).iter().map(|row| row["priority"].as_u64().unwrap()).collect()
}

#[test]
fn device_queue_respects_priority() {
    let place = rack();
    let free = place.venice(&["get", "storage=1MiB", "--dry-run"]).expect(0).out;
    assert!(free.contains("chosen") && free.contains("would be granted; nothing was"), "{free}");
    let first = holder(&place, &["get", "accelerator"]);
    let mark = place.file("mark").display().to_string();
    let get = |more: &[&'static str]| -> Vec<String> {
        // The first word may be capabilities.
        let (want, more) = match more {
            [first, more @ ..] if first.starts_with(':') => (format!("accelerator{first}"), more),
            more => ("accelerator".to_owned(), more),
        };
        let words = [&["get", &want], more, &["--", "touch", &mark]].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let venice = |more: &[&'static str]| {
        place.venice(&get(more).iter().map(String::as_str).collect::<Vec<_>>())
    };
    let plan = venice(&["--dry-run"]).expect(1).out;
    assert!(plan.contains("would be refused: no accelerator available"), "{plan}");
    let plan = venice(&["--dry-run", "--wait", "1m"]).expect(0).out;
    assert!(plan.contains("would wait at rank 1 of the queue"), "{plan}");
    let late = venice(&["--wait", "1s"]).expect(125);
    assert!(late.err.contains("waiting for accelerator: queue position 1, 0 free"), "{}", late.err);
    assert!(late.complaint().contains("node2 /dev/zero: granted"), "{}", late.err);
    assert!(late.complaint().contains("; it waited 1.0 s"), "{}", late.err);
    let never = venice(&[":cuda", "--wait", "1h"]).expect(125);
    assert!(never.complaint().contains("waiting does not help"), "{}", never.err);

    let start = |name: &str, more: &[&'static str]| {
        let words = get(more);
        Daemon::start_named(&place, name, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut low = start("low", &["--wait", "5m", "--priority", "50"]);
    wait_until("one waits", || priorities(&place) == [50]);
    let mut usual = start("usual", &[":fft", "--wait", "5m", "--for", "spectra"]);
    wait_until("both wait, in order", || priorities(&place) == [100, 50]);
    let row = queue(&place).remove(0);
    let want = &row["wants"][0];
    let said = (&want["kind"], &row["needs"], &row["purpose"], &want["free"]);
    assert_eq!(said, (&"accelerator".into(), &"device".into(), &"spectra".into(), &0.into()));
    assert_eq!(want["capabilities"], serde_json::json!(["fft"]));
    assert_eq!(low.stop(Signal::INT), None, "it ends by the signal");
    wait_until("who is interrupted has left", || priorities(&place) == [100]);
    assert!(!exists(mark.as_ref()));

    assert_eq!(ended(first, Signal::INT), Some(0));
    assert_eq!(wait(&mut usual.0, &["get"]).code(), Some(0));
    assert!(exists(mark.as_ref()));
    wait_until("it is given back", || grants(&place).is_empty());
}

#[test]
fn preempted_device_ends_its_command() {
    let place = rack_with(&["--preempt-notice-s", "15"]);
    let hold = ["get", "accelerator", "--priority", "50", "--", "sh", "-c"];
    let (ready, heard) = (place.file("ready"), place.file("heard"));
    let script = format!(
        "trap 'echo > {}; exit 3' TERM; echo > {}; while :; do sleep 0.1; done",
        heard.display(),
        ready.display()
    );
    let mut first = Daemon::start_named(&place, "first", &[&hold[..], &[&script]].concat());
    wait_until("the command runs", || exists(&ready));

    let plan = ["get", "accelerator", "--dry-run", "--wait", "1m", "--preempt"];
    let said = place.venice(&plan).expect(0).out;
    assert!(said.contains("at rank 1 of the queue, preempting grants"), "{said}");
    let low = [&plan[..], &["--priority", "50"]].concat();
    let said = place.venice(&low).expect(0).out;
    assert!(!said.contains("preempting grants"), "of its own priority nothing is: {said}");

    let words = ["get", "accelerator", "--wait", "2m", "--preempt", "--", "true"];
    let mut waits = Daemon::start_named(&place, "waits", &words);
    wait_until("it is leaving", || grants(&place).iter().any(|row| row["preempted_in_s"].is_f64()));
    let row = queue(&place).remove(0);
    assert_eq!((&row["needs"], &row["wants"][0]["preempting"]), (&"device".into(), &1.into()));
    assert_eq!(wait(&mut waits.0, &["get"]).code(), Some(0));
    assert_eq!(wait(&mut first.0, &["get"]).code(), Some(125));
    assert!(exists(&heard), "the command had time to end");
    let said = std::fs::read_to_string(place.file("first.log")).unwrap();
    assert!(said.contains("a request of higher priority needs it: it ends in "), "{said}");
    assert!(said.contains("its notice time is over: it is released"), "{said}");
    assert!(!said.contains("killed"), "{said}");
}

#[test]
fn unreturned_device_is_revoked() {
    let place = rack_with(&["--preempt-notice-s", "5"]);
    let mut first = holder(&place, &["get", "accelerator", "--priority", "50"]);
    // It ignores the notice, and renews its lease beyond its deadline.
    signal(first.id().into(), Signal::STOP);
    let words = ["get", "accelerator", "--wait", "2m", "--preempt", "--", "true"];
    place.venice(&words).expect(0);
    signal(first.id().into(), Signal::CONT);
    assert_eq!(wait(&mut first, &["get"]).code(), Some(1));
}

#[test]
fn device_quota_limits_user() {
    let test = "device_quota_limits_user";
    if !is_root() {
        return skipped(test, "needs root, who is the rack's administrator");
    }
    let place = rack();
    let accelerator = holder(&place, &["get", "accelerator"]);
    let words = ["quota", "set", "root", "accelerator=1", "storage=3MiB", "--json"];
    let set = place.venice(&words).expect(0).json();
    let said = serde_json::json!({
        "user": "root", "quota": { "accelerator": 1, "storage": 3 << 20 }
    });
    assert_eq!(set, said);
    let over = place.venice(&["get", "accelerator", "--", "true"]).expect(125);
    let told = "root has 1 accelerator of a quota of 1, and 1 more is too much: ";
    assert!(over.complaint().contains(told), "{}", over.err);
    assert!(over.complaint().contains("venice quota set root accelerator=N"), "{}", over.err);

    let storage = holder(&place, &["get", "storage=2MiB"]);
    let get = |want: &'static str, more: &[&'static str]| [&["get", want], more].concat();
    let over = place.venice(&get("storage=2MiB", &["--", "true"])).expect(125);
    let told = "root has 2MiB of storage of a quota of 3MiB, and 2MiB more is too much";
    assert!(over.complaint().contains(told), "{}", over.err);
    let never = place.venice(&get("storage=4MiB", &["--wait", "1h", "--", "true"])).expect(125);
    assert!(never.complaint().contains("and 4MiB more is too much"), "{}", never.err);
    let plan = place.venice(&get("storage=2MiB", &["--dry-run", "--wait", "1m"])).expect(0).out;
    assert!(plan.contains("would wait at rank 1 of the queue: root has 2MiB"), "{plan}");

    // Memory stays unlimited: unnamed kinds keep their limits.
    place.venice(&["quota", "set", "root", "nic=0"]).expect(0);
    place.venice(&["quota", "set", "--default", "accelerator=1"]).expect(0);
    let quotas = place.venice(&["quota", "list", "--json"]).expect(0).json();
    let row = serde_json::json!({
        "user": "root", "is_own": true,
        "used": { "memory": 0, "accelerator": 1, "nic": 0, "storage": 2 << 20 },
        "quota": { "accelerator": 1, "nic": 0, "storage": 3 << 20 }
    });
    assert_eq!((&quotas["users"][0], &quotas["default"]["accelerator"]), (&row, &1.into()));
    let listed = place.venice(&["quota", "list"]).expect(0).out;
    assert!(listed.contains("2MiB of 3MiB") && listed.contains("1 of 1"), "{listed}");

    let mark = place.file("mark").display().to_string();
    let words = ["get", "storage=2MiB", "--wait", "5m", "--", "touch", &mark];
    let mut waits = Daemon::start_named(&place, "waits", &words);
    wait_until("it waits", || queue(&place).iter().any(|row| row["needs"] == "quota"));
    assert_eq!(ended(storage, Signal::INT), Some(0));
    assert_eq!(wait(&mut waits.0, &["get"]).code(), Some(0));
    assert!(exists(mark.as_ref()));
    place.venice(&["quota", "set", "root", "accelerator=unlimited"]).expect(0);
    let none = place.venice(&["get", "accelerator", "--", "true"]).expect(125);
    assert!(none.complaint().contains("/dev/zero: granted"), "{}", none.err);
    assert_eq!(ended(accelerator, Signal::INT), Some(0));
    place.venice(&["quota", "set", "root"]).expect(2);
}

#[test]
fn invalid_offer_fails_at_start() {
    let place = Place::new();
    let up = ["up", "--nodes", "1", "--lend", "32MiB", "--offer"];
    for (offer, code, said) in [
        ("accelerator:/dev/nvidia77", 1, "No such file"),
        ("storage:/", 2, "give a size"),
        ("nic:lo", 1, "loopback interface"),
        ("node9/nic:eth1", 2, "node1 to node1"),
        ("gpu:/dev/nvidia0", 2, "unknown kind"),
    ] {
        let refused = place.venice(&[&up[..], &[offer]].concat()).expect(code);
        assert!(refused.err.contains(said), "{offer}: {refused:?}");
        assert_eq!(refused.err.lines().count(), 1, "{offer}: {refused:?}");
    }
}

#[test]
fn aliased_offer_is_refused() {
    let place = Place::new();
    let file = place.file("disk");
    File::create(&file).unwrap().set_len(4 << 20).unwrap();
    symlink(&file, place.file("by-id")).unwrap();
    let (file, link) = (file.display().to_string(), place.file("by-id").display().to_string());
    let up = ["up", "--nodes", "2", "--lend", "32MiB", "--offer", &format!("storage:{file}")];
    for (offer, said) in [
        (format!("node2/storage:{file}"), "is offered twice".to_owned()),
        (format!("node2/storage:{link}"), format!("is the same as storage:{file}, offered before")),
    ] {
        let refused = place.venice(&[&up[..], &["--offer", &offer]].concat()).expect(2);
        assert!(refused.complaint().contains(&said), "{refused:?}");
    }
}

/// A block device of 8 MiB over a file; unmounted and removed on drop.
struct Disk {
    path: String,
}

impl Disk {
    fn new(place: &Place) -> Option<Disk> {
        let file = place.file("image");
        File::create(&file).unwrap().set_len(8 << 20).unwrap();
        let made = Command::new("losetup").args(["-f", "--show"]).arg(&file).output().ok()?;
        let path = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        made.status.success().then_some(Disk { path })
    }

    /// Opens it exclusively, like a file system, an array or a program.
    fn open_exclusively(&self) -> File {
        const O_EXCL: i32 = rustix::fs::OFlags::EXCL.bits() as i32;
        OpenOptions::new().read(true).custom_flags(O_EXCL).open(&self.path).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for words in [["umount", &self.path].as_slice(), &["losetup", "-d", &self.path]] {
            // It need not be mounted.
            let _ = Command::new(words[0]).args(&words[1..]).stderr(Stdio::null()).status();
        }
    }
}

/// Returns a disk; where none can be made, reports that and returns `None`.
fn disk(place: &Place, test: &str) -> Option<Disk> {
    if !is_root() {
        skipped(test, "needs root");
        return None;
    }
    let disk = Disk::new(place);
    if disk.is_none() {
        skipped(test, "no loop device is to be had");
    }
    disk
}

#[test]
fn disk_in_use_is_not_lent() {
    let place = Place::new();
    let Some(disk) = disk(&place, "disk_in_use_is_not_lent") else { return };
    let refused = |offer: &str| {
        let words = ["up", "--nodes", "1", "--lend", "32MiB", "--offer", offer];
        let said = place.venice(&words);
        assert!(said.code() == 1 || said.code() == 2, "{offer}: {said:?}");
        said.err
    };
    let name = disk.path.strip_prefix("/dev/").unwrap();
    let offer = format!("storage:{}", disk.path);

    let open = disk.open_exclusively();
    let said = refused(&offer);
    let wanted = format!("{name} is held exclusively, by ");
    assert!(said.contains(&wanted), "{said}");
    assert!(said.contains(&format!("(process {})", std::process::id())), "{said}");
    drop(open);

    let link = place.file("by-uuid").display().to_string();
    symlink(&disk.path, &link).unwrap();
    let words = ["up", "--nodes", "2", "--lend", "32MiB", "--offer", &offer, "--offer"];
    let twice = place.venice(&[&words[..], &[&format!("node2/storage:{link}")]].concat()).expect(2);
    assert!(twice.complaint().contains("both are block device 7:"), "{twice:?}");

    let image = refused(&format!("storage:{}", place.file("image").display()));
    assert!(image.contains(&format!("it backs {name}")), "{image}");

    let made = Command::new("mkfs.ext4").args(["-q", &disk.path]).status();
    if !made.is_ok_and(|it| it.success()) {
        return skipped("disk_in_use_is_not_lent: mounted", "no mkfs.ext4");
    }
    let at = place.file("mounted by somebody");
    fs::create_dir(&at).unwrap();
    assert!(Command::new("mount").arg(&disk.path).arg(&at).status().unwrap().success());
    let said = refused(&offer);
    let wanted = format!("{name} is mounted at {}", at.display());
    assert!(said.contains(&wanted), "{said}");
}

#[test]
fn locally_opened_disk_is_not_granted() {
    let test = "locally_opened_disk_is_not_granted";
    let place = Place::new();
    let Some(disk) = disk(&place, test) else { return };
    let offer = format!("storage:{}", disk.path);
    place.venice(&["up", "--nodes", "1", "--lend", "32MiB", "--offer", &offer]).expect(0);
    let health = || resource(&place, "storage")["health"].as_str().unwrap().to_owned();
    assert_eq!(health(), "ok");
    let open = disk.open_exclusively();
    wait_until("it is seen", || health().contains("is held exclusively, by"));
    let refused = place.venice(&["get", "storage=1MiB", "--", "true"]).expect(125);
    assert!(refused.complaint().contains("is held exclusively"), "{refused:?}");
    drop(open);
    wait_until("it is free again", || health() == "ok");

    let hold = holder(&place, &["get", "storage=1MiB"]);
    let open = disk.open_exclusively();
    // Use of the disk while it is granted is no fault, however often it is checked.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while std::time::Instant::now() < until {
        assert_eq!(health(), "ok");
    }
    assert_eq!(ended(hold, Signal::INT), Some(0));
    wait_until("its user is seen when it is given back", || health().contains("exclusively"));
    drop(open);
}

#[test]
fn wants_are_granted_together() {
    let place = rack();
    let both = holder(&place, &["get", "accelerator:fft", "memory=16MiB", "--placement", "spread"]);
    let mut kinds: Vec<_> = grants(&place).iter().map(|row| row["kind"].to_string()).collect();
    kinds.sort();
    assert_eq!(kinds, ["\"accelerator\"", "\"memory\""]);
    let near = grants(&place).iter().all(|row| row["donor"] == "node2");
    assert!(near, "the memory is beside the device: {:?}", grants(&place));

    // All or nothing: the accelerator is taken.
    let refused = place.venice(&["get", "storage=1MiB", "accelerator", "--", "true"]).expect(125);
    assert!(refused.complaint().contains("node2 /dev/zero: granted"), "{refused:?}");
    assert_eq!(resource(&place, "storage")["free_bytes"], 8 << 20);
    let words = ["get", "storage=1MiB", "accelerator", "--dry-run", "--json"];
    let plan = place.venice(&words).expect(1).json();
    assert_eq!(plan["devices"].as_array().unwrap().len(), 2, "{plan}");
    assert_eq!(plan["memory"], Value::Null);
    let mark = place.file("mark").display().to_string();
    let words = ["get", "storage=1MiB", "accelerator", "--wait", "5m", "--", "touch", &mark];
    let mut waits = Daemon::start_named(&place, "waits", &words);
    wait_until("it waits", || queue(&place).len() == 1);
    assert_eq!(queue(&place)[0]["wants"].as_array().unwrap().len(), 2);
    assert_eq!(ended(both, Signal::INT), Some(0));
    assert_eq!(wait(&mut waits.0, &["get"]).code(), Some(0));
    assert!(exists(mark.as_ref()));

    let twice = place.venice(&["get", "memory=1MiB", "memory=2MiB"]).expect(2);
    assert!(twice.complaint().contains("memory is wanted twice"), "{twice:?}");
    let lone = place.venice(&["get", "accelerator", "--bandwidth", "1Gbps"]).expect(2);
    assert!(lone.complaint().contains("--bandwidth is for memory"), "{lone:?}");
}

#[test]
fn run_gets_devices_with_memory() {
    let place = rack();
    let run = ["run", "--mode", "window", "--local", "4MiB", "--remote", "16MiB"];
    let devices = ["--accelerators", "1", "--with", "storage=2MiB"];
    let echo = "echo $VENICE_GRANT_KIND; exit 7";
    let words = [&run[..], &devices, &["--", "sh", "-c", echo]].concat();
    let said = place.venice(&words).expect(7);
    assert!(said.out.ends_with("accelerator,storage\n"), "{said:?}");
    wait_until("all is given back", || grants(&place).is_empty());

    let pid_file = place.file("pid");
    let script = format!("echo $$ > {}; exec sleep 600", pid_file.display());
    let words = [&run[..], &devices, &["--", "sh", "-c", &script]].concat();
    let mut running = Daemon::start_named(&place, "running", &words);
    wait_until("it runs", || exists(&pid_file));
    assert_eq!(grants(&place).len(), 3);
    kill(pid(&place.status()["agents"][1]));
    assert_eq!(wait(&mut running.0, &["run"]).code(), Some(125), "its device is lost");
    let said = std::fs::read_to_string(place.file("running.log")).unwrap();
    assert!(said.contains("/dev/zero of node2: "), "{said}");

    let memory = [&run[..], &["--with", "memory=1GiB", "--", "true"]].concat();
    let memory = place.venice(&memory).expect(125);
    assert!(memory.complaint().contains("memory is --remote SIZE"), "{memory:?}");
}
