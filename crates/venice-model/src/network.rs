//! Table 1: interconnects that are fast enough, for each resource and distance.

use serde::Serialize;

use crate::error::ModelError;
use crate::parameter::{Model, Outcome, Parameter, check};
use crate::quantity::Quantity;
use crate::statement::Statement;

/// Resources of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Memory on its own bus.
    Memory,
    /// Graphics processors and other accelerators.
    Gpu,
    /// Solid-state disks.
    Ssd,
    /// Hard disks.
    Hdd,
}

/// Distances to a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// In the same rack.
    Rack,
    /// In the same PoD.
    Pod,
    /// Anywhere in the data centre.
    Datacenter,
}

/// Interconnects between a server and a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interconnect {
    /// Optical from end to end, no switch.
    SiliconPhotonics,
    /// A switch of PCIe lanes.
    PcieSwitch,
    /// A low-latency top-of-rack switch.
    TorSwitch,
    /// An InfiniBand switch.
    InfinibandSwitch,
    /// A flat network of spine and leaf switches.
    SpineLeaf,
    /// An optical switch.
    OpticalCircuitSwitch,
    /// A fabric of the user's own.
    Own,
}

/// Range of latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Span {
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// Relation of an interconnect's latency to a resource's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// Fast enough, even the slowest of its kind for the fastest resource.
    Enough,
    /// Fast enough for some only.
    Depends,
    /// Too slow, even the fastest for the slowest resource.
    TooSlow,
}

/// An interconnect over a distance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reach {
    /// Interconnect used.
    pub interconnect: Interconnect,
    /// Distance covered.
    pub distance: Distance,
    /// Latency added to an access, in nanoseconds.
    pub added_ns: Span,
}

/// One entry of the table: a resource, a distance, an interconnect.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// Pooled resource.
    pub resource: Resource,
    /// Interconnect and distance.
    #[serde(flatten)]
    pub reach: Reach,
    /// Added latency relative to the resource's own, of 1.
    pub of_own: Span,
    /// Verdict on the latency.
    pub fit: Fit,
    /// True if the paper's table has this entry.
    pub in_paper: bool,
}

impl Resource {
    /// All resources.
    pub const ALL: [Resource; 4] = [Resource::Memory, Resource::Gpu, Resource::Ssd, Resource::Hdd];

    /// Returns the display name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::Gpu => "GPU/FPGA",
            Resource::Ssd => "SSD",
            Resource::Hdd => "HDD",
        }
    }
}

impl Distance {
    /// All distances.
    pub const ALL: [Distance; 3] = [Distance::Rack, Distance::Pod, Distance::Datacenter];

    /// Returns the display name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Distance::Rack => "rack",
            Distance::Pod => "PoD",
            Distance::Datacenter => "data centre",
        }
    }
}

impl Interconnect {
    /// Interconnects of the paper.
    pub const PAPER: [Interconnect; 6] = [
        Interconnect::SiliconPhotonics,
        Interconnect::PcieSwitch,
        Interconnect::TorSwitch,
        Interconnect::InfinibandSwitch,
        Interconnect::SpineLeaf,
        Interconnect::OpticalCircuitSwitch,
    ];

    /// Returns the display name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Interconnect::SiliconPhotonics => "silicon photonics",
            Interconnect::PcieSwitch => "PCIe switch",
            Interconnect::TorSwitch => "TOR switch",
            Interconnect::InfinibandSwitch => "InfiniBand switch",
            Interconnect::SpineLeaf => "spine-leaf network",
            Interconnect::OpticalCircuitSwitch => "optical circuit switch",
            Interconnect::Own => "your own (--fabric)",
        }
    }

    /// True if the paper's table names it for this resource and distance.
    fn in_paper(self, resource: Resource, distance: Distance) -> bool {
        use Interconnect as I;
        match (self, resource, distance) {
            (I::SiliconPhotonics, Resource::Memory, Distance::Rack) => true,
            (I::OpticalCircuitSwitch, _, Distance::Pod | Distance::Datacenter) => true,
            (_, Resource::Memory, _) => false,
            (I::PcieSwitch | I::TorSwitch | I::InfinibandSwitch, _, Distance::Rack) => true,
            (I::SpineLeaf, _, Distance::Pod | Distance::Datacenter) => true,
            _ => false,
        }
    }
}

