//! Bulk reads answered from the memory in place: effects of the link's own writes, of other
//! writers, and the end of the loans.

use crate::world::{
    Donor, Faults, GRANT, KEY, MS, RECIPIENT, RECIPIENT_ADDR, SECOND, World, donor_node,
};
use venice_fabric::{Target, Transmission};
use venice_wire::{
    Channel, Frame, HeaderRepr, LinkId, MAX_FRAME_BYTES, Opcode, Sequence, WireError,
};

const LEN: usize = 4096;

/// A donor with a link, and no caller at its other end.
struct LoneDonor {
    donor: Donor,
    link: LinkId,
    next: u32,
    now_ns: u64,
}

impl LoneDonor {
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

    /// Acknowledges all frames before `next`, or reports frame `next` missing.
    fn acknowledge(&mut self, opcode: Opcode, next: u32) {
        let sequence = Sequence(self.next);
        let header = self.header(Channel::Link, opcode);
        self.hand_over(HeaderRepr { sequence, ack: Sequence(next), ..header }, &[]);
    }

    fn target(&mut self) -> &mut Target {
        &mut self.donor.target
    }

    /// Returns the next answer; `meanwhile` runs while it is sent.
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
fn read_excludes_later_writes() {
    let mut donor_side = LoneDonor::new();
    donor_side.donor.memory.change(0, &[1; LEN]);
    donor_side.request(Opcode::Read, &[]);
    donor_side.request(Opcode::Write, &[2; LEN]);
    assert_eq!(payload(&donor_side.next_sent(|_| ())), Ok(1));
    // A replay has the same contents.
    donor_side.now_ns += 100 * MS;
    donor_side.acknowledge(Opcode::Nak, 0);
    assert_eq!(payload(&donor_side.next_sent(|_| ())), Ok(1));
}

#[test]
fn replayed_read_excludes_later_writes() {
    let mut donor_side = LoneDonor::new();
    donor_side.donor.memory.change(0, &[1; LEN]);
    donor_side.request(Opcode::Read, &[]);
    assert_eq!(payload(&donor_side.next_sent(|_| ())), Ok(1));
    donor_side.request(Opcode::Write, &[2; LEN]);
    donor_side.now_ns += 100 * MS;
    donor_side.acknowledge(Opcode::Nak, 0);
    assert_eq!(payload(&donor_side.next_sent(|_| ())), Ok(1));
}

/// The port holds an answer when the write that follows it in the same batch is carried out.
#[test]
fn pending_answer_survives_write() {
    let mut donor_side = LoneDonor::new();
    donor_side.donor.memory.change(0, &[1; LEN]);
    donor_side.request(Opcode::Read, &[]);
    let header = donor_side.header(Channel::Rdma, Opcode::Write);
    let write = HeaderRepr { sequence: Sequence(1), access_len: LEN as u16, ..header };
    let sent = donor_side.next_sent(|donor| {
        let mut buf = [0; MAX_FRAME_BYTES];
        let len = write.emit(&[2; LEN], &mut buf).unwrap();
        donor.target.handle_frame(0, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    });
    assert_eq!(payload(&sent), Ok(1));
    assert_eq!(donor_side.donor.memory.bytes[0], 2);
}

/// A process on the donor's host writes while an answer is sent: its checksum fails, and a copy is
/// sent.
#[test]
fn concurrent_change_is_resent_from_copy() {
    let mut donor_side = LoneDonor::new();
    donor_side.donor.memory.change(0, &[1; LEN]);
    donor_side.request(Opcode::Read, &[]);
    let torn = donor_side.next_sent(|donor| donor.memory.change(100, &[3; 50]));
    assert!(matches!(Frame::parse(&torn), Err(WireError::BadChecksum)));
    donor_side.donor.memory.change(0, &[4; LEN]);
    donor_side.now_ns += 100 * MS;
    donor_side.acknowledge(Opcode::Nak, 0);
    // It changes again before the copy is sent.
    let sent = donor_side.next_sent(|donor| donor.memory.change(0, &[5; LEN]));
    assert_eq!(payload(&sent), Ok(4));
}

#[test]
fn acknowledged_loan_is_returned() {
    let mut donor_side = LoneDonor::new();
    assert_eq!(donor_side.donor.memory.loans(), 0);
    for _ in 0..3 {
        donor_side.request(Opcode::Read, &[]);
    }
    assert_eq!(donor_side.donor.memory.loans(), 3);
    for _ in 0..3 {
        donor_side.next_sent(|_| ());
    }
    donor_side.acknowledge(Opcode::Ack, 2);
    assert_eq!(donor_side.donor.memory.loans(), 1, "one has not arrived");
    donor_side.now_ns += MS;
    let now_ns = donor_side.now_ns;
    assert_eq!(donor_side.target().revoke(now_ns, GRANT), 1);
    assert_eq!(donor_side.donor.memory.loans(), 0, "the memory is about to go");
}

#[test]
fn closed_link_returns_loans() {
    let mut donor_side = LoneDonor::new();
    donor_side.request(Opcode::Read, &[]);
    donor_side.request(Opcode::Read, &[]);
    donor_side.next_sent(|_| ());
    assert_eq!((donor_side.donor.memory.loans(), donor_side.target().links()), (2, 1));
    donor_side.now_ns += 1000 * SECOND;
    let now_ns = donor_side.now_ns;
    donor_side.target().handle_timeout(now_ns);
    assert_eq!((donor_side.donor.memory.loans(), donor_side.target().links()), (0, 0));
}
