//! The Topology Status Table for users.

use super::MonitorCore;
use crate::rows::LinkRow;
use crate::rrt::NodeEntry;
use crate::types::{FlowPeer, FlowReport, LinkPort, LinkProtection, LinkReport, LinkState};
use venice_wire::{GrantId, NodeId};

/// The protection of mapped memory.
const BY_DESCRIPTOR: &str = "descriptor";

impl MonitorCore {
    /// Returns the links tested by nodes, by tester and far end; then the traffic of recipients, as
    /// seen by their donors.
    pub fn link_rows(&self) -> Vec<LinkRow> {
        let mut rows: Vec<_> =
            self.tst.iter().map(|(from, report)| self.tested_row(from, report)).collect();
        for (donor, entry) in self.rrt.iter() {
            let flows = entry.port.flows.iter();
            rows.extend(flows.filter_map(|flow| self.flow_row(donor, entry, flow)));
            let mapped = entry.port.mapped.iter();
            rows.extend(mapped.filter_map(|grant| self.mapped_row(entry, *grant)));
        }
        rows
    }

    fn tested_row(&self, from: NodeId, report: &LinkReport) -> LinkRow {
        let far_end = self.rrt.get(report.to);
        let flows = far_end.map_or(&[][..], |entry| &entry.port.flows);
        let flow = flows.iter().find(|flow| flow.with == FlowPeer::Node(from));
        let is_hop = report.port == LinkPort::Hop;
        let port = match report.port {
            LinkPort::Udp => "udp",
            LinkPort::Shm => "shm",
            LinkPort::Hop => "hop",
        };
        LinkRow {
            from: self.name_of(from),
            to: self.name_of(report.to),
            port: port.to_owned(),
            state: match report.state {
                LinkState::Up => "up".to_owned(),
                LinkState::Down => "down".to_owned(),
            },
            latency_us: (report.state == LinkState::Up).then_some(report.latency_us),
            loss_ratio: Some(report.loss_ratio),
            bandwidth_mbps: report.bandwidth_mbps,
            bytes_per_s: if is_hop { report.bytes_per_s } else { flow.map(|f| f.bytes_per_s) },
            protection: report.protection.name().to_owned(),
            hops: is_hop.then_some(1),
            // A relay delays what it sends.
            emulated: if is_hop { self.link_of(from) } else { String::new() },
            reported_by: self.name_of(from),
            ..bare_row(far_end)
        }
    }

    /// Returns the row of a recipient's UDP traffic at a donor.
    fn flow_row(&self, donor: NodeId, entry: &NodeEntry, flow: &FlowReport) -> Option<LinkRow> {
        let grant = match flow.with {
            FlowPeer::Grant(grant) => Some(self.rat.get(grant)?),
            FlowPeer::Anybody if flow.bytes_per_s > 0.0 => None,
            FlowPeer::Anybody | FlowPeer::Node(_) => return None,
        };
        let way = grant.and_then(|grant| Some((grant.home?, grant.donor)));
        let way = way.filter(|(from, to)| self.is_way_open(*from, *to));
        Some(LinkRow {
            from: grant.map_or_else(|| "*".to_owned(), |grant| grant.recipient.clone()),
            to: entry.record.name.clone(),
            port: "udp".to_owned(),
            bytes_per_s: Some(flow.bytes_per_s),
            protection: self.protection_of(donor, entry).name().to_owned(),
            via: way.and_then(|(from, to)| self.relays_between(from, to)).unwrap_or_default(),
            hops: way.and_then(|(from, to)| self.hops(from, to)),
            ..bare_row(Some(entry))
        })
    }

    /// Returns the row of a recipient that has mapped a donor's memory.
    fn mapped_row(&self, entry: &NodeEntry, grant: GrantId) -> Option<LinkRow> {
        Some(LinkRow {
            from: self.rat.get(grant)?.recipient.clone(),
            to: entry.record.name.clone(),
            port: "shm".to_owned(),
            protection: BY_DESCRIPTOR.to_owned(),
            emulated: entry.record.link.clone(),
            reported_by: entry.record.name.clone(),
            ..bare_row(None)
        })
    }

    fn protection_of(&self, donor: NodeId, entry: &NodeEntry) -> LinkProtection {
        let tested = self.tst.iter().find(|(_, report)| report.to == donor);
        match (entry.record.secret, tested) {
            (None, _) => LinkProtection::Plain,
            (Some(_), Some((_, report))) => report.protection,
            (Some(_), None) => LinkProtection::Aes256Gcm,
        }
    }

    pub(super) fn link_of(&self, node: NodeId) -> String {
        self.rrt.get(node).map(|entry| entry.record.link.clone()).unwrap_or_default()
    }
}

/// Returns a row without ends, of a link that its far end reports.
fn bare_row(far_end: Option<&NodeEntry>) -> LinkRow {
    let is_up = far_end.is_none_or(|entry| entry.up);
    LinkRow {
        from: String::new(),
        to: String::new(),
        port: String::new(),
        state: if is_up { "up" } else { "down" }.to_owned(),
        latency_us: None,
        loss_ratio: None,
        bandwidth_mbps: None,
        bytes_per_s: None,
        protection: String::new(),
        via: Vec::new(),
        hops: None,
        emulated: String::new(),
        reported_by: far_end.map(|entry| entry.record.name.clone()).unwrap_or_default(),
    }
}
