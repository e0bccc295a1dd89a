//! An agent that is ended in an orderly way says so: nobody has to find out by its silence.

use super::{Action, Change, Event, MonitorCore, Token};
use crate::types::{Identity, RackError};

impl MonitorCore {
    /// The agent of this epoch and `instance` ends: from now on it is as one that is dead, and its node
    /// is `stopped`, across restarts of the Monitor Node, until another agent bears the name. What it
    /// has reported before, or has not been told yet, comes too late. Answered by
    /// [`Action::ReplyDone`] once it is durable.
    pub fn handle_farewell(&mut self, now_ns: u64, token: Token, node: Identity, instance: u64) {
        let record = self.rrt.get(node.node).map(|entry| &entry.record);
        let is_holder = record.is_some_and(|it| it.identity == node && it.instance == instance);
        let result = if is_holder { Ok(()) } else { Err(RackError::NotRegistered) };
        if is_holder {
            self.stop(now_ns, node);
        }
        self.actions.push_back(Action::ReplyDone { token, result });
        self.note_room(now_ns, false);
    }

    fn stop(&mut self, now_ns: u64, node: Identity) {
        if self.rrt.get(node.node).is_none_or(|entry| entry.record.is_stopped) {
            return;
        }
        let record = self.rrt.change_record(node.node, |record| record.is_stopped = true);
        let name = record.name.clone();
        self.change(Change::PutNode(record));
        self.note_stopped(now_ns, node, name);
    }

    /// It is known, from the agent or from another Monitor Node's record, that it has ended.
    pub(super) fn note_stopped(&mut self, now_ns: u64, node: Identity, name: String) {
        self.take_down(now_ns, node);
        self.note(Event::NodeStopped { name });
    }

    /// A registration that was on its way when its agent ended.
    pub(super) fn turn_away_the_ended(&mut self, token: Token, name: &str) {
        let why = format!("{name}: this agent has said that it ends");
        let result = Err(RackError::BadRequest(why));
        self.actions.push_back(Action::ReplyRegister { token, result });
    }
}
