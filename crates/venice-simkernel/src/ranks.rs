//! Ranks: processes, on one machine or several, that run a world together.
//!
//! The kernel knows no network: what connects processes implements [`Ranks`]. All of them call the
//! same methods in the same order, as MPI's programs do. [`in_threads`] connects threads, for tests.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The connection of one rank to the others.
///
/// A rank that is gone ends all others: no method returns an error.
pub trait Ranks {
    /// Returns its number, from 0.
    fn number(&self) -> usize;

    /// Returns the number of ranks.
    fn count(&self) -> usize;

    /// Sends bytes to another rank. It may wait until that rank receives them.
    fn send(&self, to: usize, bytes: Vec<u8>);

    /// Receives what another rank sent: all of it in its order.
    fn receive(&self, from: usize) -> Vec<u8>;

    /// Sends bytes to each rank, and returns what each has sent to this one in the same call. What a
    /// rank has for itself is returned to it.
    fn exchange(&self, bytes: Vec<Vec<u8>>) -> Vec<Vec<u8>>;

    /// Sends bytes of rank 0 to all, and returns them; the others give none.
    fn broadcast(&self, bytes: Vec<u8>) -> Vec<u8> {
        if self.number() > 0 {
            return self.receive(0);
        }
        (1..self.count()).for_each(|to| self.send(to, bytes.clone()));
        bytes
    }

    /// Sends bytes to rank 0, which returns those of all ranks; the others return none.
    fn gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if self.number() > 0 {
            self.send(0, bytes);
            return Vec::new();
        }
        let others = (1..self.count()).map(|from| self.receive(from));
        std::iter::once(bytes).chain(others).collect()
    }
}

/// Runs the ranks of a world in threads of this process; returns what each made, by number.
///
/// # Panics
/// If one of them panics.
pub fn in_threads<R: Send>(count: usize, run: impl Fn(Rc<dyn Ranks>) -> R + Sync) -> Vec<R> {
    let mut senders: Vec<Vec<Sender<Vec<u8>>>> = (0..count).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<Receiver<Vec<u8>>>> = Vec::new();
    for _ in 0..count {
        let (to_this, from_others): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        senders.iter_mut().zip(to_this).for_each(|(of, sender)| of.push(sender));
        receivers.push(from_others);
    }
    std::thread::scope(|scope| {
        let start = |(number, (to, from))| {
            let run = &run;
            scope.spawn(move || run(Rc::new(Thread { number, to, from })))
        };
        let threads = senders.into_iter().zip(receivers).enumerate().map(start);
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|one| one.join().expect("no rank panics")).collect()
    })
}

/// A rank that is a thread.
struct Thread {
    number: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl Ranks for Thread {
    fn number(&self) -> usize {
        self.number
    }

    fn count(&self) -> usize {
        self.to.len()
    }

    fn send(&self, to: usize, bytes: Vec<u8>) {
        self.to[to].send(bytes).expect("the other rank runs");
    }

    fn receive(&self, from: usize) -> Vec<u8> {
        self.from[from].recv().expect("the other rank runs")
    }

    fn exchange(&self, bytes: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        bytes.into_iter().enumerate().for_each(|(to, bytes)| self.send(to, bytes));
        (0..self.count()).map(|from| self.receive(from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_meet_in_order() {
        let met = in_threads(3, |ranks| {
            let own = ranks.number() as u8;
            let sent = (0..3).map(|to| vec![own, to]).collect();
            let came = ranks.exchange(sent);
            assert!((0..3).map(|from| vec![from, own]).eq(came));
            assert_eq!(ranks.broadcast(if own == 0 { vec![7] } else { vec![] }), [7]);
            ranks.gather(vec![own])
        });
        assert_eq!(met, [vec![vec![0], vec![1], vec![2]], vec![], vec![]]);
    }
}
