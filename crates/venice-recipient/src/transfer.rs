//! Grants that change hands: transferred to another user, and claimed by the new owner.

use std::time::{Duration, Instant};

use venice_control::client::{Access, MonitorClient};
use venice_control::{ClaimRequest, ControlError, Grant, Owner, TransferRequest, Transferred};
use venice_memory::paged::run_block::Fate;
use venice_rack::lease_holder::Renewed;
use venice_wire::GrantId;

use crate::error::RecipientError;
use crate::held::{Held, HeldEvent, HeldNews, OnLoss, resource_name};
use crate::loan::{ANSWER_WITHIN, random_word, recipient_name, runtime};
use crate::renewals::{Renewal, Renewals};

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

impl Transfer {
    /// Returns its number as users write it: 32 hexadecimal digits.
    pub fn number_text(&self) -> String {
        format!("{:032x}", self.number)
    }

    /// Parses a number as users write it.
    ///
    /// # Errors
    /// Fails if the text is no number of up to 32 hexadecimal digits, with the remedy.
    pub fn parse_number(text: &str) -> Result<u128, String> {
        u128::from_str_radix(text, 16)
            .map_err(|_| format!("{text:?} is no transfer: write the number of the transfer"))
    }
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
/// for it up to `within`; `None`: nothing came, or all of it is lost. `number` names one transfer;
/// `None`: all. A lost grant, and a device whose service does not start, is reported to `tell`; the
/// others are held.
///
/// # Errors
/// [`RecipientError`]: the Monitor Node does not answer, or refuses, as it does beyond the quota of
/// this user; nothing is claimed then. [`RecipientError::System`]: no thread could be started; this
/// process may claim the same again.
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
        let what = resource_name(&grant);
        tell(HeldNews {
            grant: grant.id,
            donor: grant.donor,
            what,
            event: HeldEvent::Lost(Fate::Revoked),
            why: None,
        });
    }
    let live: Vec<Grant> = live.into_iter().map(|(grant, _)| grant).collect();
    if live.is_empty() {
        return Ok(None);
    }
    let held = Held::keep(access, (live, asked), OnLoss::KeepRest, tell)?;
    Ok((!held.is_all_lost()).then_some(held))
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
async fn renewed(access: &Access, mut grants: Vec<Grant>) -> Vec<(Grant, bool)> {
    grants.sort_by_key(|grant| grant.id);
    let mut renewals = Renewals::new(access.clone());
    grants.iter().enumerate().for_each(|(index, grant)| renewals.begin(index, grant));
    let mut is_live = vec![false; grants.len()];
    let answers = async {
        while let Some(Renewal { index, outcome, .. }) = renewals.next().await {
            is_live[index] = matches!(outcome, Renewed::Live(_));
        }
    };
    // A donor that does not answer in time does not count as holding its grant.
    let _ = tokio::time::timeout(ANSWER_WITHIN, answers).await;
    grants.into_iter().zip(is_live).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_reads_as_written() {
        let made = Transfer { number: 255, grants: Vec::new() };
        assert_eq!(made.number_text(), format!("{:0>32}", "ff"));
        assert_eq!(Transfer::parse_number(&made.number_text()), Ok(255));
        assert!(Transfer::parse_number("bob").is_err() && Transfer::parse_number("").is_err());
    }
}
