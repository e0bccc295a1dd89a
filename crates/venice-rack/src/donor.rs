//! The lending half of a node agent: slabs, devices, grants and leases.
//!
//! [`DonorCore`] counts slabs; the agent maps them to memory. The Monitor Node prepares a grant,
//! then commits it; then it lives as long as its recipient renews the lease. When it ends, for
//! whatever reason, its slabs come out of [`DonorCore::poll_action`] to be wiped. They are free
//! again when [`DonorCore::handle_freed`] confirms that. A grant of a device
//! ([`DonorCore::offer_devices`]) has no slabs, and is otherwise the same.
//!
//! A donor that reclaims memory says so in the next renewal ([`notices`]); it ends the grant itself
//! only when the stated time is over.

mod devices;
mod ended;
mod notices;
mod recipients;
mod transfer;

pub use transfer::Switched;

use crate::NS_PER_MS;
use crate::transfer::FIRST_OWNERSHIP;
use crate::types::{
    DonorReport, DonorStatus, HeldGrant, HeldState, LeaseState, PrepareRequest, Refusal, Share,
};
use devices::Device;
use ended::Ended;
use std::collections::{BTreeMap, VecDeque};
use venice_wire::{GrantId, GrantKey};

/// Settings of a donor.
#[derive(Debug, Clone, Copy)]
pub struct DonorSettings {
    /// Slabs it lends altogether.
    pub total_slabs: u32,
    /// Time slabs stay set aside without a commit, in nanoseconds.
    pub prepare_timeout_ns: u64,
}

/// An action for the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DonorAction {
    /// Cut every connection to the grant's slabs and wipe the memory, then call
    /// [`DonorCore::handle_freed`]. The slabs are not lent again before.
    FreeSlabs {
        /// The ended grant.
        grant: GrantId,
        /// Its slabs; 0 for a device.
        slabs: u32,
        /// The reason of its end.
        reason: EndReason,
    },
}

/// The reason why a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The recipient or the Monitor Node released it.
    Released,
    /// The Monitor Node aborted the handshake.
    Aborted,
    /// No commit came in time.
    PrepareTimeout,
    /// No renewal came within the lease.
    LeaseExpired,
    /// The donor's machine needs the memory itself.
    TakenBack,
}

/// The outcome of a prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// The slabs are set aside now. The agent assigns memory to the grant, and calls
    /// [`DonorCore::handle_abort`] if it cannot.
    New(DonorStatus),
    /// The slabs were set aside already.
    Repeated(DonorStatus),
}

/// A grant as the data plane sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantView {
    /// The key that every access must carry.
    pub key: GrantKey,
    /// Its slabs.
    pub slabs: u32,
    /// Its state; only a committed grant may be accessed.
    pub state: HeldState,
    /// A number for the borrowing program, the same for all its grants.
    pub recipient: u64,
    /// Its ownership epoch: 1 for the first owner, and one more for each that followed.
    pub ownership: u64,
}

/// A donor's grants. Drive it with the time and the incoming calls. After each call perform the
/// actions of [`Self::poll_action`], and call [`Self::handle_timeout`] at [`Self::poll_timeout`].
#[derive(Debug)]
pub struct DonorCore {
    settings: DonorSettings,
    /// The epoch; 0 until registered.
    epoch: u64,
    free_slabs: u32,
    /// Slabs neither lent nor offered: the donor's machine uses their memory.
    withheld_slabs: u32,
    revision: u64,
    held: BTreeMap<GrantId, Held>,
    /// The shares of ended grants, until they are free again.
    freeing: BTreeMap<GrantId, Share>,
    devices: Vec<Device>,
    /// Time at which this agent began to offer devices.
    devices_since_ns: u64,
    /// Ended grants of this epoch.
    ended: Ended,
    actions: VecDeque<DonorAction>,
}

#[derive(Debug)]
struct Held {
    request: PrepareRequest,
    state: HeldState,
    /// Time it ends unless committed or renewed.
    deadline_ns: u64,
    /// Set while the memory is reclaimed.
    wanted: Option<Wanted>,
    /// Time at which a preempted grant ends, released or not.
    called: Option<u64>,
    /// True while the node is drained: the grant is to be returned, at any time.
    is_drained: bool,
    /// The ownership epoch, kept as long as the grant.
    ownership: u64,
    /// The successor promised to the Monitor Node.
    promised: Option<GrantId>,
}

/// The reclaim of a grant's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    /// Time at which the grant ends, released or not; `None`: it does not end by force.
    until_ns: Option<u64>,
}

