//! Plans: what a request would be granted at this moment, and why.

use venice_control::client::Access;
use venice_control::{
    AllocationPlan, DevicePlan, DevicePlanRow, PlacementPlan, PlacementRow, bandwidth_text,
};
use venice_recipient::{AllocationSpec, plan};

use crate::listing::table_without;
use crate::waiting::told;
use venice_cli::failure::EXIT_FAILURE;
use venice_cli::terminal::{self, Align};

/// Prints the plan of an allocation.
pub fn show(access: &Access, spec: &AllocationSpec, json: bool) -> anyhow::Result<i32> {
    let plan = plan(access, spec).map_err(told)?;
    match json {
        true => terminal::say_json(&plan)?,
        false => terminal::say(text(&plan))?,
    }
    Ok(if plan.refusal.is_empty() || !plan.would_wait.is_empty() { 0 } else { EXIT_FAILURE })
}

fn text(plan: &AllocationPlan) -> String {
    let memory = plan.memory.iter().map(|memory| (placement_table(memory), placed(memory)));
    let devices = plan.devices.iter().map(|it| (device_table(it), it.wanted.clone()));
    let (tables, wanted): (Vec<String>, Vec<String>) = memory.chain(devices).unzip();
    let outcome = match plan.refusal.as_str() {
        "" => "would be granted; nothing was".to_owned(),
        refusal if plan.would_wait.is_empty() => format!("would be refused: {refusal}"),
        refusal => format!("would wait {}: {refusal}", plan.would_wait),
    };
    format!("{}\n{}: {outcome}.", tables.join("\n\n"), wanted.join("; "))
}

/// Describes the memory of a plan.
fn placed(plan: &PlacementPlan) -> String {
    let asked = slabs_text(plan, plan.slabs);
    let copies = match plan.copies {
        1 => String::new(),
        copies => format!(", {copies} shares on different nodes"),
    };
    format!("{asked} in all{copies}, placement {}", plan.policy)
}

fn slabs_text(plan: &PlacementPlan, slabs: u32) -> String {
    match slabs {
        0 => "-".to_owned(),
        slabs => terminal::bytes(u64::from(slabs) * plan.slab_bytes),
    }
}

fn placement_table(plan: &PlacementPlan) -> String {
    let columns = [
        ("node", Align::Left),
        ("gives", Align::Right),
        ("free", Align::Right),
        ("hops", Align::Right),
        ("distance", Align::Right),
        ("traffic", Align::Right),
        ("stall", Align::Right),
        ("score", Align::Right),
        ("link left", Align::Right),
        ("why", Align::Left),
    ];
    let less = |slabs: u32| if slabs == 0 { "-".to_owned() } else { format!("-{slabs}") };
    let line = |row: &PlacementRow| {
        vec![
            row.node.clone(),
            slabs_text(plan, row.slabs),
            slabs_text(plan, row.free_slabs),
            row.hops.map_or("-".to_owned(), |hops| hops.to_string()),
            less(row.distance_slabs),
            less(row.traffic_slabs),
            less(row.stall_slabs),
            row.score_slabs.to_string(),
            row.link_left_bps.map_or("-".to_owned(), bandwidth_text),
            row.why.clone(),
        ]
    };
    let mut rows: Vec<&PlacementRow> = plan.nodes.iter().collect();
    // Largest share first, then by score.
    rows.sort_by_key(|row| (std::cmp::Reverse((row.slabs, row.score_slabs)), row.node.len()));
    table_without(&["link left"], &columns, rows.into_iter().map(line).collect())
}

fn device_table(plan: &DevicePlan) -> String {
    let columns = [
        ("node", Align::Left),
        ("address", Align::Left),
        ("bytes", Align::Right),
        ("free", Align::Right),
        ("capabilities", Align::Left),
        ("why", Align::Left),
    ];
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let size = |bytes: u64| if bytes == 0 { "-".to_owned() } else { terminal::bytes(bytes) };
    let line = |row: &DevicePlanRow| {
        vec![
            row.node.clone(),
            row.address.clone(),
            size(row.bytes),
            size(row.free_bytes),
            or_dash(row.capabilities.join(",")),
            row.why.clone(),
        ]
    };
    let mut rows: Vec<&DevicePlanRow> = plan.devices.iter().collect();
    rows.sort_by_key(|row| !row.is_chosen);
    terminal::table(&columns, rows.into_iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(memory: Option<PlacementPlan>, devices: Vec<DevicePlan>) -> AllocationPlan {
        AllocationPlan { refusal: String::new(), would_wait: String::new(), memory, devices }
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    fn memory() -> PlacementPlan {
        let row = |node: &str, slabs, free_slabs, distance_slabs| PlacementRow {
            node: node.into(),
            slabs,
            free_slabs,
            hops: Some(distance_slabs / 4),
            distance_slabs,
            traffic_slabs: 0,
            stall_slabs: 0,
            score_slabs: i64::from(free_slabs) - i64::from(distance_slabs),
            link_left_bps: None,
            why: "chosen".into(),
        };
        let nodes = vec![row("node1", 0, 8, 12), row("node2", 1, 8, 8), row("node3", 3, 8, 4)];
        let policy = "nearest".into();
        PlacementPlan { policy, slab_bytes: 16 << 20, slabs: 4, copies: 2, nodes }
    }

    fn device() -> DevicePlan {
        let row = |node: &str, is_chosen, why: &str| DevicePlanRow {
            node: node.into(),
            address: "/dev/gpu0".into(),
            bytes: 0,
            free_bytes: 0,
            capabilities: vec!["cuda".into()],
            is_chosen,
            why: why.into(),
        };
        let devices = vec![row("node1", false, "granted"), row("node2", true, "chosen")];
        DevicePlan { wanted: "accelerator".into(), devices }
    }

    #[test]
    fn largest_share_is_listed_first() {
        let shown = text(&granted(Some(memory()), Vec::new()));
        let lines: Vec<_> = shown.lines().map(words).collect();
        assert_eq!(lines[1][..5], ["node3", "48MiB", "128MiB", "1", "-4"]);
        assert_eq!((lines[2][0], lines[3][0]), ("node2", "node1"));
        assert!(shown.ends_with("placement nearest: would be granted; nothing was."), "{shown}");
    }

    #[test]
    fn chosen_device_is_listed_first() {
        let shown = text(&granted(None, vec![device()]));
        let first = words(shown.lines().nth(1).unwrap());
        assert_eq!(first, ["node2", "/dev/gpu0", "-", "-", "cuda", "chosen"]);
        assert!(shown.ends_with("accelerator: would be granted; nothing was."), "{shown}");
    }

    #[test]
    fn refusal_ends_plan() {
        let plan = granted(Some(memory()), vec![device()]);
        let refused = AllocationPlan { refusal: "no room".into(), ..plan };
        let said = text(&refused);
        assert!(said.ends_with("nearest; accelerator: would be refused: no room."), "{said}");
        let would_wait = "at rank 2 of the queue".into();
        let waits = text(&AllocationPlan { would_wait, ..refused });
        assert!(waits.ends_with("would wait at rank 2 of the queue: no room."), "{waits}");
    }
}