impl Span {
    fn exactly(value: f64) -> Self {
        Self { least: value, most: value }
    }
}

/// Figures behind the table.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkModel {
    /// Own latency of each [`Resource`], in nanoseconds.
    pub resources_ns: [Span; 4],
    /// Metres to a pool at each [`Distance`].
    pub distances_m: [f64; 3],
    /// Port-to-port latency of each [`Interconnect`], in nanoseconds.
    pub interconnects_ns: [Span; 7],
    /// Propagation time of light for a metre, in nanoseconds.
    pub ns_per_m: f64,
    /// Number of times that distance and interconnect count for an access: once in the paper; there
    /// and back they would count twice.
    pub crossings: f64,
    /// Most latency that may be added to a resource's own, relative to that, of 1.
    pub at_most: f64,
}

/// The paper's figures, where it gives them. Photonics has no switch. "Insignificant" is no number:
/// with a third the whole table is reproduced except memory beyond the rack; so it is from 30 % to
/// 220 %. `Own` is the Venice paper's link.
impl Default for NetworkModel {
    fn default() -> Self {
        let span = |least, most| Span { least, most };
        Self {
            resources_ns: [
                Span::exactly(75.0),
                span(5e3, 10e3),
                Span::exactly(100e3),
                Span::exactly(25e6),
            ],
            distances_m: [3.0, 50.0, 200.0],
            interconnects_ns: [
                Span::exactly(0.0),
                Span::exactly(150.0),
                span(380.0, 1000.0),
                Span::exactly(700.0),
                span(2e3, 10e3),
                Span::exactly(30.0),
                Span::exactly(1400.0),
            ],
            ns_per_m: 5.0,
            crossings: 1.0,
            at_most: 1.0 / 3.0,
        }
    }
}

impl NetworkModel {
    /// Returns an interconnect's added latency over a distance.
    #[must_use]
    pub fn reach(&self, interconnect: Interconnect, distance: Distance) -> Reach {
        let way_ns = self.distances_m[distance as usize] * self.ns_per_m;
        let Span { least, most } = self.interconnects_ns[interconnect as usize];
        let added = |port_ns: f64| self.crossings * (way_ns + port_ns);
        Reach { interconnect, distance, added_ns: Span { least: added(least), most: added(most) } }
    }

    /// Returns one entry of the table.
    #[must_use]
    pub fn cell(&self, resource: Resource, distance: Distance, by: Interconnect) -> Cell {
        let reach = self.reach(by, distance);
        let own = self.resources_ns[resource as usize];
        let of_own =
            Span { least: reach.added_ns.least / own.most, most: reach.added_ns.most / own.least };
        let fit = match of_own {
            Span { most, .. } if most <= self.at_most => Fit::Enough,
            Span { least, .. } if least <= self.at_most => Fit::Depends,
            _ => Fit::TooSlow,
        };
        Cell { resource, reach, of_own, fit, in_paper: by.in_paper(resource, distance) }
    }

    /// Returns every entry for the paper's interconnects and the user's own, by resource, distance,
    /// interconnect.
    ///
    /// # Errors
    /// Fails if a figure is invalid.
    pub fn cells(&self) -> Result<Vec<Cell>, ModelError> {
        self.check()?;
        let by = || Interconnect::PAPER.into_iter().chain([Interconnect::Own]);
        let all = Resource::ALL.into_iter().flat_map(move |resource| {
            Distance::ALL.into_iter().flat_map(move |distance| {
                by().map(move |interconnect| self.cell(resource, distance, interconnect))
            })
        });
        Ok(all.collect())
    }