impl DonorCore {
    /// Creates a donor with all its slabs free, not yet registered.
    pub fn new(settings: DonorSettings) -> Self {
        Self {
            settings,
            epoch: 0,
            free_slabs: settings.total_slabs,
            withheld_slabs: 0,
            revision: 0,
            held: BTreeMap::new(),
            freeing: BTreeMap::new(),
            devices: Vec::new(),
            devices_since_ns: 0,
            ended: Ended::default(),
            actions: VecDeque::new(),
        }
    }

    /// Sets the epoch under which the Monitor Node has registered this agent.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        // Calls for an earlier epoch are refused by their epoch.
        self.ended = Ended::default();
    }

    /// Sets slabs, or a device, aside. A repetition of the same request changes nothing.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing is set aside then.
    pub fn handle_prepare(
        &mut self,
        now_ns: u64,
        request: PrepareRequest,
    ) -> Result<Prepared, Refusal> {
        self.handle_timeout(now_ns);
        if let Some(held) = self.held.get(&request.grant) {
            let same = held.request.key == request.key && held.request.share == request.share;
            return if same {
                Ok(Prepared::Repeated(self.status()))
            } else {
                Err(Refusal::Conflict)
            };
        }
        if self.freeing.contains_key(&request.grant) {
            return Err(Refusal::Conflict);
        }
        if request.donor_epoch != self.epoch {
            return Err(self.wrong_epoch(request.donor_epoch));
        }
        if request.at_once && self.ended.may_have(request.grant) {
            return Err(Refusal::UnknownGrant);
        }
        let slabs = request.share.slabs();
        if slabs == 0 && !request.share.kind.is_device() || request.lease_ms == 0 {
            return Err(Refusal::Failed("a grant needs slabs or a device, and a lease".to_owned()));
        }
        self.check_device(now_ns, &request.share, request.lease_ms)?;
        if slabs > self.free_slabs {
            return Err(Refusal::NoRoom { free_slabs: self.free_slabs });
        }
        self.free_slabs -= slabs;
        self.revision += 1;
        let deadline_ns = now_ns.saturating_add(self.settings.prepare_timeout_ns);
        let state = HeldState::Prepared;
        let grant = request.grant;
        let held = Held {
            request,
            state,
            deadline_ns,
            wanted: None,
            called: None,
            is_drained: false,
            ownership: FIRST_OWNERSHIP,
            promised: None,
        };
        self.held.insert(grant, held);
        Ok(Prepared::New(self.status()))
    }

    /// Lends what was set aside and starts the lease. A second commit changes nothing.
    ///
    /// # Errors
    /// [`Refusal::UnknownGrant`] or [`Refusal::WrongEpoch`] if nothing is set aside, or not any
    /// more.
    pub fn handle_commit(
        &mut self,
        now_ns: u64,
        grant: GrantId,
        donor_epoch: u64,
    ) -> Result<DonorStatus, Refusal> {
        self.handle_timeout(now_ns);
        let Some(held) = self.held.get_mut(&grant) else {
            return Err(match donor_epoch == self.epoch {
                true => Refusal::UnknownGrant,
                false => self.wrong_epoch(donor_epoch),
            });
        };
        if held.state == HeldState::Prepared {
            held.state = HeldState::Committed;
            held.deadline_ns = now_ns.saturating_add(held.lease_ns());
            self.revision += 1;
        }
        Ok(self.status())
    }

    /// Frees what was set aside. A committed grant is left alone, an unknown one ignored.
    pub fn handle_abort(&mut self, now_ns: u64, grant: GrantId) -> DonorStatus {
        self.handle_timeout(now_ns);
        if self.held.get(&grant).is_some_and(|held| held.state == HeldState::Prepared) {
            self.end(grant, EndReason::Aborted);
        }
        self.status()
    }

    /// Ends a grant in any state. An unknown one is ignored.
    pub fn handle_release(&mut self, now_ns: u64, grant: GrantId) -> DonorStatus {
        self.handle_timeout(now_ns);
        self.end(grant, EndReason::Released);
        self.status()
    }

    /// Renews a lease.
    pub fn handle_renew(&mut self, now_ns: u64, grant: GrantId, key: GrantKey) -> LeaseState {
        self.handle_timeout(now_ns);
        let faulty = self.faulty(grant);
        match self.held.get_mut(&grant) {
            Some(held) if held.state == HeldState::Committed && held.request.key == key => {
                held.deadline_ns = now_ns.saturating_add(held.lease_ns());
                let notice = held.notice(now_ns).or(faulty);
                LeaseState::Live { remaining_ms: held.request.lease_ms, notice }
            }
            _ => match self.ended.new_owner(grant, key) {
                Some(owner) => LeaseState::Transferred { to: owner.to_string() },
                None => LeaseState::Unknown,
            },
        }
    }

    /// Frees the wiped slabs of an ended grant. Grants that are not being freed are ignored.
    pub fn handle_freed(&mut self, grant: GrantId) {
        if let Some(freed) = self.freeing.remove(&grant) {
            self.free_slabs += freed.slabs();
            self.revision += 1;
            self.assert_count();
        }
    }

    /// Withholds up to `slabs` free slabs and returns their number. Their memory may then be used
    /// by others.
    pub fn handle_withhold(&mut self, slabs: u32) -> u32 {
        let taken = slabs.min(self.free_slabs);
        self.free_slabs -= taken;
        self.withheld_slabs += taken;
        self.revision += u64::from(taken > 0);
        self.assert_count();
        taken
    }

    /// Offers withheld slabs again: their memory is there, and wiped.
    ///
    /// # Panics
    /// If fewer are withheld.
    pub fn handle_offer(&mut self, slabs: u32) {
        assert!(slabs <= self.withheld_slabs, "more slabs offered than withheld");
        self.withheld_slabs -= slabs;
        self.free_slabs += slabs;
        self.revision += u64::from(slabs > 0);
        self.assert_count();
    }

    /// Returns the withheld slabs.
    pub fn withheld_slabs(&self) -> u32 {
        self.withheld_slabs
    }

    /// True from the end of a grant until its slabs are free again.
    pub fn is_freeing(&self, grant: GrantId) -> bool {
        self.freeing.contains_key(&grant)
    }

    /// Ends grants that were not committed, renewed or released in time.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let due = self.held.iter().filter_map(|(id, held)| Some((*id, held.end_at(now_ns)?)));
        for (grant, reason) in due.collect::<Vec<_>>() {
            self.end(grant, reason);
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.held.values().map(Held::ends_ns).min()
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<DonorAction> {
        self.actions.pop_front()
    }

    /// Returns a grant, prepared or committed.
    pub fn grant(&self, grant: GrantId) -> Option<GrantView> {
        self.held.get(&grant).map(GrantView::of)
    }

    /// Returns the slab counts.
    pub fn status(&self) -> DonorStatus {
        DonorStatus {
            total_slabs: self.settings.total_slabs - self.withheld_slabs,
            free_slabs: self.free_slabs,
            revision: self.revision,
        }
    }

    /// Returns the slab counts and every grant, for the heartbeat.
    pub fn report(&self) -> DonorReport {
        let held = self.held.iter().map(|(id, held)| HeldGrant {
            id: *id,
            share: held.request.share.clone(),
            state: held.state,
            lease_ms: held.request.lease_ms,
            owner: held.request.owner.clone(),
            recipient: held.request.recipient.clone(),
            purpose: held.request.purpose.clone(),
            priority: held.request.priority,
            ownership: held.ownership,
        });
        DonorReport { status: self.status(), held: held.collect(), devices: self.device_reports() }
    }

    /// Lets later reports count as newer than all before.
    pub(crate) fn note_change(&mut self) {
        self.revision += 1;
    }

    fn end(&mut self, grant: GrantId, reason: EndReason) {
        self.ended.note(grant);
        if let Some(held) = self.held.remove(&grant) {
            let slabs = held.request.share.slabs();
            self.revision += 1;
            self.freeing.insert(grant, held.request.share);
            self.actions.push_back(DonorAction::FreeSlabs { grant, slabs, reason });
            self.assert_count();
        }
    }

    fn wrong_epoch(&self, asked: u64) -> Refusal {
        Refusal::WrongEpoch { asked, current: self.epoch }
    }

    fn assert_count(&self) {
        let held: u32 = self.held.values().map(|held| held.request.share.slabs()).sum();
        let freeing: u32 = self.freeing.values().map(Share::slabs).sum();
        let counted = self.free_slabs + self.withheld_slabs + held + freeing;
        assert_eq!(counted, self.settings.total_slabs, "slabs leaked");
        self.assert_no_device_twice();
    }
}

