//! `venice grants transfer` and `claim`: grants of one user change hands, over a rack's real
//! processes.

use crate::common::{Daemon, Place, is_root, skipped, wait_until};
use crate::quota::{DAEMON, NOBODY, Rack};
use serde_json::{Value, json};
use venice_control::{ClaimRequest, ControlError, Owner, TransferRequest};
use venice_wire::GrantId;

impl Rack {
    fn rows(&self) -> Vec<Value> {
        let rows = self.place.venice(&["grants", "--json"]).expect(0).json();
        rows.as_array().unwrap().clone()
    }
}

#[test]
fn root_takes_over_grants() {
    if !is_root() {
        return skipped("root_takes_over_grants", "needs root");
    }
    let rack = Rack::new();
    let place = &rack.place;
    let id = rack.ask(NOBODY, 1, 32).unwrap()[0].id.0;
    let row = rack.rows().remove(0);
    let node = row["owner_node"].as_str().unwrap().to_owned();

    // Another user may not, nor is a node of any name taken.
    let to = Owner { node: node.clone(), user: "daemon".into(), is_bound: false };
    let request = TransferRequest { client_id: 2, grants: vec![GrantId(id)], to, claim_ms: 0 };
    let refused = rack.as_user(DAEMON, async |mut client| client.transfer(request).await);
    assert!(matches!(refused, Err(ControlError::Forbidden(_))), "{refused:?}");
    let ids: Vec<String> = rack.rows().iter().map(|row| row["id"].to_string()).collect();
    let words = |to: &'static str| {
        let ids = ids.iter().map(String::as_str);
        ["grants", "transfer"]
            .into_iter()
            .chain(ids)
            .chain(["--to", to, "--json"])
            .collect::<Vec<_>>()
    };
    let said = place.venice(&words("root@nowhere")).expect(1);
    assert!(said.complaint().contains("no node named nowhere"), "{}", said.err);
    place.venice(&["quota", "set", "root", "memory=16MiB"]).expect(0);
    let said = place.venice(&words("root")).expect(1);
    assert!(said.complaint().contains("of a quota of 16MiB"), "{}", said.err);
    place.venice(&["quota", "remove", "root"]).expect(0);
    assert!(rack.rows().iter().all(|row| row["owner_user"] == "nobody"));

    let made = place.venice(&words("root")).expect(0).json();
    assert_eq!(made["to"], json!(format!("root@{node}")));
    let grants = made["grants"].as_array().unwrap();
    assert!(grants.iter().all(|grant| grant["state"] == "transferred"), "{made}");
    assert!(grants.iter().any(|grant| grant["from"] == id), "{made}");
    for row in rack.rows() {
        let is = (&row["owner_user"], &row["ownership"], &row["recipient"]);
        assert_eq!(is, (&json!("root"), &json!(2), &json!("")));
    }
    assert!(place.venice(&["grants"]).expect(0).out.contains("(unclaimed)"));
    let claim = ClaimRequest { recipient: "nobody's".into(), transfer: None };
    let none = rack.as_user(NOBODY, async |mut client| client.claim(claim).await).unwrap();
    assert_eq!(none, []);

    let show = ["grants", "claim", "--", "sh", "-c", "echo $VENICE_GRANT_ID"];
    let said = place.venice(&show).expect(0);
    let successors: Vec<String> = grants.iter().map(|grant| grant["to"].to_string()).collect();
    assert!(said.out.contains(&successors.join(",")), "{} for {successors:?}", said.out);
    // The command has ended: what it held is given back.
    assert_eq!(rack.rows(), [] as [Value; 0]);
    let said = place.venice(&["grants", "claim"]).expect(1);
    assert!(said.err.contains("nothing was transferred to you"), "{}", said.err);
    let said = place.venice(&["grants", "claim", "--transfer", "ff"]).expect(1);
    assert!(said.err.contains("there is no transfer 0000"), "{}", said.err);

    // Root at another node is another owner.
    rack.ask(NOBODY, 3, 16).unwrap();
    let id = rack.rows()[0]["id"].to_string();
    let to = if node == "node1" { "root@node2" } else { "root@node1" };
    place.venice(&["grants", "transfer", &id, "--to", to]).expect(0);
    let said = place.venice(&["grants", "claim"]).expect(1);
    assert!(said.err.contains(&format!("unclaimed are transfers to {to}")), "{}", said.err);
}

#[test]
fn unknown_grant_is_named() {
    let place = crate::common::Place::new();
    place.up(1);
    let said = place.venice(&["grants", "transfer", "99", "--to", "bob"]).expect(1);
    assert!(said.complaint().contains("there is no grant 99"), "{}", said.err);
    for wrong in
        [&["grants", "transfer", "1", "--to", "@n"][..], &["grants", "transfer", "--to", "b"]]
    {
        place.venice(wrong).expect(2);
    }
}

#[test]
fn old_holders_name_new_owner() {
    if !is_root() {
        return skipped("old_holders_name_new_owner", "needs root");
    }
    let place = Place::new();
    std::fs::create_dir(place.file("pool")).unwrap();
    let pool = format!("storage:{}=8MiB", place.file("pool").display());
    place.venice(&["up", "--nodes", "2", "--lend", "48MiB", "--offer", &pool]).expect(0);
    let rows = || {
        let rows = place.venice(&["grants", "--json"]).expect(0).json();
        rows.as_array().unwrap().clone()
    };
    let get = ["get", "storage=1MiB", "memory=16MiB", "--", "sleep", "600"];
    let _get = Daemon::start_named(&place, "get", &get);
    let run = ["run", "--port", "udp", "--local", "16MiB", "--remote", "16MiB", "--copies", "1"];
    let _run = Daemon::start_named(&place, "run", &[&run[..], &["sleep", "600"]].concat());
    wait_until("all is granted", || rows().len() == 3);
    let ids: Vec<String> = rows().iter().map(|row| row["id"].to_string()).collect();
    let ids = ids.iter().map(String::as_str);
    let words = ["grants", "transfer"].into_iter().chain(ids).chain(["--to", "nobody"]);
    place.venice(&words.collect::<Vec<_>>()).expect(0);

    let said = |name: &str| std::fs::read_to_string(place.file(name)).unwrap();
    wait_until("each is told of the new owner", || {
        said("get.log").matches(": it was transferred to nobody@").count() == 2
            && said("run.log").contains(" was transferred to nobody@")
    });
    assert!(!said("get.log").contains("taken back"), "{}", said("get.log"));
    assert!(!said("run.log").contains("took its memory back"), "{}", said("run.log"));
    let ps = place.venice(&["ps"]).expect(0).out;
    assert!(ps.contains("(transferred)"), "{ps}");
}