    fn check(&self) -> Result<(), ModelError> {
        let positive = |value: f64| value > 0.0;
        for (resource, span) in Resource::ALL.iter().zip(&self.resources_ns) {
            let name = format!("the latency of {}", resource.name());
            check(&name, Quantity::Time, span.least, positive, "more than 0 ns")?;
            let rises = |most: f64| most >= span.least;
            check(&name, Quantity::Time, span.most, rises, "at most that of the slowest")?;
        }
        for (interconnect, span) in Interconnect::PAPER.iter().zip(&self.interconnects_ns) {
            let name = format!("the latency of a {}", interconnect.name());
            let rises = |most: f64| most >= span.least;
            check(&name, Quantity::Time, span.most, rises, "at least that of the fastest")?;
        }
        check("--crossings", Quantity::Count, self.crossings, positive, "more than 0")?;
        check("--at-most", Quantity::Share, self.at_most, positive, "more than 0 %")
    }
}

const fn resource_least<const K: usize>(
    name: &'static str,
    about: &'static str,
) -> Parameter<NetworkModel> {
    Parameter {
        name,
        quantity: Quantity::Time,
        about,
        get: |model| model.resources_ns[K].least,
        set: |model, value| model.resources_ns[K].least = value,
    }
}

const fn resource<const K: usize>(
    name: &'static str,
    about: &'static str,
) -> Parameter<NetworkModel> {
    Parameter {
        set: |model, value| model.resources_ns[K] = Span::exactly(value),
        ..resource_least::<K>(name, about)
    }
}

const fn interconnect<const K: usize>(
    name: &'static str,
    about: &'static str,
) -> Parameter<NetworkModel> {
    Parameter {
        name,
        quantity: Quantity::Time,
        about,
        get: |model| model.interconnects_ns[K].least,
        set: |model, value| model.interconnects_ns[K] = Span::exactly(value),
    }
}

const fn interconnect_least<const K: usize>(name: &'static str) -> Parameter<NetworkModel> {
    Parameter {
        set: |model, value| model.interconnects_ns[K].least = value,
        ..interconnect::<K>(name, "Port-to-port latency, the fastest of its kind")
    }
}

const fn interconnect_most<const K: usize>(name: &'static str) -> Parameter<NetworkModel> {
    Parameter {
        get: |model| model.interconnects_ns[K].most,
        set: |model, value| model.interconnects_ns[K].most = value,
        ..interconnect::<K>(name, "Port-to-port latency, the slowest of its kind")
    }
}

const fn distance<const K: usize>(name: &'static str) -> Parameter<NetworkModel> {
    Parameter {
        name,
        quantity: Quantity::Length,
        about: "Length of the path of light",
        get: |model| model.distances_m[K],
        set: |model, value| model.distances_m[K] = value,
    }
}

const FROM_PORT_TO_PORT: &str = "Port-to-port latency";

