//! Begin and end of faults: signals to processes, interfaces that go down, orders to the forwarder.

use anyhow::Result;
use rustix::process::Signal;
use venice_ports::monotonic_ns;
use venice_sim::scenario::{FaultKind, Scenario};

use super::Rack;
use crate::racks::notes::{Role, Source, What, read};
use crate::racks::orders::Order;

/// Faults that are still to begin or to end.
#[derive(Debug)]
pub(super) struct Faults {
    /// By time from the beginning, the last first: time, fault, and true for its begin.
    due: Vec<(u64, usize, bool)>,
    is_calm: bool,
}

impl Faults {
    pub fn of(scenario: &Scenario) -> Self {
        let ends = |(n, fault): (usize, &venice_sim::scenario::Fault)| {
            [(fault.at.0, n, true), (fault.end_ns(), n, false)]
        };
        let mut due: Vec<_> = scenario.faults.iter().enumerate().flat_map(ends).collect();
        // The sort is stable, so that a fault without duration begins before it ends.
        due.sort_by_key(|(at_ns, ..)| *at_ns);
        due.reverse();
        Self { due, is_calm: false }
    }

    pub fn are_over(&self) -> bool {
        self.is_calm
    }
}

impl Rack<'_> {
    /// Executes the due ones.
    pub(super) fn do_faults(&mut self) -> Result<()> {
        let now_ns = monotonic_ns() - self.began_ns;
        while let Some(&(at_ns, fault, begins)) = self.faults.due.last()
            && at_ns <= now_ns
        {
            self.faults.due.pop();
            if begins { self.begin_fault(fault)? } else { self.end_fault(fault)? }
        }
        if self.faults.due.is_empty() && !std::mem::replace(&mut self.faults.is_calm, true) {
            self.notebook.note(What::Calm);
        }
        Ok(())
    }

    fn begin_fault(&mut self, fault: usize) -> Result<()> {
        match self.plan.scenario.faults[fault].kind {
            FaultKind::Cut { .. } | FaultKind::Storm { .. } => {
                self.order_forwarder(Order::Begin { fault });
            }
            FaultKind::Isolate { node } => self.isolate(node, true)?,
            // A donor that dies loses its grants: later grants are new.
            FaultKind::Crash { node, same_keys: _ } => self.crash(node)?,
            FaultKind::KillRecipient { node } => {
                if self.nodes[usize::from(node)].crashes == 0 {
                    self.kill_program(node)?;
                    self.revive_program(node)?;
                }
            }
            FaultKind::Freeze { node } => {
                self.nodes[usize::from(node)].freezes += 1;
                self.nodes[usize::from(node)].signal(Signal::STOP);
            }
            FaultKind::Revoke { node, .. } => {
                self.nodes[usize::from(node)].revokes += 1;
                self.end_grants_of(node);
            }
        }
        Ok(())
    }

    fn end_fault(&mut self, fault: usize) -> Result<()> {
        match self.plan.scenario.faults[fault].kind {
            FaultKind::Cut { .. } | FaultKind::Storm { .. } => {
                self.order_forwarder(Order::Over { fault });
            }
            FaultKind::Isolate { node } => self.isolate(node, false)?,
            FaultKind::Crash { node, .. } => {
                self.nodes[usize::from(node)].crashes -= 1;
                if self.nodes[usize::from(node)].crashes == 0 {
                    self.nodes[usize::from(node)].donor_life += 1;
                    self.start_donor(node)?;
                    self.revive_program(node)?;
                }
            }
            // The new program has begun at once.
            FaultKind::KillRecipient { .. } => {}
            FaultKind::Freeze { node } => {
                let node = &mut self.nodes[usize::from(node)];
                node.freezes -= 1;
                if node.freezes == 0 {
                    node.signal(Signal::CONT);
                }
            }
            FaultKind::Revoke { node, .. } => self.nodes[usize::from(node)].revokes -= 1,
        }
        Ok(())
    }

    fn order_forwarder(&mut self, order: Order) {
        if let Some(forwarder) = &mut self.forwarder {
            forwarder.order(order);
        }
    }

    fn isolate(&mut self, number: u16, begins: bool) -> Result<()> {
        let node = &mut self.nodes[usize::from(number)];
        if !begins {
            node.isolations -= 1;
        }
        let changes = node.isolations == 0;
        node.isolations += u32::from(begins);
        match &self.namespaces {
            Some(namespaces) if changes => namespaces.set_link(number, !begins),
            _ => Ok(()),
        }
    }

    fn crash(&mut self, node: u16) -> Result<()> {
        self.nodes[usize::from(node)].crashes += 1;
        if self.nodes[usize::from(node)].crashes > 1 {
            return Ok(());
        }
        self.end_grants_of(node);
        self.nodes[usize::from(node)].is_lending = false;
        // Dropping a process kills it.
        self.nodes[usize::from(node)].donor = None;
        let life = self.nodes[usize::from(node)].donor_life;
        self.notebook.note(What::Died { process: Source { role: Role::Donor, node, life } });
        self.kill_program(node)
    }

    fn kill_program(&mut self, number: u16) -> Result<()> {
        let node = &mut self.nodes[usize::from(number)];
        node.program = None;
        node.forget_program();
        let program = Source { role: Role::Program, node: number, life: node.program_life };
        node.program_life += 1;
        self.notebook.note(What::Died { process: program });
        let mut begun = 0;
        for note in read(&self.plan.folder, program)? {
            match note.what {
                What::Asked { .. }
                | What::AskedAtomic { .. }
                | What::Sent { .. }
                | What::StreamBegan { .. } => begun += 1,
                What::Withdrawn { .. } => begun -= 1,
                _ => {}
            }
        }
        let node = &mut self.nodes[usize::from(number)];
        node.accesses = node.accesses.saturating_sub(begun);
        self.end_grants_to(number);
        Ok(())
    }

    /// Starts a new life of a program, with the remaining work.
    fn revive_program(&mut self, number: u16) -> Result<()> {
        self.start_program(number)?;
        let node = &self.nodes[usize::from(number)];
        if node.freezes > 0 {
            node.signal(Signal::STOP);
        }
        Ok(())
    }
}
