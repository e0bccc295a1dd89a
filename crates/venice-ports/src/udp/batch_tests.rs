//! Tests of batches going out and coming in, against sockets of the standard library and each
//! other.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use super::incoming::Incoming;
use super::outgoing::{Outgoing, TRAIN_FRAMES};
use super::raw_address::RawAddress;
use super::reassembly::Reassembly;
use super::socket::UdpSocket as PortSocket;
use crate::seal::{Opener, Sealer, node_key};
use venice_wire::{
    Channel, GrantId, HEADER_BYTES, HeaderRepr, KeyName, MAX_FRAME_BYTES, NodeId, NodeSecret,
    Opcode,
};

const LIMIT: usize = 65_000;

/// Makes a non-blocking socket of the standard library, for comparison.
fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn all(incoming: &mut Incoming) -> Vec<(RawAddress, Vec<u8>)> {
    let mut datagrams = Vec::new();
    incoming.for_each(|from, datagram| datagrams.push((*from, datagram.to_vec())));
    datagrams
}

fn push(out: &mut Outgoing, to: &RawAddress, datagram: &[u8]) {
    out.plain_buffer()[..datagram.len()].copy_from_slice(datagram);
    out.push(to, datagram.len(), LIMIT);
}

fn goes_out_as_it_is(local: &str, cuts: bool) {
    let (ours, theirs) = (socket(local), socket(local));
    let our_address = ours.local_addr().unwrap();
    let to = RawAddress::encode(theirs.local_addr().unwrap());
    // Runs of equal lengths, a shorter one at the end of a run, a longer one, an empty one.
    let lens = [5, 5, 5, 3, 3, 7, 7, 0, 7, 4000, 4000, 12];
    let mut out = Outgoing::new(cuts);
    for (byte, len) in lens.into_iter().enumerate() {
        push(&mut out, &to, &vec![byte as u8; len]);
    }
    out.send(ours.as_fd()).unwrap();
    assert!(out.is_empty());
    let mut buffer = [0; 5000];
    for (byte, len) in lens.into_iter().enumerate() {
        let (received, from) = theirs.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..received], from), (&vec![byte as u8; len][..], our_address));
    }
    assert!(theirs.recv_from(&mut buffer).is_err(), "no further datagram");
}

#[test]
fn sends_datagrams_unchanged() {
    for cuts in [true, false] {
        goes_out_as_it_is("127.0.0.1:0", cuts);
        if UdpSocket::bind("[::1]:0").is_ok() {
            goes_out_as_it_is("[::1]:0", cuts);
        }
    }
}

/// The beginning of one more train would cost as much as a whole one.
#[test]
fn gathers_whole_trains_of_longest_frames() {
    let to = RawAddress::encode("127.0.0.1:9".parse().unwrap());
    let (secret, name) = (NodeSecret([1; 32]), KeyName::Grant(GrantId(1)));
    let mut sealer = Sealer::new(name, &node_key(&secret, name)).unwrap();
    for is_sealed in [false, true] {
        let (mut out, mut frames) = (Outgoing::new(true), 0);
        while !out.is_full() {
            if is_sealed {
                out.push_sealed(&to, MAX_FRAME_BYTES, LIMIT, &mut sealer);
            } else {
                push(&mut out, &to, &[0; MAX_FRAME_BYTES]);
            }
            frames += 1;
        }
        assert!(frames > 0 && frames % TRAIN_FRAMES == 0, "{frames}, {is_sealed}");
    }
}

#[test]
fn receives_datagrams_unchanged() {
    let ours = PortSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let theirs = socket("127.0.0.1:0");
    let from = RawAddress::encode(theirs.local_addr().unwrap());
    let to = RawAddress::encode(ours.local_addr());
    let mut out = Outgoing::new(true);
    let sent: Vec<Vec<u8>> =
        (0..40u8).map(|n| vec![n; if n % 13 == 12 { 100 } else { 2000 }]).collect();
    for datagram in &sent {
        push(&mut out, &to, datagram);
    }
    out.send(theirs.as_fd()).unwrap();
    let mut incoming = Incoming::new();
    let mut received = Vec::new();
    while incoming.receive(ours.as_fd()).unwrap() > 0 {
        received.extend(all(&mut incoming));
    }
    assert!(received.iter().all(|(address, _)| address.decode() == from.decode()));
    let received: Vec<_> = received.into_iter().map(|(_, datagram)| datagram).collect();
    assert_eq!(received, sent);
    // Single datagrams again, after trains.
    theirs.send_to(b"one", ours.local_addr()).unwrap();
    theirs.send_to(b"", ours.local_addr()).unwrap();
    let mut texts = Vec::new();
    while incoming.receive(ours.as_fd()).unwrap() > 0 {
        texts.extend(all(&mut incoming).into_iter().map(|(_, datagram)| datagram));
    }
    assert_eq!(texts, [b"one".to_vec(), vec![]]);
}

