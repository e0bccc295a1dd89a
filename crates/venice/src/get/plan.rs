//! `--dry-run` for devices: the device that would be granted, and the reasons.

use venice_control::client::Access;
use venice_control::{DevicePlan, DevicePlanRow};
use venice_recipient::{DeviceWish, plan_device};

use crate::waiting::told;
use venice_cli::failure::EXIT_FAILURE;
use venice_cli::terminal::{self, Align};

/// Prints the plan.
pub fn show(access: &Access, wish: &DeviceWish, json: bool) -> anyhow::Result<i32> {
    let plan = plan_device(access, wish).map_err(told)?;
    match json {
        true => terminal::say_json(&plan)?,
        false => terminal::say(text(&plan))?,
    }
    Ok(if plan.refusal.is_empty() || !plan.would_wait.is_empty() { 0 } else { EXIT_FAILURE })
}

fn text(plan: &DevicePlan) -> String {
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
    let outcome = match plan.refusal.as_str() {
        "" => "would be granted; nothing was".to_owned(),
        refusal if plan.would_wait.is_empty() => format!("would be refused: {refusal}"),
        refusal => format!("would wait {}: {refusal}", plan.would_wait),
    };
    let table = terminal::table(&columns, rows.into_iter().map(line).collect());
    format!("{table}\n{}: {outcome}.", plan.wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_device_is_listed_first() {
        let row = |node: &str, is_chosen, why: &str| DevicePlanRow {
            node: node.into(),
            address: "/dev/gpu0".into(),
            bytes: 0,
            free_bytes: 0,
            capabilities: vec!["cuda".into()],
            is_chosen,
            why: why.into(),
        };
        let plan = DevicePlan {
            wanted: "accelerator".into(),
            refusal: String::new(),
            would_wait: String::new(),
            devices: vec![row("node1", false, "granted"), row("node2", true, "chosen")],
        };
        let shown = text(&plan);
        let words: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["node2", "/dev/gpu0", "-", "-", "cuda", "chosen"]);
        assert!(shown.ends_with("accelerator: would be granted; nothing was."), "{shown}");
        let would_wait = "at rank 1 of the queue".to_owned();
        let waits = text(&DevicePlan { refusal: "none".into(), would_wait, ..plan });
        assert!(
            waits.ends_with("accelerator: would wait at rank 1 of the queue: none."),
            "{waits}"
        );
    }
}
