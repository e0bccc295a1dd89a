//! The bound on open connections: the oldest makes room. An honest one is over in milliseconds.

use std::collections::VecDeque;
use std::net::IpAddr;
use tokio::task::AbortHandle;

/// Open connections, in all and of one address.
const MOST: usize = 32;
const MOST_OF_ADDRESS: usize = 8;

/// The open connections, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: VecDeque<(IpAddr, AbortHandle)>,
}

impl Connections {
    /// Makes room for one more connection of this address.
    pub(crate) fn make_room(&mut self, from: IpAddr) {
        self.open.retain(|(_, task)| !task.is_finished());
        if self.count(from) >= MOST_OF_ADDRESS {
            self.displace(from);
        } else if self.open.len() >= MOST
            && let Some(from) = self.most_frequent()
        {
            self.displace(from);
        }
    }

    /// Adds a connection.
    pub(crate) fn enter(&mut self, from: IpAddr, task: AbortHandle) {
        self.open.push_back((from, task));
    }

    fn count(&self, from: IpAddr) -> usize {
        self.open.iter().filter(|(of, _)| *of == from).count()
    }

    fn most_frequent(&self) -> Option<IpAddr> {
        self.open.iter().map(|(of, _)| *of).max_by_key(|of| self.count(*of))
    }

    fn displace(&mut self, from: IpAddr) {
        if let Some(at) = self.open.iter().position(|(of, _)| *of == from)
            && let Some((_, task)) = self.open.remove(at)
        {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_of_busiest_makes_room() {
        let mut connections = Connections::default();
        let mut tasks = Vec::new();
        let mut open = |connections: &mut Connections, last: u8| {
            let from = IpAddr::from([10, 0, 0, last]);
            connections.make_room(from);
            let task = tokio::spawn(std::future::pending::<()>());
            connections.enter(from, task.abort_handle());
            tasks.push(task);
        };
        for _ in 0..3 * MOST_OF_ADDRESS {
            open(&mut connections, 1);
        }
        assert_eq!(connections.open.len(), MOST_OF_ADDRESS);
        for last in 2..=255 {
            open(&mut connections, last);
        }
        assert!(connections.open.len() <= MOST);
        let newest = IpAddr::from([10, 0, 0, 255]);
        assert_eq!(connections.count(newest), 1, "the newest has a place");
    }
}
