//! Grants that change hands: transferred to another user, and claimed by the new owner.

use std::time::{Duration, Instant};

use venice_control::client::{Access, MonitorClient};
use venice_control::{ClaimRequest, ControlError, Grant, Owner, TransferRequest, Transferred};
use venice_memory::paged::run_block::Fate;
use venice_rack::borrower::{Claiming, ClaimingOutput};
use venice_wire::GrantId;

use crate::error::RecipientError;
use crate::held::{Held, HeldEvent, HeldNews, OnLoss, resource_name};
use crate::loan::{random_word, recipient_name, runtime};
use crate::renewals::{Renewal, Renewals};

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
    let Claimed { live, lost, asked } = runtime()?.block_on(claimed(access, request, within))?;
    for grant in lost {
        let what = resource_name(&grant);
        tell(HeldNews {
            grant: grant.id,
            donor: grant.donor,
            what,
            event: HeldEvent::Lost(Fate::Revoked),
            why: None,
        });
    }
    if live.is_empty() {
        return Ok(None);
    }
    let held = Held::keep(access, (live, asked), OnLoss::KeepRest, tell)?;
    Ok((!held.is_all_lost()).then_some(held))
}

/// Grants that were claimed.
struct Claimed {
    live: Vec<Grant>,
    lost: Vec<Grant>,
    asked: Instant,
}

async fn claimed(
    access: &Access,
    request: ClaimRequest,
    within: Duration,
) -> Result<Claimed, ControlError> {
    let mut client = MonitorClient::connect(access).await?;
    let mut renewals = Renewals::new(access.clone());
    let began = Instant::now();
    let now_ns = || nanoseconds(began.elapsed());
    let mut claiming = Claiming::new(0, request, nanoseconds(within));
    loop {
        match claiming.poll_output() {
            Some(ClaimingOutput::Claim(request)) => {
                let claimed = client.claim(request).await;
                claiming.handle_claimed(now_ns(), claimed);
            }
            Some(ClaimingOutput::Renew(index, grant)) => renewals.begin(index, &grant),
            Some(ClaimingOutput::Claimed { live, lost, asked_ns }) => {
                return Ok(Claimed { live, lost, asked: began + Duration::from_nanos(asked_ns) });
            }
            Some(ClaimingOutput::Failed(error)) => return Err(error),
            None => {
                let due_ns = claiming.poll_timeout().unwrap_or_default();
                let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
                tokio::select! {
                    Some(Renewal { index, outcome, .. }) = renewals.next() => {
                        claiming.handle_renewed(index, &outcome);
                    }
                    () = tokio::time::sleep(left) => claiming.handle_timeout(now_ns()),
                }
            }
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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
