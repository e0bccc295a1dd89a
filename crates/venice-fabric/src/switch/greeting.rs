//! The handshake of a hop link: each end verifies that the other is still the same session.
//!
//! Both ends are alike. An end that is not up sends Hello; a Hello is answered by a Welcome. Each
//! carries a challenge, and the other's latest challenge as its answer. An end accepts a greeting
//! only if it answers the end's own present challenge, so greetings of an earlier session do no
//! harm. The link's number is made of both incarnations: as long as both ends keep their state, it
//! stays the same link, with its positions and credits, however often it was down.

use venice_wire::{Greeting, NodeId};

use crate::datalink::LinkNumbers;

/// One end's state of the handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    incarnation: u64,
    /// The other end's incarnation.
    known: Option<u64>,
    numbers: LinkNumbers,
    challenge: u64,
    /// The latest challenge received.
    answer: u64,
    is_up: bool,
}

/// The result of a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Greeted {
    /// The greeting proves nothing.
    Nothing,
    /// The link is up (again): the same link as before.
    Same,
    /// The other end is a new session: a new link, up.
    New,
}

impl Handshake {
    pub(super) fn new(incarnation: u64, salt: u64) -> Self {
        let mut numbers = LinkNumbers::new(incarnation.rotate_left(17) ^ salt);
        let challenge = draw(&mut numbers);
        Self { incarnation, known: None, numbers, challenge, answer: 0, is_up: false }
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Returns the link's number; 0 before there was one.
    pub(super) fn link(&self) -> u32 {
        let mixed = |seed| LinkNumbers::new(seed).draw().0;
        self.known.map_or(0, |known| (mixed(known) ^ mixed(self.incarnation)).max(1))
    }

    /// Takes the other end's greeting.
    pub(super) fn receive(&mut self, greeting: &Greeting) -> Greeted {
        self.answer = greeting.challenge;
        if greeting.answer != self.challenge {
            return Greeted::Nothing;
        }
        // Drawn anew: a late copy of this greeting proves nothing.
        self.challenge = draw(&mut self.numbers);
        self.is_up = true;
        if self.known.replace(greeting.incarnation) == Some(greeting.incarnation) {
            Greeted::Same
        } else {
            Greeted::New
        }
    }

    /// Marks the link as down because the other end has stopped answering.
    pub(super) fn go_down(&mut self) {
        self.is_up = false;
    }

    pub(super) fn greeting(&self, node: NodeId, window: u16) -> Greeting {
        let &Self { incarnation, challenge, answer, .. } = self;
        Greeting { node, window, incarnation, challenge, answer }
    }
}

fn draw(numbers: &mut LinkNumbers) -> u64 {
    u64::from(numbers.draw().0) << 32 | u64::from(numbers.draw().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greet(from: &Handshake, to: &mut Handshake) -> Greeted {
        to.receive(&from.greeting(NodeId(1), 64))
    }

    fn joined() -> (Handshake, Handshake) {
        let (mut a, mut b) = (Handshake::new(11, 0), Handshake::new(22, 0));
        assert_eq!(greet(&a, &mut b), Greeted::Nothing, "a Hello alone proves nothing");
        assert_eq!(greet(&b, &mut a), Greeted::New);
        assert_eq!(greet(&a, &mut b), Greeted::New);
        assert_eq!((a.link(), a.is_up(), b.is_up()), (b.link(), true, true));
        assert_ne!(a.link(), 0);
        (a, b)
    }

    #[test]
    fn kept_state_keeps_link() {
        let (mut a, mut b) = joined();
        let link = a.link();
        a.go_down();
        assert_eq!(greet(&a, &mut b), Greeted::Nothing, "it has no present challenge of b");
        assert_eq!(greet(&b, &mut a), Greeted::Same);
        assert_eq!(greet(&a, &mut b), Greeted::Same);
        assert_eq!((a.link(), b.link()), (link, link));
    }

    #[test]
    fn restarted_end_makes_new_link() {
        let (mut a, _) = joined();
        let before = a.link();
        let mut b = Handshake::new(23, 0);
        assert_eq!(greet(&b, &mut a), Greeted::Nothing);
        assert_eq!(greet(&a, &mut b), Greeted::New);
        assert_eq!(greet(&b, &mut a), Greeted::New);
        assert_eq!(a.link(), b.link());
        assert_ne!(a.link(), before);
    }

    #[test]
    fn stale_greetings_are_ignored() {
        let (mut a, b) = joined();
        let old = b.greeting(NodeId(1), 64);
        let link = a.link();
        assert_eq!(a.receive(&old), Greeted::Same);
        assert_eq!(a.receive(&old), Greeted::Nothing, "once");
        let stranger = Greeting { incarnation: 99, answer: 5, ..old };
        assert_eq!(a.receive(&stranger), Greeted::Nothing);
        assert_eq!(a.link(), link);
    }
}
