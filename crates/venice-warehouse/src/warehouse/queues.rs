//! The queues of switches in the results: the fullest, and maps over virtual time.

use venice_experiment::outcome::{HeatMap, HeatRow, QueueRow};
use venice_simkernel::units::Picos;

use super::view::View;
use crate::capture::LinkEnd;
use crate::depths::{Depths, Sampled};
use crate::switch::Switch;
use crate::topology::SwitchNode;

/// Switches in the table, by each of its orders, and in a map.
const SHOWN: usize = 16;

/// A switch of the whole warehouse.
pub(super) struct Numbered<'a> {
    number: u32,
    level: &'a str,
    switch: &'a Switch,
    depths: Option<&'a Depths>,
}

impl Numbered<'_> {
    fn name(&self) -> String {
        format!("{} {}", self.level, self.number)
    }
}

/// Returns all switches by number.
pub(super) fn switches<'a>(of: &View<'a>) -> Vec<Numbered<'a>> {
    let topology = &of.shared.topology;
    let numbered = |(number, node): (u32, &'a SwitchNode)| {
        let at = topology.hosts() + number;
        let part = of.parts[usize::from(of.part_of[at as usize])];
        let (switch, depths) = part.switch(of.shared.place(at));
        Numbered { number, level: topology.level_name(node.level), switch, depths }
    };
    (0..).zip(topology.switches()).map(numbered).collect()
}

/// Returns the switches whose queues were the fullest, and those that dropped the most.
pub(super) fn fullest(switches: &[Numbered<'_>], end: u64) -> Vec<QueueRow> {
    let row = |numbered: &Numbered<'_>| {
        let Numbered { number: switch, switch: of, .. } = *numbered;
        let most = |port: &u16| (of.counters(*port, end).most_queued, std::cmp::Reverse(*port));
        let port = (0..of.ports()).max_by_key(most)?;
        let total = of.total(end);
        Some(QueueRow {
            name: numbered.name(),
            link: LinkEnd::Port { switch, port }.to_string(),
            most_bytes: total.most_queued,
            mean_bytes: total.queued_time as f64 / end.max(1) as f64,
            packets: total.packets,
            queued: total.queued,
            marked: total.marked,
            dropped: total.drops.total(),
        })
    };
    let mut rows: Vec<QueueRow> = switches.iter().filter_map(row).collect();
    rows.retain(|row| row.queued > 0 || row.dropped > 0);
    // Sorts are stable: equal ones stay by number.
    rows.sort_by_key(|row| std::cmp::Reverse(row.dropped));
    let mut others = rows.split_off(rows.len().min(SHOWN));
    others.sort_by_key(|row| std::cmp::Reverse(row.most_bytes));
    others.truncate(SHOWN);
    rows.extend(others);
    rows.sort_by_key(|row| std::cmp::Reverse((row.most_bytes, row.dropped)));
    rows
}

/// Returns what waited over virtual time: in the mean switch of each level, and in the fullest switches.
pub(super) fn heatmaps(switches: &[Numbered<'_>], width: u64, end: u64) -> Vec<HeatMap> {
    let sampled = |one: &Numbered<'_>| one.depths.map(|depths| depths.sampled(end));
    let Some(sampled) = switches.iter().map(sampled).collect::<Option<Vec<Sampled>>>() else {
        return Vec::new();
    };
    if switches.is_empty() {
        return Vec::new();
    }
    let column_s = Picos(Depths::width_until(width, end)).as_secs();
    let map = |name: &str, title: &str, rows| HeatMap {
        name: name.to_owned(),
        title: title.to_owned(),
        unit: "B".to_owned(),
        column_s,
        rows,
    };
    vec![
        map("levels", "Bytes that wait in a switch, mean by level", levels(switches, &sampled)),
        map(
            "switches",
            "Most bytes that wait at once, fullest switches",
            fullest_rows(switches, &sampled),
        ),
    ]
}

/// Returns a row a level, with the mean over its switches.
fn levels(switches: &[Numbered<'_>], sampled: &[Sampled]) -> Vec<HeatRow> {
    let mut names: Vec<&str> = switches.iter().map(|one| one.level).collect();
    names.dedup();
    let row = |name: &str| {
        let of_level = switches.iter().zip(sampled).filter(|(one, _)| one.level == name);
        let all: Vec<&[u64]> = of_level.map(|(_, sampled)| &*sampled.mean).collect();
        let columns = 0..all.first().map_or(0, |first| first.len());
        let mean = |at: usize| {
            let sum: u128 = all.iter().map(|values| u128::from(values[at])).sum();
            u64::try_from(sum / all.len() as u128).unwrap_or(u64::MAX)
        };
        HeatRow { name: name.to_owned(), values: columns.map(mean).collect() }
    };
    names.into_iter().map(row).collect()
}

/// Returns a row for each of the switches in which the most waited, the fullest first.
fn fullest_rows(switches: &[Numbered<'_>], sampled: &[Sampled]) -> Vec<HeatRow> {
    let row = |(one, sampled): (&Numbered<'_>, &Sampled)| HeatRow {
        name: one.name(),
        values: sampled.most.clone(),
    };
    let mut rows: Vec<HeatRow> = switches.iter().zip(sampled).map(row).collect();
    let most = |row: &HeatRow| row.values.iter().max().copied().unwrap_or(0);
    rows.retain(|row| most(row) > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(most(row)));
    rows.truncate(SHOWN);
    rows
}