impl Model for NetworkModel {
    const PARAMETERS: &'static [Parameter<Self>] = &[
        interconnect::<{ Interconnect::Own as usize }>(
            "fabric",
            "Port-to-port latency of your own fabric; by default the Venice paper's link",
        ),
        Parameter {
            name: "at-most",
            quantity: Quantity::Share,
            about: "Most latency that may be added, relative to a resource's own",
            get: |model| model.at_most,
            set: |model, value| model.at_most = value,
        },
        Parameter {
            name: "crossings",
            quantity: Quantity::Count,
            about: "Times that distance and interconnect count for an access; 2: there and back",
            get: |model| model.crossings,
            set: |model, value| model.crossings = value,
        },
        Parameter {
            name: "propagation",
            quantity: Quantity::TimePerLength,
            about: "Propagation time of light for a metre",
            get: |model| model.ns_per_m,
            set: |model, value| model.ns_per_m = value,
        },
        distance::<{ Distance::Rack as usize }>("rack-distance"),
        distance::<{ Distance::Pod as usize }>("pod-distance"),
        distance::<{ Distance::Datacenter as usize }>("datacenter-distance"),
        resource::<{ Resource::Memory as usize }>("memory-latency", "Own latency of memory"),
        resource_least::<{ Resource::Gpu as usize }>(
            "gpu-latency-least",
            "Own latency of the fastest work of GPUs and FPGAs",
        ),
        Parameter {
            get: |model| model.resources_ns[Resource::Gpu as usize].most,
            set: |model, value| model.resources_ns[Resource::Gpu as usize].most = value,
            ..resource_least::<{ Resource::Gpu as usize }>(
                "gpu-latency-most",
                "Own latency of the slowest work of GPUs and FPGAs",
            )
        },
        resource::<{ Resource::Ssd as usize }>("ssd-latency", "Own latency of an SSD"),
        resource::<{ Resource::Hdd as usize }>("hdd-latency", "Own latency of a hard disk"),
        interconnect::<{ Interconnect::SiliconPhotonics as usize }>(
            "photonics-latency",
            "Latency that silicon photonics adds to the path itself",
        ),
        interconnect::<{ Interconnect::PcieSwitch as usize }>("pcie-latency", FROM_PORT_TO_PORT),
        interconnect_least::<{ Interconnect::TorSwitch as usize }>("tor-latency-least"),
        interconnect_most::<{ Interconnect::TorSwitch as usize }>("tor-latency-most"),
        interconnect::<{ Interconnect::InfinibandSwitch as usize }>(
            "infiniband-latency",
            FROM_PORT_TO_PORT,
        ),
        interconnect_least::<{ Interconnect::SpineLeaf as usize }>("spine-leaf-latency-least"),
        interconnect_most::<{ Interconnect::SpineLeaf as usize }>("spine-leaf-latency-most"),
        interconnect::<{ Interconnect::OpticalCircuitSwitch as usize }>(
            "optical-switch-latency",
            FROM_PORT_TO_PORT,
        ),
    ];

    /// Returns, for each resource at each distance, the least added latency in the paper's table,
    /// and that of the user's own fabric; both relative to the resource's own latency.
    fn outcomes(&self) -> Result<Vec<Outcome>, ModelError> {
        let cells = self.cells()?;
        let mut outcomes = Vec::new();
        for of in
            cells.chunk_by(|a, b| (a.resource, a.reach.distance) == (b.resource, b.reach.distance))
        {
            let place = format!("{}, {}", of[0].resource.name(), of[0].reach.distance.name());
            let paper = of.iter().filter(|cell| cell.in_paper).map(|cell| cell.of_own.most);
            let own = of.iter().filter(|cell| cell.reach.interconnect == Interconnect::Own);
            let least = paper.fold(f64::INFINITY, f64::min);
            outcomes.push(Outcome::new(format!("{place}: Table 1"), Quantity::Share, least));
            outcomes.extend(own.map(|cell| {
                Outcome::new(format!("{place}: --fabric"), Quantity::Share, cell.of_own.most)
            }));
        }
        Ok(outcomes)
    }

    fn statements() -> Vec<Statement> {
        let model = Self::default();
        let way_ns = |distance: Distance| model.distances_m[distance as usize] * model.ns_per_m;
        let once = "all three count the metres once; --crossings 2 counts them there and back";
        let time = Quantity::Time;
        vec![
            Statement::new(
                ("5", "3 m in a rack take"),
                time,
                (15.0, way_ns(Distance::Rack)),
                0.5,
                once,
            ),
            Statement::new(
                ("5", "50 m in a PoD take"),
                time,
                (250.0, way_ns(Distance::Pod)),
                0.5,
                "",
            ),
            Statement::new(
                ("5", "200 m in a data centre take"),
                time,
                (1000.0, way_ns(Distance::Datacenter)),
                0.5,
                "",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reproduces_table_except_far_memory() {
        let cells = NetworkModel::default().cells().unwrap();
        assert_eq!(cells.len(), 4 * 3 * 7);
        let papers: Vec<_> = cells.iter().filter(|cell| cell.in_paper).collect();
        // Memory: one entry for each distance. All others: three in the rack, two further away.
        assert_eq!(papers.len(), 3 + 3 * (3 + 2 + 2));
        for cell in papers {
            let beyond = cell.resource == Resource::Memory && cell.reach.distance != Distance::Rack;
            assert_eq!(cell.fit == Fit::TooSlow, beyond, "{cell:?}");
        }
    }

    #[test]
    fn unlisted_memory_interconnects_are_too_slow() {
        let model = NetworkModel::default();
        for by in
            [Interconnect::PcieSwitch, Interconnect::TorSwitch, Interconnect::InfinibandSwitch]
        {
            assert_eq!(model.cell(Resource::Memory, Distance::Rack, by).fit, Fit::TooSlow);
        }
        let photonics =
            model.cell(Resource::Memory, Distance::Rack, Interconnect::SiliconPhotonics);
        assert_eq!((photonics.fit, photonics.reach.added_ns.most), (Fit::Enough, 15.0));
        assert!((photonics.of_own.most - 0.2).abs() < 1e-12);
    }

    #[test]
    fn documented_bounds_are_exact() {
        let kept = |at_most: f64| {
            let model = NetworkModel { at_most, ..NetworkModel::default() };
            let differs = |cell: &&Cell| {
                let memory_far =
                    cell.resource == Resource::Memory && cell.reach.distance != Distance::Rack;
                cell.in_paper && !memory_far && cell.fit == Fit::TooSlow
                    || cell.resource == Resource::Memory
                        && cell.reach.distance == Distance::Rack
                        && cell.reach.interconnect == Interconnect::PcieSwitch
                        && cell.fit != Fit::TooSlow
            };
            model.cells().unwrap().iter().filter(differs).count() == 0
        };
        assert!(kept(0.3001) && kept(2.19), "from 30 % on, and to 220 %");
        assert!(!kept(0.2999) && !kept(2.21));
    }

    #[test]
    fn distances_match_paper_statements() {
        let statements = NetworkModel::statements();
        let agree: Vec<bool> = statements.iter().map(|one| one.agrees).collect();
        assert_eq!(agree, [true; 3]);
        let twice = NetworkModel { crossings: 2.0, ..NetworkModel::default() };
        let reach = twice.reach(Interconnect::OpticalCircuitSwitch, Distance::Rack);
        assert_eq!(reach.added_ns.most, 90.0);
    }

    #[test]
    fn slower_fabric_never_fits_better() {
        let share = |fabric_ns: f64| {
            let mut model = NetworkModel::default();
            (NetworkModel::parameter("fabric").unwrap().set)(&mut model, fabric_ns);
            model.cell(Resource::Gpu, Distance::Rack, Interconnect::Own)
        };
        let fits: Vec<Fit> = [100.0, 1000.0, 2000.0, 5000.0].map(|ns| share(ns).fit).into();
        assert_eq!(fits, [Fit::Enough, Fit::Enough, Fit::Depends, Fit::TooSlow]);
    }

    #[test]
    fn rejects_invalid_parameters() {
        let mut model = NetworkModel::default();
        model.resources_ns[1] = Span { least: 10.0, most: 5.0 };
        assert!(model.outcomes().unwrap_err().to_string().contains("GPU"));
        let model = NetworkModel { crossings: 0.0, ..NetworkModel::default() };
        assert!(model.outcomes().unwrap_err().to_string().contains("--crossings"));
        let model = NetworkModel { at_most: 0.0, ..NetworkModel::default() };
        assert!(model.outcomes().is_err());
    }
}
