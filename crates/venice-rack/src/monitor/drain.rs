//! Drain of a node for maintenance: it gets no new grants, and its grants end in their own time.

use super::{Change, Event, MonitorCore, Token};
use crate::monitor_node::Reply;
use crate::types::RackError;

impl MonitorCore {
    /// Starts or ends (`drains` false) the drain of the node `name`. Answered by
    /// [`Reply::Done`] once it is durable. It lasts until it is ended, across restarts of the
    /// agent and of the Monitor Node. Shares already requested from the node are not called off.
    pub fn handle_drain(&mut self, now_ns: u64, token: Token, name: &str, drains: bool) {
        let Some(node) = self.rrt.by_name(name).map(|entry| entry.record.identity.node) else {
            let result = Err(RackError::UnknownNode(name.to_owned()));
            self.reply(token, Reply::Done(result));
            return;
        };
        // Another Monitor Node may have changed the state meanwhile: the store decides.
        let may_be_other = self.shared.is_some();
        if self.rrt.is_draining(node) != drains || may_be_other {
            let record = self.rrt.change_record(node, |record| record.is_draining = drains);
            self.change(Change::PutNode(record));
            self.note(Event::NodeDrains { name: name.to_owned(), drains });
        }
        self.reply(token, Reply::Done(Ok(())));
        self.note_room(now_ns, !drains);
    }
}
