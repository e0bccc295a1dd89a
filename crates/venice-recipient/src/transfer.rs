//! Grants that change hands: transferred to another user, and claimed by the new owner.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use venice_control::client::{Access, MonitorClient};
use venice_control::{
    ClaimRequest, ControlError, Grant, LeaseState, Owner, TransferRequest, Transferred,
};
use venice_memory::paged::run_block::Fate;
use venice_wire::GrantId;

use crate::error::RecipientError;
use crate::held::{Held, HeldEvent, HeldNews};
use crate::loan::{ANSWER_WITHIN, random_word, recipient_name, runtime};
use crate::renewals::renew;

/// Pause between two claims while nothing is there.
const CLAIM_PAUSE: Duration = Duration::from_millis(200);

/// A transfer, as its old owner is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its number, by which the new owner may claim it.
    pub number: u128,
    /// Its grants, and their successors.
    pub grants: Vec<Transferred>,
}

/// Transfers grants of this user to another one, all of them or none. The new owner has
/// `claim_within` to claim them, or a lease if that is longer. The old owner reaches them no more.
///
/// # Errors
/// [`RecipientError`]: nothing was transferred. If the Monitor Node stopped answering meanwhile,
/// some earlier call may have done it: `venice grants` shows the owner.
pub fn transfer(
    access: &Access,
    grants: &[GrantId],
    to: Owner,
    claim_within: Duration,
) -> Result<Transfer, RecipientError> {
    let number = u128::from(random_word()?) << 64 | u128::from(random_word()?);
    let claim_ms = u64::try_from(claim_within.as_millis()).unwrap_or(u64::MAX);
    let request = TransferRequest { client_id: number, grants: grants.to_vec(), to, claim_ms };
    let grants = runtime()?.block_on(async {
        let mut client = MonitorClient::connect(access).await?;
        client.transfer(request).await
    })?;
    Ok(Transfer { number, grants })
}

/// Claims what was transferred to this user, and holds what could be renewed at its donor. Waits
/// for it up to `within`; `None`: nothing came. `number` names one transfer; `None`: all. Lost
/// grants are reported to `tell`.
///
/// # Errors
/// [`RecipientError`]: the Monitor Node does not answer, or refuses.
pub fn claim(
    access: &Access,
    number: Option<u128>,
    within: Duration,
    mut tell: impl FnMut(HeldNews) + Send + 'static,
) -> Result<Option<Held>, RecipientError> {
    let request = ClaimRequest { recipient: recipient_name(), transfer: number };
    let (grants, asked) = runtime()?.block_on(async {
        let grants = claimed(access, &request, within).await?;
        // The leases began before the claim: only a renewal shows how much is left.
        let asked = Instant::now();
        Ok::<_, ControlError>((renewed(access, grants).await, asked))
    })?;
    let (live, lost): (Vec<_>, Vec<_>) = grants.into_iter().partition(|(_, is_live)| *is_live);
    for (grant, _) in lost {
        let what = grant.share.device().map_or("memory", |(_, address)| address).to_owned();
        tell(HeldNews {
            donor: grant.donor,
            what,
            event: HeldEvent::Lost(Fate::Revoked),
            why: None,
        });
    }
    let live: Vec<Grant> = live.into_iter().map(|(grant, _)| grant).collect();
    match live.is_empty() {
        true => Ok(None),
        false => Held::keep(access, (live, asked), tell).map(Some),
    }
}

async fn claimed(
    access: &Access,
    request: &ClaimRequest,
    within: Duration,
) -> Result<Vec<Grant>, ControlError> {
    let began = Instant::now();
    let mut client = MonitorClient::connect(access).await?;
    loop {
        let grants = client.claim(request.clone()).await?;
        if !grants.is_empty() || began.elapsed() >= within {
            return Ok(grants);
        }
        tokio::time::sleep(CLAIM_PAUSE).await;
    }
}

/// Renews the grants at all donors concurrently; true for those that live.
async fn renewed(access: &Access, grants: Vec<Grant>) -> Vec<(Grant, bool)> {
    let mut renewals = JoinSet::new();
    for grant in grants {
        let access = access.clone();
        renewals.spawn(async move {
            let renewal = tokio::time::timeout(ANSWER_WITHIN, renew(&access, &grant, None)).await;
            let is_live = matches!(renewal, Ok(Ok((LeaseState::Live { .. }, _))));
            (grant, is_live)
        });
    }
    let mut all = renewals.join_all().await;
    all.sort_by_key(|(grant, _)| grant.id);
    all
}
