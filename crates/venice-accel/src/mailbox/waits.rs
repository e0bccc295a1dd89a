//! Recipients that wait for completions. No I/O.

use std::collections::VecDeque;

use venice_service::{Answer, ConnectionId, Status};

use super::donor::Completion;

/// Requests for completions that are outstanding, and the latest completion of each mailbox.
///
/// Bounded by the requests that connections may have outstanding.
#[derive(Debug)]
pub(crate) struct Waits {
    /// Number and result of the latest completion.
    completed: Vec<(u64, Vec<u8>)>,
    waiting: Vec<Wait>,
    ready: VecDeque<(Answer, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    connection: ConnectionId,
    id: u64,
    mailbox: u32,
    sequence: u64,
}

impl Waits {
    pub(crate) fn new(mailboxes: u32) -> Self {
        let completed = vec![(0, Vec::new()); mailboxes as usize];
        Self { completed, waiting: Vec::new(), ready: VecDeque::new() }
    }

    /// Takes in a request for the completion of a start, which may have been flagged before.
    pub(crate) fn handle_wait(
        &mut self,
        (connection, id): (ConnectionId, u64),
        mailbox: u32,
        sequence: u64,
    ) {
        let wait = Wait { connection, id, mailbox, sequence };
        match self.completed.get(mailbox as usize) {
            None => {
                let answer = Answer { connection, id, status: Status::MALFORMED };
                self.ready.push_back((answer, Vec::new()));
            }
            Some((completed, _)) if *completed >= sequence => self.answer(wait),
            Some(_) => self.waiting.push(wait),
        }
    }

    /// Takes in a completion that was flagged; true if someone waits for it.
    pub(crate) fn handle_completion(&mut self, completion: &Completion) -> bool {
        let ticket = completion.ticket;
        let mut result = completion.result.emit();
        result.extend_from_slice(&completion.printed.to_le_bytes());
        self.completed[ticket.mailbox as usize] = (ticket.sequence, result);
        let is_met =
            |wait: &mut Wait| wait.mailbox == ticket.mailbox && wait.sequence <= ticket.sequence;
        let met: Vec<_> = self.waiting.extract_if(.., is_met).collect();
        met.iter().for_each(|wait| self.answer(*wait));
        !met.is_empty()
    }

    /// Forgets the requests of a connection.
    pub(crate) fn handle_disconnect(&mut self, connection: ConnectionId) {
        self.waiting.retain(|wait| wait.connection != connection);
        self.ready.retain(|(answer, _)| answer.connection != connection);
    }

    /// Returns the next answer: number of the latest completion, and its result.
    pub(crate) fn poll_answer(&mut self, payload: &mut Vec<u8>) -> Option<Answer> {
        let (answer, bytes) = self.ready.pop_front()?;
        payload.extend_from_slice(&bytes);
        Some(answer)
    }

    fn answer(&mut self, wait: Wait) {
        let Wait { connection, id, mailbox, .. } = wait;
        let (completed, result) = &self.completed[mailbox as usize];
        let mut bytes = completed.to_le_bytes().to_vec();
        bytes.extend_from_slice(result);
        self.ready.push_back((Answer { connection, id, status: Status::OK }, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::super::donor::Ticket;
    use super::super::outcome::TaskResult;
    use super::*;

    fn completion(mailbox: u32, sequence: u64) -> Completion {
        let result = TaskResult { outcome: Ok(sequence), time_ns: 0 };
        Completion { ticket: Ticket { mailbox, sequence }, result, printed: 0 }
    }

    fn ready(waits: &mut Waits) -> Vec<u64> {
        std::iter::from_fn(|| waits.poll_answer(&mut Vec::new()).map(|it| it.id)).collect()
    }

    #[test]
    fn completion_answers_its_waiters() {
        let (mut waits, one) = (Waits::new(2), ConnectionId(1));
        waits.handle_wait((one, 10), 0, 1);
        waits.handle_wait((one, 11), 0, 2);
        waits.handle_wait((ConnectionId(2), 12), 1, 1);
        assert!(ready(&mut waits).is_empty());
        assert!(waits.handle_completion(&completion(0, 1)));
        assert_eq!(ready(&mut waits), [10]);
        waits.handle_wait((one, 13), 0, 1);
        assert_eq!(ready(&mut waits), [13], "flagged before");
        waits.handle_disconnect(one);
        assert!(!waits.handle_completion(&completion(0, 2)));
        waits.handle_wait((one, 14), 2, 1);
        assert_eq!(waits.poll_answer(&mut Vec::new()).unwrap().status, Status::MALFORMED);
    }
}
