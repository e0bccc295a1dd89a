//! Who may become a node, and who is turned out.

use super::{Action, Change, Event, MonitorCore, Token};
use crate::revocation::{Revocation, Revocations};
use crate::types::{MAX_NAME_BYTES, RackError};
use serde::{Deserialize, Serialize};

/// Tokens that are kept at a time, used ones included.
const MAX_TOKENS: usize = 10_000;

/// A join token, as the store keeps it: enough to know it by, too little to join with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinTokenRecord {
    /// Its number.
    pub id: u64,
    /// SHA-256 over its secret.
    pub secret_hash: [u8; 32],
    /// The only node it lets in; empty: any.
    pub node: String,
    /// Until when, in milliseconds since 1970. It is forgotten then.
    pub expires_ms: u64,
    /// Who came in by it; empty: nobody yet.
    pub used_by: String,
}

impl MonitorCore {
    /// An administrator made a token. Answered by [`Action::ReplyDone`] once it is durable.
    /// `wall_ms` is the time of day, in milliseconds since 1970, here and below: what it is
    /// compared with outlives restarts.
    pub fn handle_new_token(&mut self, wall_ms: u64, token: Token, record: JoinTokenRecord) {
        self.forget_old_tokens(wall_ms);
        let result = if self.tokens.len() >= MAX_TOKENS {
            let reason =
                format!("there are {MAX_TOKENS} join tokens already: wait until some expire");
            Err(RackError::BadRequest(reason))
        } else {
            check_name(&record.node, true).map(|()| self.change(Change::PutToken(record)))
        };
        self.actions.push_back(Action::ReplyDone { token, result });
    }

    /// A machine wants to become the node `name`, by the token of this number and hash. Answered
    /// by [`Action::ReplyDone`] once it is durable that the token is used.
    pub fn handle_join(
        &mut self,
        wall_ms: u64,
        token: Token,
        (id, secret_hash): (u64, [u8; 32]),
        name: &str,
    ) {
        let result = self.check_join(wall_ms, (id, secret_hash), name);
        if result.is_ok()
            && let Some(record) = self.tokens.get(&id)
        {
            let used = JoinTokenRecord { used_by: name.to_owned(), ..record.clone() };
            self.change(Change::PutToken(used));
            self.note(Event::NodeAdmitted { name: name.to_owned() });
        }
        self.actions.push_back(Action::ReplyDone { token, result });
    }

    fn check_join(
        &self,
        wall_ms: u64,
        (id, secret_hash): (u64, [u8; 32]),
        name: &str,
    ) -> Result<(), RackError> {
        const ANEW: &str = "make a new one with `venice token new` on the Monitor Node's machine";
        let bad = |why: String| Err(RackError::BadToken(format!("{why}: {ANEW}")));
        check_name(name, false)?;
        let known = self.tokens.get(&id).filter(|record| record.secret_hash == secret_hash);
        let Some(record) = known.filter(|record| record.expires_ms > wall_ms) else {
            return bad("the rack has no such join token (any more)".to_owned());
        };
        if !record.used_by.is_empty() {
            let by = &record.used_by;
            return bad(format!("this join token was used before, by {by}"));
        }
        if !record.node.is_empty() && record.node != name {
            let only = &record.node;
            return bad(format!("this join token lets in {only} and not {name}"));
        }
        match self.rrt.by_name(name) {
            Some(entry) if entry.up => Err(RackError::NameTaken {
                name: name.to_owned(),
                control_addr: entry.record.control_addr.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// An administrator turns the node `name` out: what was certified up to now is void. Answered
    /// by [`Action::ReplyDone`] once it is durable; [`Event::NodeRevoked`] comes before.
    pub fn handle_revoke(&mut self, now_ns: u64, wall_ms: u64, token: Token, name: &str) {
        let joined = self.tokens.values().any(|record| record.used_by == name);
        let entry = self.rrt.by_name(name).map(|entry| entry.record.identity);
        if entry.is_none() && !joined {
            let result = Err(RackError::UnknownNode(name.to_owned()));
            self.actions.push_back(Action::ReplyDone { token, result });
            return;
        }
        self.change(Change::PutRevocation(Revocation { node: name.to_owned(), until_ms: wall_ms }));
        self.note(Event::NodeRevoked { name: name.to_owned() });
        if let Some(identity) = entry {
            self.mark_down(now_ns, identity);
        }
        self.actions.push_back(Action::ReplyDone { token, result: Ok(()) });
    }

    /// The tokens that are not too old, used ones included.
    pub fn tokens(&self, wall_ms: u64) -> Vec<JoinTokenRecord> {
        self.tokens.values().filter(|record| record.expires_ms > wall_ms).cloned().collect()
    }

    /// Who was turned out.
    pub fn revocations(&self) -> &Revocations {
        &self.revoked
    }

    fn forget_old_tokens(&mut self, wall_ms: u64) {
        let is_old = |record: &&JoinTokenRecord| record.expires_ms <= wall_ms;
        let old: Vec<u64> = self.tokens.values().filter(is_old).map(|record| record.id).collect();
        for id in old {
            self.change(Change::DeleteToken(id));
        }
    }
}

fn check_name(name: &str, may_be_empty: bool) -> Result<(), RackError> {
    let is_long = name.len() > MAX_NAME_BYTES;
    if is_long || name.contains(char::is_control) || (name.is_empty() && !may_be_empty) {
        return Err(RackError::BadRequest(format!(
            "a node's name has 1 to {MAX_NAME_BYTES} printable characters, not {name:?}"
        )));
    }
    Ok(())
}
