//! Deregistration of agents that stop in an orderly way: no heartbeat timeout is needed.

use super::{Change, Event, MonitorCore, Token};
use crate::monitor_node::Reply;
use crate::types::{Identity, RackError};

impl MonitorCore {
    /// Deregisters the agent of this epoch and `instance`. From now on it counts as dead, and its
    /// node is `stopped`, across restarts of the Monitor Node, until another agent uses the name.
    /// Its late reports and unanswered calls are refused. Answered by [`Reply::Done`] once it
    /// is durable.
    pub fn handle_deregister(&mut self, now_ns: u64, token: Token, node: Identity, instance: u64) {
        let record = self.rrt.get(node.node).map(|entry| &entry.record);
        let is_holder = record.is_some_and(|it| it.identity == node && it.instance == instance);
        let result = if is_holder { Ok(()) } else { Err(RackError::NotRegistered) };
        if is_holder {
            self.stop(now_ns, node);
        }
        self.reply(token, Reply::Done(result));
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

    /// Takes down a node that has stopped, as known from the agent or from another Monitor Node's
    /// record.
    pub(super) fn note_stopped(&mut self, now_ns: u64, node: Identity, name: String) {
        let was_up = self.take_down(now_ns, node);
        self.note(Event::NodeStopped { name });
        if was_up {
            self.note_lost_grants(node);
        }
    }

    /// Refuses a registration that was on its way when its agent stopped.
    pub(super) fn refuse_stopped_agent(&mut self, token: Token, name: &str) {
        let why = format!("{name}: this agent has deregistered; start a new one");
        let result = Err(RackError::BadRequest(why));
        self.reply(token, Reply::Registered(result));
    }
}
