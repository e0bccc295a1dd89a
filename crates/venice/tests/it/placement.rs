//! Placement reports, over a rack's real processes.

use crate::common::{self, Place};
use serde_json::{Value, json};

/// Slabs by node, of nodes that would give any.
fn shares(plan: &Value) -> Vec<(String, u64)> {
    let rows = plan["memory"]["nodes"].as_array().unwrap().iter();
    let share =
        |row: &Value| (row["node"].as_str().unwrap().into(), row["slabs"].as_u64().unwrap());
    rows.map(share).filter(|(_, slabs)| *slabs > 0).collect()
}

fn why(plan: &Value, node: &str) -> String {
    let rows = plan["memory"]["nodes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["node"] == node).unwrap();
    row["why"].as_str().unwrap().to_string()
}

#[test]
fn place_reports_policy_without_granting() {
    let place = Place::new();
    place.up(3);
    let plan = |more: &[&str]| {
        let words = [&["place", "32MiB", "--copies", "1", "--json"], more].concat();
        place.venice(&words).expect(0).json()
    };
    let packed = shares(&plan(&["--placement", "pack"]));
    assert_eq!((packed.len(), packed[0].1), (1, 2), "{packed:?}");
    assert_eq!(plan(&["--placement", "spread"])["memory"]["policy"], "spread");
    let nearest = shares(&plan(&[]));
    assert_eq!((nearest.len(), nearest[0].1), (2, 1), "{nearest:?}");
    assert_eq!(why(&plan(&["--donor", "node2"]), "node1"), "not among the donors named");
    place.venice(&["drain", &packed[0].0]).expect(0);
    let drained = plan(&["--placement", "pack"]);
    assert!(shares(&drained).len() == 1 && shares(&drained) != packed, "{drained}");
    assert_eq!(why(&drained, &packed[0].0), "being drained");

    let copies = ["place", "32MiB", "--copies", "3"];
    let refused = place.venice(&copies).expect(1).out;
    assert!(refused.contains("would be refused: it needs 3 nodes with room"), "{refused}");
    let swap = ["swap", "attach", "32MiB", "--copies", "2", "--dry-run"];
    if common::is_root() {
        let said = place.venice(&swap).expect(0).out;
        assert!(said.contains("would be granted; nothing was"), "{said}");
        let plan = place.venice(&[&swap[..], &["--json"]].concat()).expect(0).json();
        assert_eq!((&plan["refusal"], &plan["memory"]["slabs"]), (&"".into(), &4.into()), "{plan}");
    } else {
        common::skipped("place_reports_policy_without_granting", "swap needs root");
    }
    assert_eq!(place.venice(&["grants", "--json"]).expect(0).json(), json!([]));
    place.venice(&["down"]).expect(0);
}

#[test]
fn dry_run_uses_racks_policy() {
    let place = Place::new();
    let port = common::port_of_its_own();
    let up = ["up", "--nodes", "2", "--lend", "64MiB", "--monitor-port", &port];
    place.venice(&[&up[..], &["--placement", "pack"]].concat()).expect(0);
    let plan = place.venice(&["place", "64MiB", "--copies", "1", "--json"]).expect(0).json();
    assert_eq!(plan["memory"]["policy"], "pack");
    let packed = shares(&plan);
    assert_eq!((packed.len(), packed[0].1), (1, 4), "{packed:?}");

    let mark = place.file("mark");
    let run = ["run", "--local", "16MiB", "--remote", "32MiB", "--copies", "1"];
    let program = ["--", "touch", mark.to_str().unwrap()];
    let dry = [&run[..], &["--placement", "spread", "--dry-run"], &program].concat();
    let said = place.venice(&dry).expect(0).out;
    assert!(said.contains("placement spread: would be granted; nothing was"), "{said}");
    let dry = [&run[..], &["--placement", "spread", "--dry-run", "--json"], &program].concat();
    let plan = place.venice(&dry).expect(0).json();
    assert_eq!(
        (&plan["memory"]["policy"], &plan["memory"]["slabs"]),
        (&"spread".into(), &2.into()),
        "{plan}"
    );
    let alone = [&run[..], &["--json"], &program].concat();
    assert!(place.venice(&alone).expect(125).err.contains("--dry-run"));
    assert!(!mark.exists(), "nothing runs");
    assert_eq!(place.venice(&["grants", "--json"]).expect(0).json(), json!([]));

    let bad = place.venice(&["place", "64MiB", "--placement", "widely"]).expect(2);
    assert!(bad.complaint().contains("nearest, spread or pack"), "{}", bad.complaint());
    place.venice(&["down"]).expect(0);
}
