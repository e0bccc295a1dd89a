//! Enrolment: join tokens, and the check of machines that use them.

use super::{Change, Event, MonitorCore, Token};
use crate::monitor_node::Reply;
use crate::types::{MAX_NAME_BYTES, RackError};
use serde::{Deserialize, Serialize};

/// Most tokens kept at a time, including used ones.
const MAX_TOKENS: usize = 10_000;

/// A join token, as the store keeps it: enough to recognise it, too little to join with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinTokenRecord {
    /// Its number.
    pub id: u64,
    /// SHA-256 over its secret.
    pub secret_hash: [u8; 32],
    /// The only node it admits; empty: any.
    pub node: String,
    /// Expiry, in milliseconds since 1970. It is deleted then.
    pub expires_ms: u64,
    /// The node that used it; empty: unused.
    pub used_by: String,
    /// SHA-256 over the public key certified for that node.
    #[serde(default)]
    pub used_key: Option<[u8; 32]>,
}

impl MonitorCore {
    /// Adds a token made by an administrator. Answered by [`Reply::Done`] once it is durable.
    /// `wall_ms` is the time of day, in milliseconds since 1970, here and below: it is compared
    /// with times that survive restarts.
    pub fn handle_new_token(&mut self, wall_ms: u64, token: Token, record: JoinTokenRecord) {
        self.forget_old_tokens(wall_ms);
        let result = if self.tokens.len() >= MAX_TOKENS {
            let reason =
                format!("there are {MAX_TOKENS} join tokens already: wait until some expire");
            Err(RackError::BadRequest(reason))
        } else {
            let checked = match record.node.is_empty() {
                true => Ok(()),
                false => self.check_new_name(&record.node),
            };
            checked.map(|()| self.change(Change::PutToken(record)))
        };
        self.reply(token, Reply::Done(result));
    }

    /// Enrols a machine as the node `name`, by the token of this number and hash and with a key of
    /// that hash. Answered by [`Reply::Done`] once the use of the token is durable. While the
    /// token lasts, the same machine, recognised by its key, is answered again: an answer may be
    /// lost.
    pub fn handle_join(
        &mut self,
        wall_ms: u64,
        token: Token,
        (id, secret_hash): (u64, [u8; 32]),
        (name, key): (&str, [u8; 32]),
    ) {
        let result = self.check_join(wall_ms, (id, secret_hash), (name, key));
        if result.is_ok()
            && let Some(record) = self.tokens.get(&id).filter(|record| record.used_by.is_empty())
        {
            let (used_by, used_key) = (name.to_owned(), Some(key));
            let used = JoinTokenRecord { used_by, used_key, ..record.clone() };
            self.change(Change::PutToken(used));
            self.retention.admitted.insert(name.to_owned());
            self.note(Event::NodeAdmitted { name: name.to_owned() });
        }
        self.reply(token, Reply::Done(result));
    }

    fn check_join(
        &self,
        wall_ms: u64,
        (id, secret_hash): (u64, [u8; 32]),
        (name, key): (&str, [u8; 32]),
    ) -> Result<(), RackError> {
        const ANEW: &str = "make a new one with `venice token new` on the Monitor Node's machine";
        let bad = |why: String| Err(RackError::BadToken(format!("{why}: {ANEW}")));
        self.check_new_name(name)?;
        let known = self.tokens.get(&id).filter(|record| record.secret_hash == secret_hash);
        let Some(record) = known.filter(|record| record.expires_ms > wall_ms) else {
            return bad("unknown or expired join token".to_owned());
        };
        if record.used_by == name && record.used_key == Some(key) {
            return Ok(());
        }
        if !record.used_by.is_empty() {
            let by = &record.used_by;
            return bad(format!("this join token was used before, by {by}"));
        }
        if !record.node.is_empty() && record.node != name {
            let only = &record.node;
            return bad(format!("this join token lets in {only} and not {name}"));
        }
        let holder = self.rrt.by_name(name);
        if let Some(entry) = holder.filter(|entry| entry.up) {
            let control_addr = entry.record.control_addr.clone();
            return Err(RackError::NameTaken { name: name.to_owned(), control_addr });
        }
        // A token for a new machine must not admit it as a registered node.
        let is_registered = holder.is_some_and(|entry| !entry.record.is_revoked);
        let is_taken = is_registered || self.has_joined(name);
        if record.node.is_empty() && is_taken {
            return Err(RackError::Forbidden(format!(
                "the rack has a node {name} already, and this join token names none: to let a \
                 machine in as {name} again, make a token that does (`venice token new --node \
                 {name}` on the Monitor Node's machine), or join under another --name"
            )));
        }
        Ok(())
    }

    /// Checks the name of a machine. A name already in the rack stays valid, whatever it looks
    /// like.
    fn check_new_name(&self, name: &str) -> Result<(), RackError> {
        check_name(name)?;
        let is_known = self.rrt.by_name(name).is_some() || self.has_joined(name);
        // Some machines are named by their address.
        let is_address = |c: char| c.is_ascii_hexdigit() || ":.".contains(c);
        let is_plain = name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
            || name.chars().all(is_address);
        match is_known || (is_plain && !name.starts_with('-')) {
            true => Ok(()),
            false => Err(RackError::BadRequest(format!(
                "a node's name has letters, digits, `.`, `_` and `-`, and begins with no `-`: not \
                 {name:?}"
            ))),
        }
    }

    /// True if a kept token was used under this name.
    fn has_joined(&self, name: &str) -> bool {
        self.tokens.values().any(|record| record.used_by == name)
    }

    /// Deletes a token for an administrator. Answered by [`Reply::Done`] once it is durable.
    pub fn handle_delete_token(&mut self, wall_ms: u64, token: Token, id: u64) {
        self.forget_old_tokens(wall_ms);
        let result = match self.tokens.contains_key(&id) {
            true => {
                self.change(Change::DeleteToken(id));
                Ok(())
            }
            false => Err(RackError::BadRequest(format!(
                "the rack has no join token {id:016x}: `venice token list` shows those it has"
            ))),
        };
        self.reply(token, Reply::Done(result));
    }

    /// Returns the tokens that have not expired, including used ones.
    pub fn tokens(&self, wall_ms: u64) -> Vec<JoinTokenRecord> {
        self.tokens.values().filter(|record| record.expires_ms > wall_ms).cloned().collect()
    }

    fn forget_old_tokens(&mut self, wall_ms: u64) {
        let is_old = |record: &&JoinTokenRecord| record.expires_ms <= wall_ms;
        let old: Vec<u64> = self.tokens.values().filter(is_old).map(|record| record.id).collect();
        for id in old {
            self.change(Change::DeleteToken(id));
        }
    }
}

/// Checks a name against the rules that hold for all names ever given.
pub(super) fn check_name(name: &str) -> Result<(), RackError> {
    let is_long = name.len() > MAX_NAME_BYTES;
    if is_long || name.contains(char::is_control) || name.is_empty() {
        return Err(RackError::BadRequest(format!(
            "a node's name has 1 to {MAX_NAME_BYTES} printable characters, not {name:?}"
        )));
    }
    Ok(())
}