impl Held {
    fn lease_ns(&self) -> u64 {
        self.request.lease_ms.saturating_mul(NS_PER_MS)
    }

    /// Returns the time it ends without any further call.
    fn ends_ns(&self) -> u64 {
        let wanted_ns = self.wanted.and_then(|wanted| wanted.until_ns);
        [wanted_ns, self.called].into_iter().flatten().fold(self.deadline_ns, u64::min)
    }

    /// Returns the reason it ends at this moment, if it does.
    fn end_at(&self, now_ns: u64) -> Option<EndReason> {
        match self.state {
            HeldState::Prepared if self.deadline_ns <= now_ns => Some(EndReason::PrepareTimeout),
            HeldState::Committed if self.deadline_ns <= now_ns => Some(EndReason::LeaseExpired),
            _ if self.ends_ns() <= now_ns => Some(EndReason::TakenBack),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queueing::DEFAULT_PRIORITY;

    const S: u64 = 1_000_000_000;

    fn donor() -> DonorCore {
        let mut donor = DonorCore::new(DonorSettings { total_slabs: 8, prepare_timeout_ns: 5 * S });
        donor.set_epoch(1);
        donor
    }

    fn request(grant: u64, slabs: u32) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(grant),
            key: GrantKey(grant * 7),
            share: Share::of_slabs(slabs),
            donor_epoch: 1,
            lease_ms: 10_000,
            owner: None,
            recipient: "r".into(),
            purpose: "p".into(),
            priority: DEFAULT_PRIORITY,
            at_once: false,
        }
    }

