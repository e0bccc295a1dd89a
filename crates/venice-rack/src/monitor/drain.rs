//! A node is to be empty, for maintenance: nothing more is placed on it, and what it lends ends in its
//! own time.

use super::{Action, Change, Event, MonitorCore, Token};
use crate::types::RackError;

impl MonitorCore {
    /// An operator wants the node `name` empty, or (`drains` false) no longer. Answered by
    /// [`Action::ReplyDone`] once it is durable. It stands until it is taken back, across
    /// restarts of the agent and of the Monitor Node. Shares that the node was asked for before are
    /// not called back.
    pub fn handle_drain(&mut self, now_ns: u64, token: Token, name: &str, drains: bool) {
        let Some(node) = self.rrt.by_name(name).map(|entry| entry.record.identity.node) else {
            let result = Err(RackError::UnknownNode(name.to_owned()));
            self.actions.push_back(Action::ReplyDone { token, result });
            return;
        };
        // That it is so already another Monitor Node may have changed: the store knows.
        let may_be_other = self.shared.is_some();
        if self.rrt.is_draining(node) != drains || may_be_other {
            let record = self.rrt.change_record(node, |record| record.is_draining = drains);
            self.change(Change::PutNode(record));
            self.note(Event::NodeDrains { name: name.to_owned(), drains });
        }
        self.actions.push_back(Action::ReplyDone { token, result: Ok(()) });
        self.note_room(now_ns, !drains);
    }
}
