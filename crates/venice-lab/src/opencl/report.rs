//! The report of `venice bench accel`.

use std::fmt;

use serde::{Deserialize, Serialize};
use venice_measure::machine::Machine;

use super::worker::Figures;
use crate::plot::Unit;
use crate::report_table::ReportTable;

/// Place of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The local driver.
    Local,
    /// Granted, on this machine: messages and memory are shared.
    Shm,
    /// Granted, in datagrams over a virtual wire.
    Udp,
    /// Another driver.
    Peer(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Shm => "Venice, shm",
            Self::Udp => "Venice, udp",
            Self::Peer(name) => name,
        })
    }
}

/// Turns of one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlaceReport {
    /// The place.
    pub place: Place,
    /// Figures of each turn.
    pub turns: Vec<Figures>,
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccelReport {
    /// This machine.
    pub machine: Machine,
    /// True if not all was measured.
    pub interrupted: bool,
    /// The places.
    pub places: Vec<PlaceReport>,
}

/// Nanoseconds of a microsecond.
const US: f64 = 1e3;

/// Aim of a figure, beside the local one.
#[derive(Clone, Copy)]
enum Aim {
    /// At most the local one and so many microseconds.
    LocalPlus(f64),
    /// At most so many microseconds.
    Micros(f64),
    /// At most the local one so many times.
    Times(f64),
    /// At least this share of the local one.
    Share(f64),
    None,
}

/// A row: name, unit, figure, aims over shm and udp.
struct Row {
    name: &'static str,
    unit: Unit,
    figure: fn(&Figures) -> Option<f64>,
    aims: [Aim; 2],
}

const ROWS: [Row; 11] = [
    Row {
        name: "empty kernel and finish, p50",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.kernel_ns[0]),
        aims: [Aim::LocalPlus(15.0), Aim::LocalPlus(40.0)],
    },
    Row {
        name: "the same, p99",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.kernel_ns[1]),
        aims: [Aim::None, Aim::Micros(1000.0)],
    },
    Row {
        name: "kernel in a queue of 5000",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.queued_ns),
        aims: [Aim::Micros(5.0), Aim::Micros(8.0)],
    },
    Row {
        name: "write 4 B, blocking",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.write_ns),
        aims: [Aim::Micros(35.0), Aim::Micros(60.0)],
    },
    Row {
        name: "read 4 KiB, blocking",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.read_ns),
        aims: [Aim::Micros(35.0), Aim::Micros(60.0)],
    },
    Row {
        name: "kernel, then read 4 B, p50",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.kernel_read_ns[0]),
        aims: [Aim::LocalPlus(20.0), Aim::LocalPlus(50.0)],
    },
    Row {
        name: "the same, p99",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.kernel_read_ns[1]),
        aims: [Aim::None, Aim::None],
    },
    Row {
        name: "map and unmap 1 MiB",
        unit: Unit::Nanoseconds,
        figure: |it| Some(it.map_ns),
        aims: [Aim::Times(2.0), Aim::None],
    },
    Row {
        name: "write 64 MiB",
        unit: Unit::BytesPerSecond,
        figure: |it| Some(it.write_bps),
        aims: [Aim::Share(0.9), Aim::None],
    },
    Row {
        name: "read 64 MiB",
        unit: Unit::BytesPerSecond,
        figure: |it| Some(it.read_bps),
        aims: [Aim::Share(0.9), Aim::None],
    },
    Row {
        name: "64 MiB from device to device",
        unit: Unit::BytesPerSecond,
        figure: |it| it.between_bps,
        aims: [Aim::None, Aim::None],
    },
];

impl Aim {
    /// Describes the aim.
    fn text(self, unit: Unit, local: f64) -> String {
        match self {
            Self::LocalPlus(more) => unit.write(local + more * US),
            Self::Micros(most) => unit.write(most * US),
            Self::Times(times) => unit.write(local * times),
            Self::Share(share) => unit.write(local * share),
            Self::None => "-".to_owned(),
        }
    }

    fn is_met(self, local: f64, value: f64) -> bool {
        match self {
            Self::LocalPlus(more) => value <= local + more * US,
            Self::Micros(most) => value <= most * US,
            Self::Times(times) => value <= local * times,
            Self::Share(share) => value >= local * share,
            Self::None => true,
        }
    }
}

impl AccelReport {
    /// Returns the median of a figure in a place.
    fn median(&self, place: &Place, figure: fn(&Figures) -> Option<f64>) -> Option<f64> {
        let report = self.places.iter().find(|report| report.place == *place)?;
        let mut values: Vec<f64> = report.turns.iter().filter_map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    pub(super) fn table(&self) -> ReportTable {
        let mut head = vec!["OpenCL".to_owned()];
        head.extend(self.places.iter().map(|report| report.place.to_string()));
        head.extend(["aim, shm".to_owned(), "aim, udp".to_owned()]);
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let turns = self.places.iter().map(|it| it.turns.len()).min().unwrap_or(0);
        let title = format!("An OpenCL program, medians of {turns} turns");
        let mut table = ReportTable::new(title, &head, 1);
        for row in &ROWS {
            let local = self.median(&Place::Local, row.figure);
            let mut cells = vec![row.name.to_owned()];
            cells.extend(self.places.iter().map(|report| self.cell(row, &report.place, local)));
            let aim = |aim: Aim| local.map_or("-".to_owned(), |local| aim.text(row.unit, local));
            cells.extend(row.aims.map(aim));
            table.rows.push(cells);
        }
        table.notes.push(
            "A figure with ! misses its aim. The processors of this machine are device, donor and \
             program at once."
                .to_owned(),
        );
        if self.interrupted {
            table.notes.push("INTERRUPTED: what is not above was not measured.".to_owned());
        }
        table
    }

    fn cell(&self, row: &Row, place: &Place, local: Option<f64>) -> String {
        let Some(value) = self.median(place, row.figure) else { return "-".to_owned() };
        let aim = match place {
            Place::Shm => row.aims[0],
            Place::Udp => row.aims[1],
            Place::Local | Place::Peer(_) => Aim::None,
        };
        let is_met = local.is_none_or(|local| aim.is_met(local, value));
        format!("{}{}", row.unit.write(value), if is_met { "" } else { " !" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_aims_are_marked() {
        let figures = |kernel: f64| Figures {
            kernel_ns: [kernel * US; 2],
            queued_ns: 4.0 * US,
            write_bps: 8e9,
            read_bps: 8e9,
            ..Figures::default()
        };
        let place = |place, kernel| PlaceReport { place, turns: vec![figures(kernel); 3] };
        let report = AccelReport {
            machine: Machine::describe(),
            interrupted: false,
            places: vec![
                place(Place::Local, 10.0),
                place(Place::Shm, 30.0),
                place(Place::Udp, 45.0),
                place(Place::Peer("other".to_owned()), 99.0),
            ],
        };
        let table = report.table();
        let marked: Vec<_> = table.rows[0].iter().map(|cell| cell.ends_with('!')).collect();
        assert_eq!(marked, [false, false, true, false, false, false, false]);
        assert!(table.text().contains("other"), "{}", table.text());
    }
}