    fn freed(donor: &mut DonorCore) -> Vec<(u64, EndReason)> {
        let mut freed = Vec::new();
        while let Some(DonorAction::FreeSlabs { grant, reason, .. }) = donor.poll_action() {
            donor.handle_freed(grant);
            freed.push((grant.0, reason));
        }
        freed
    }

    #[test]
    fn slabs_free_only_after_wipe() {
        let mut donor = donor();
        donor.handle_prepare(0, request(1, 8)).unwrap();
        donor.handle_commit(0, GrantId(1), 1).unwrap();
        assert_eq!(donor.handle_release(1, GrantId(1)).free_slabs, 0);
        assert!(donor.is_freeing(GrantId(1)));
        assert_eq!(donor.handle_prepare(2, request(2, 1)), Err(Refusal::NoRoom { free_slabs: 0 }));
        assert_eq!(freed(&mut donor), [(1, EndReason::Released)]);
        assert_eq!(donor.status().free_slabs, 8);
        assert!(!donor.is_freeing(GrantId(1)));
    }

    #[test]
    fn lease_lives_while_renewed() {
        let mut donor = donor();
        donor.handle_prepare(0, request(1, 3)).unwrap();
        donor.handle_commit(S, GrantId(1), 1).unwrap();
        let live = LeaseState::Live { remaining_ms: 10_000, notice: None };
        assert_eq!(donor.handle_renew(10 * S, GrantId(1), GrantKey(7)), live);
        assert_eq!(donor.handle_renew(10 * S, GrantId(1), GrantKey(8)), LeaseState::Unknown);
        assert_eq!(donor.poll_timeout(), Some(20 * S));
        assert_eq!(donor.handle_renew(20 * S, GrantId(1), GrantKey(7)), LeaseState::Unknown);
        assert_eq!(freed(&mut donor), [(1, EndReason::LeaseExpired)]);
    }

    #[test]
    fn prepare_without_commit_times_out() {
        let mut donor = donor();
        donor.handle_prepare(0, request(1, 3)).unwrap();
        donor.handle_timeout(5 * S);
        assert_eq!(freed(&mut donor), [(1, EndReason::PrepareTimeout)]);
        assert_eq!(donor.handle_commit(5 * S, GrantId(1), 1), Err(Refusal::UnknownGrant));
    }

    #[test]
    fn repeated_steps_change_nothing() {
        let mut donor = donor();
        let first = donor.handle_prepare(0, request(1, 3)).unwrap();
        let Prepared::New(status) = first else { panic!("{first:?}") };
        assert_eq!(donor.handle_prepare(1, request(1, 3)), Ok(Prepared::Repeated(status)));
        assert_eq!(donor.handle_prepare(1, request(1, 2)), Err(Refusal::Conflict));
        let committed = donor.handle_commit(2, GrantId(1), 1).unwrap();
        assert_eq!(donor.handle_commit(3, GrantId(1), 1), Ok(committed));
        assert_eq!(donor.handle_abort(4, GrantId(1)), committed);
        assert_eq!(freed(&mut donor), []);
    }

    #[test]
    fn withheld_slabs_are_not_offered() {
        let mut donor = donor();
        donor.handle_prepare(0, request(1, 3)).unwrap();
        assert_eq!(donor.handle_withhold(100), 5);
        let status = donor.status();
        assert_eq!((status.total_slabs, status.free_slabs), (3, 0));
        assert_eq!(donor.handle_prepare(0, request(2, 1)), Err(Refusal::NoRoom { free_slabs: 0 }));
        donor.handle_offer(2);
        assert_eq!((donor.status().total_slabs, donor.status().free_slabs), (5, 2));
        assert!(
            donor.status().revision > status.revision,
            "the Monitor Node must accept the newer report"
        );
        assert_eq!(donor.withheld_slabs(), 3);
    }

    #[test]
    fn other_epoch_is_refused() {
        let mut donor = donor();
        donor.set_epoch(2);
        let wrong = Refusal::WrongEpoch { asked: 1, current: 2 };
        assert_eq!(donor.handle_prepare(0, request(1, 3)), Err(wrong.clone()));
        assert_eq!(donor.handle_commit(0, GrantId(1), 1), Err(wrong));
    }
}