/// One at a time: they are received by the call that does not report segment sizes.
#[test]
fn receives_frames_unchanged() {
    let ours = PortSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let theirs = socket("127.0.0.1:0");
    let from = RawAddress::encode(theirs.local_addr().unwrap());
    let to = RawAddress::encode(ours.local_addr());
    let mut incoming = Incoming::new();
    incoming.set_has_frames(true);
    let frame = |payload: usize| {
        let mut frame = vec![0; HEADER_BYTES + payload];
        let header = HeaderRepr::new(Channel::Crma, Opcode::Write, NodeId(1), NodeId(2));
        header.emit(&vec![payload as u8; payload], &mut frame).unwrap();
        frame
    };
    let rubbish: [&[u8]; 4] = [&[], &[1], &[0xff; HEADER_BYTES], &[0xff; 4000]];
    let alone = rubbish.map(|datagram| vec![datagram.to_vec()]);
    let trains = [&[0][..], &[4096], &[8, 8, 8], &[4096, 4096, 100], &[0, 0], &[500; 40]];
    let trains = trains.map(|payloads| payloads.iter().map(|len| frame(*len)).collect::<Vec<_>>());
    for sent in alone.into_iter().chain(trains) {
        assert_eq!(incoming.receive(ours.as_fd()).unwrap(), 0, "the next call takes one alone");
        let mut out = Outgoing::new(true);
        sent.iter().for_each(|datagram| push(&mut out, &to, datagram));
        out.send(theirs.as_fd()).unwrap();
        assert_eq!(incoming.receive(ours.as_fd()).unwrap(), 1);
        let received = all(&mut incoming);
        assert!(received.iter().all(|(address, _)| address.decode() == from.decode()));
        assert!(received.iter().map(|(_, datagram)| datagram).eq(&sent));
    }
}

#[test]
fn unreachable_peer_keeps_rest_of_batch() {
    let (ours, theirs) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let mut out = Outgoing::new(true);
    for to in ["[::1]:9".parse().unwrap(), theirs.local_addr().unwrap()] {
        push(&mut out, &RawAddress::encode(to), &[5; 8]);
        push(&mut out, &RawAddress::encode(to), &[5; 8]);
    }
    out.send(ours.as_fd()).unwrap();
    assert_eq!(theirs.recv(&mut [0; 8]).unwrap(), 8);
}

#[test]
fn sealed_messages_fit_path_limit() {
    let (ours, theirs) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let to = RawAddress::encode(theirs.local_addr().unwrap());
    let (secret, name) = (NodeSecret([1; 32]), KeyName::Grant(GrantId(1)));
    let mut sealer = Sealer::new(name, &node_key(&secret, name)).unwrap();
    let mut opener = Opener::<()>::new(1);
    let mut whole = Reassembly::default();
    let mut buffer = [0; 9000];
    for limit in [600, 1472, 8972] {
        for len in [1, 64, limit - 48, limit - 47, 4159, MAX_FRAME_BYTES] {
            let len = len.min(MAX_FRAME_BYTES);
            let message: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            let mut out = Outgoing::new(true);
            out.sealed_buffer()[..len].copy_from_slice(&message);
            out.push_sealed(&to, len, limit, &mut sealer);
            out.send(ours.as_fd()).unwrap();
            let mut arrived = None;
            while let Ok(received) = theirs.recv(&mut buffer) {
                assert!(received <= limit, "{received} bytes over {limit}");
                let opened = opener.open(0, &mut buffer[..received], &secret).unwrap();
                let text = &buffer[opened.payload];
                assert!(arrived.is_none(), "complete only once, with the last piece");
                arrived = whole.take(&opened.header, text).map(<[u8]>::to_vec);
            }
            assert_eq!(arrived, Some(message), "{len} bytes in datagrams of {limit}");
        }
    }
}
