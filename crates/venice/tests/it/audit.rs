//! The audit log of a rack's real Monitor Node.

use std::fs;

use crate::common::{Daemon, Place, port_of_its_own, wait_until};

#[test]
fn administrative_acts_are_logged() {
    let place = Place::new();
    let port = port_of_its_own();
    let words = ["up", "--nodes", "1", "--lend", "32MiB", "--monitor-port", &port];
    place.venice(&[&words[..], &["--preempt-notice-s", "0.5"]].concat()).expect(0);
    place.venice(&["quota", "set", "ada", "memory=1GiB"]).expect(0);
    place.venice(&["quota", "remove", "ada"]).expect(0);
    let token = place.venice(&["token", "new"]).expect(0).out;
    let id = token.split('.').next().unwrap();
    place.venice(&["token", "delete", id]).expect(0);
    place.venice(&["get", "memory=16MiB", "--for", "numbers", "--", "true"]).expect(0);
    let low = ["get", "memory=32MiB", "--priority", "10", "--for", "low", "--", "sleep", "600"];
    let _low = Daemon::start_named(&place, "low", &low);
    wait_until("the other grant is there", || {
        place.venice(&["grants", "--json"]).expect(0).out.contains("\"low\"")
    });
    place.venice(&["get", "memory=32MiB", "--wait", "5m", "--preempt", "--", "true"]).expect(0);
    place.venice(&["drain", "node1"]).expect(0);
    let log = fs::read_to_string(place.run_dir().join("monitor/log")).unwrap();
    let user = user_name();
    let acts = [
        ("set quota", "ada: "),
        ("remove quota", "ada"),
        ("new token", " for "),
        ("delete token", id),
        ("preempt", "bytes=33554432"),
        ("drain", "node node1"),
    ];
    for (act, what) in acts {
        let line = log.lines().find(|line| line.contains(&format!("act=\"{act}\"")));
        let line = line.unwrap_or_else(|| panic!("no {act}: {log}"));
        assert!(line.contains("audit") && line.contains(&format!("by={user}@")), "{line}");
        assert!(line.contains(what), "{line}");
    }
    wait_until("the grant is logged", || {
        let log = fs::read_to_string(place.run_dir().join("monitor/log")).unwrap();
        let granted = log.lines().find(|line| line.contains("memory granted"));
        granted.is_some_and(|line| {
            line.contains(&format!("owner={user}@"))
                && line.contains("size=16MiB")
                && line.contains("purpose=\"numbers\"")
        })
    });
}

/// Name of this process's user.
fn user_name() -> String {
    let uid = rustix::process::getuid().as_raw();
    let found = fs::read_to_string("/etc/passwd").unwrap();
    let name = found.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}
