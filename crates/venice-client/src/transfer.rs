//! Grants that change hands: transferred to another user while in use, and claimed by it.

use std::time::Duration;

use venice_control::{Grant, Owner, ServiceAccess};
use venice_recipient::{Held, Transfer, claim, transfer};
use venice_service::ServiceClient;
use venice_wire::GrantId;

use crate::Error;
use crate::rack::Rack;

impl Rack {
    /// Transfers grants of this user to another one, all of them or none. From then on their donors
    /// refuse this user, with the next access: [`Device::check`](crate::Device::check) reports the
    /// loss, and memory fails like that of a dead donor. The new owner has `claim_within`, at most
    /// ten minutes (a lease, if that is longer), to claim them; until then they count for this
    /// user's quota. Memory requested together is transferred together; memory that was mapped
    /// (port shm) is refused.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason; [`Error::Invalid`], [`Error::NoRoom`] (more than the new
    /// owner's whole quota), [`Error::Unreachable`]. Nothing was transferred then.
    pub fn transfer(
        &self,
        grants: &[u64],
        to: Owner,
        claim_within: Duration,
    ) -> Result<Transfer, Error> {
        let grants: Vec<GrantId> = grants.iter().copied().map(GrantId).collect();
        Ok(transfer(self.access(), &grants, to, claim_within)?)
    }

    /// Takes over what was transferred to this user and not claimed yet: `number` names one
    /// transfer, `None` all. Waits for it up to `within`; `None`: nothing came, or all of it is lost.
    /// A device whose service does not start is lost ([`Claimed::is_whole`]) and has none; the others
    /// are held. From the claim on the grants count for this user's quota.
    ///
    /// # Errors
    /// [`Error::NoRoom`] (this user's quota) with nothing claimed: release something and claim again
    /// in time. [`Error::Refused`], [`Error::Unreachable`].
    pub fn claim(&self, number: Option<u128>, within: Duration) -> Result<Option<Claimed>, Error> {
        let held = claim(self.access(), number, within, |_| {})?;
        Ok(held.map(|held| Claimed { held }))
    }
}

/// Grants that were transferred to this user, held until this is dropped.
#[derive(Debug)]
pub struct Claimed {
    held: Held,
}

impl Claimed {
    /// Returns the grants: devices, and memory at its endpoints.
    pub fn grants(&self) -> &[Grant] {
        self.held.grants()
    }

    /// Returns the services of the grants, in their order; `None` for one without a service.
    pub fn services(&self) -> &[Option<ServiceAccess>] {
        self.held.services()
    }

    /// Connects to the service of a grant by its index; each call of the client waits at most
    /// `timeout`, more than zero (`None`: without limit).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a grant without a service; those of
    /// [`Device::open_service`](crate::Device::open_service).
    pub fn open_service(
        &self,
        index: usize,
        timeout: Option<Duration>,
    ) -> Result<ServiceClient, Error> {
        let access = self.services().get(index).and_then(Option::as_ref);
        let none = || Error::Invalid(format!("grant {index} of these has no service"));
        Ok(ServiceClient::open(access.ok_or_else(none)?, timeout)?)
    }

    /// True if none of the grants was lost.
    pub fn is_whole(&self) -> bool {
        self.held.lost().is_none()
    }
}
