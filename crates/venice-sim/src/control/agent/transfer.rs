//! Grants that change hands, at the donor.

use venice_rack::donor::Switched;
use venice_rack::types::{DonorStatus, LeaseState, Refusal, TransferStep};
use venice_wire::{GrantId, GrantKey};

use super::{Agent, Life};
use crate::control::desk::{Desk, Fact};
use crate::control::messages::{CallId, Response};
use crate::control::sabotage::Sabotage;

impl Agent {
    pub(super) fn prepare_transfer(
        &mut self,
        desk: &mut Desk<'_>,
        call: CallId,
        step: TransferStep,
    ) {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else { return };
        let result = match self.sabotage {
            Some(Sabotage::SwitchEarly) => self.switch(desk, &step),
            _ => life.core.handle_prepare_transfer(local_ns, &step),
        };
        self.carry_out(desk);
        self.look(desk);
        desk.reply(call, Response::Status(result));
    }

    pub(super) fn commit_transfer(
        &mut self,
        desk: &mut Desk<'_>,
        call: CallId,
        step: TransferStep,
    ) {
        let result = match (self.sabotage, &self.life) {
            (Some(Sabotage::ForgetSwitch), Some(life)) => Ok(life.core.status()),
            _ => self.switch(desk, &step),
        };
        self.carry_out(desk);
        self.look(desk);
        desk.reply(call, Response::Status(result));
    }

    fn switch(&mut self, desk: &mut Desk<'_>, step: &TransferStep) -> Result<DonorStatus, Refusal> {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else {
            unreachable!("a call reaches only a living process")
        };
        let old_key = life.core.grant(step.from).map(|view| view.key);
        let switched = life.core.handle_transfer(local_ns, step)?;
        if let Switched::New(_) = switched {
            if let Some(slabs) = life.of_grants.remove(&step.from) {
                life.of_grants.insert(step.grant, slabs);
            }
            if self.sabotage == Some(Sabotage::KeepOldKey) {
                life.stale.extend(old_key.map(|key| (step.from, key)));
            }
            desk.fact(Fact::Switches { donor: self.number, step: Box::new(step.clone()) });
        }
        Ok(switched.status())
    }

    pub(super) fn abort_transfer(
        &mut self,
        desk: &mut Desk<'_>,
        call: CallId,
        (from, grant): (GrantId, GrantId),
    ) {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else { return };
        let status = life.core.handle_abort_transfer(local_ns, from, grant);
        self.carry_out(desk);
        desk.reply(call, Response::Status(Ok(status)));
    }
}

impl Life {
    /// Returns the answer to a renewal, of a sabotaged donor too.
    pub(super) fn as_sabotaged(
        &self,
        grant: GrantId,
        key: GrantKey,
        state: LeaseState,
    ) -> LeaseState {
        match self.stale.get(&grant) {
            Some(stale) if *stale == key => LeaseState::Live { remaining_ms: 10_000, notice: None },
            _ => state,
        }
    }
}
