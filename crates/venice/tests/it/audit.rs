//! The audit log of a rack's real Monitor Node.

use std::fs;

use crate::common::{Place, wait_until};

#[test]
fn administrative_acts_are_logged() {
    let place = Place::new();
    place.up(1);
    place.venice(&["quota", "set", "ada", "memory=1GiB"]).expect(0);
    place.venice(&["token", "new"]).expect(0);
    place.venice(&["get", "memory=16MiB", "--for", "numbers", "--", "true"]).expect(0);
    place.venice(&["drain", "node1"]).expect(0);
    let log = fs::read_to_string(place.run_dir().join("monitor/log")).unwrap();
    let user = user_name();
    for (act, what) in [("set quota", "ada: "), ("new token", " for "), ("drain", "node node1")] {
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
