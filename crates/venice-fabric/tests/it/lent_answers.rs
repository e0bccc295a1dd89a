//! Bulk reads answered from where the bytes are: what the link itself writes, what others write, and
//! what becomes of the loans.

use crate::world::{
    Donor, Faults, GRANT, KEY, MS, RECIPIENT, RECIPIENT_ADDR, SECOND, World, donor_node,
};
use venice_fabric::{Target, Transmission};
use venice_wire::{
    Channel, Frame, HeaderRepr, LinkId, MAX_FRAME_BYTES, Opcode, Sequence, WireError,
};

const LEN: usize = 4096;

/// A donor with a link, and nobody at the other end of it.
struct Alone {
    donor: Donor,
    link: LinkId,
    next: u32,
    now_ns: u64,
}

impl Alone {
    fn new() -> Self {
        let mut world = World::new(7, 1, 16, Faults::default());
        let (mut buf, now_ns) = ([0; MAX_FRAME_BYTES], world.now_ns);
        let (_, len) = world.initiator.poll_transmit(now_ns, &mut buf).expect("a Hello");
        let mut donor = world.donors.remove(0);
        donor.target.handle_frame(now_ns, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
        let (_, len) = donor.target.poll_transmit(now_ns, &mut buf).expect("a Welcome");
        let link = LinkId(Frame::parse(&buf[..len]).unwrap().transaction());
        Self { donor, link, next: 0, now_ns }
    }

    fn header(&self, channel: Channel, opcode: Opcode) -> HeaderRepr {
        let header = HeaderRepr::new(channel, opcode, RECIPIENT, donor_node(0));
        HeaderRepr { link: self.link, grant: GRANT, key: KEY, ..header }
    }

    fn hand_over(&mut self, header: HeaderRepr, payload: &[u8]) {
        let mut buf = [0; MAX_FRAME_BYTES];
        let len = header.emit(payload, &mut buf).unwrap();
        let Donor { target, memory, .. } = &mut self.donor;
        target.handle_frame(self.now_ns, RECIPIENT_ADDR, &buf[..len], memory);
    }

    fn request(&mut self, opcode: Opcode, payload: &[u8]) {
        let sequence = Sequence(self.next);
        self.next += 1;
        let header = HeaderRepr {
            sequence,
            transaction: sequence.0,
            access_len: LEN as u16,
            ..self.header(Channel::Rdma, opcode)
        };
        self.hand_over(header, payload);
    }

    /// Says that everything before `next` has arrived, or that frame `next` has not.
    fn say(&mut self, opcode: Opcode, next: u32) {
        let sequence = Sequence(self.next);
        let header = self.header(Channel::Link, opcode);
        self.hand_over(HeaderRepr { sequence, ack: Sequence(next), ..header }, &[]);
    }

    fn target(&mut self) -> &mut Target {
        &mut self.donor.target
    }

    /// The next answer, as `meanwhile` lets it go out.
    fn next_sent(&mut self, meanwhile: impl FnOnce(&mut Donor)) -> Vec<u8> {
        let (mut buf, now_ns) = ([0; MAX_FRAME_BYTES], self.now_ns);
        let (_, sent) = self.target().poll_transmit_kept(now_ns, &mut buf).expect("an answer");
        meanwhile(&mut self.donor);
        let len = match sent {
            Transmission::Written(len) => len,
            Transmission::Kept(frame) => {
                self.target().kept(&frame).expect("it is kept").copy_to(&mut buf)
            }
        };
        buf[..len].to_vec()
    }
}

fn payload(frame: &[u8]) -> Result<u8, WireError> {
    let frame = Frame::parse(frame)?;
    assert_eq!((frame.source(), frame.opcode()), (donor_node(0), Opcode::Data));
    assert_eq!(frame.payload().len(), LEN);
    let first = frame.payload()[0];
    assert!(frame.payload().iter().all(|&byte| byte == first), "bytes of one time");
    Ok(first)
}

#[test]
fn a_read_is_answered_as_it_was_before_the_writes_that_follow_it() {
    let mut alone = Alone::new();
    alone.donor.memory.change(0, &[1; LEN]);
    alone.request(Opcode::Read, &[]);
    alone.request(Opcode::Write, &[2; LEN]);
    assert_eq!(payload(&alone.next_sent(|_| ())), Ok(1));
    // And so when it goes again.
    alone.now_ns += 100 * MS;
    alone.say(Opcode::Nak, 0);
    assert_eq!(payload(&alone.next_sent(|_| ())), Ok(1));
}

#[test]
fn a_read_that_was_sent_and_is_lost_is_answered_as_it_was_before_later_writes() {
    let mut alone = Alone::new();
    alone.donor.memory.change(0, &[1; LEN]);
    alone.request(Opcode::Read, &[]);
    assert_eq!(payload(&alone.next_sent(|_| ())), Ok(1));
    alone.request(Opcode::Write, &[2; LEN]);
    alone.now_ns += 100 * MS;
    alone.say(Opcode::Nak, 0);
    assert_eq!(payload(&alone.next_sent(|_| ())), Ok(1));
}

/// The port has an answer in hand when the write that follows it in the same batch is carried out.
#[test]
fn an_answer_that_is_about_to_go_is_not_changed_by_a_write() {
    let mut alone = Alone::new();
    alone.donor.memory.change(0, &[1; LEN]);
    alone.request(Opcode::Read, &[]);
    let header = alone.header(Channel::Rdma, Opcode::Write);
    let write = HeaderRepr { sequence: Sequence(1), access_len: LEN as u16, ..header };
    let sent = alone.next_sent(|donor| {
        let mut buf = [0; MAX_FRAME_BYTES];
        let len = write.emit(&[2; LEN], &mut buf).unwrap();
        donor.target.handle_frame(0, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    });
    assert_eq!(payload(&sent), Ok(1));
    assert_eq!(alone.donor.memory.bytes[0], 2);
}

/// A process on the donor's host writes while an answer goes out: it is refused, and comes whole.
#[test]
fn what_others_change_on_the_way_goes_again_from_a_copy() {
    let mut alone = Alone::new();
    alone.donor.memory.change(0, &[1; LEN]);
    alone.request(Opcode::Read, &[]);
    let torn = alone.next_sent(|donor| donor.memory.change(100, &[3; 50]));
    assert!(matches!(Frame::parse(&torn), Err(WireError::BadChecksum)));
    alone.donor.memory.change(0, &[4; LEN]);
    alone.now_ns += 100 * MS;
    alone.say(Opcode::Nak, 0);
    // Even though it changes again before it goes.
    let sent = alone.next_sent(|donor| donor.memory.change(0, &[5; LEN]));
    assert_eq!(payload(&sent), Ok(4));
}

#[test]
fn what_is_lent_is_given_back() {
    let mut alone = Alone::new();
    assert_eq!(alone.donor.memory.loans(), 0);
    for _ in 0..3 {
        alone.request(Opcode::Read, &[]);
    }
    assert_eq!(alone.donor.memory.loans(), 3);
    for _ in 0..3 {
        alone.next_sent(|_| ());
    }
    alone.say(Opcode::Ack, 2);
    assert_eq!(alone.donor.memory.loans(), 1, "one has not arrived");
    alone.now_ns += MS;
    let now_ns = alone.now_ns;
    assert_eq!(alone.target().revoke(now_ns, GRANT), 1);
    assert_eq!(alone.donor.memory.loans(), 0, "the memory is to go");
}

#[test]
fn a_link_that_goes_gives_back_what_it_was_lent() {
    let mut alone = Alone::new();
    alone.request(Opcode::Read, &[]);
    alone.request(Opcode::Read, &[]);
    alone.next_sent(|_| ());
    assert_eq!((alone.donor.memory.loans(), alone.target().links()), (2, 1));
    alone.now_ns += 1000 * SECOND;
    let now_ns = alone.now_ns;
    alone.target().handle_timeout(now_ns);
    assert_eq!((alone.donor.memory.loans(), alone.target().links()), (0, 0));
}
