//! Connections of a host: segments, timers, and the calls on them.

use venice_simkernel::random::mix;
use venice_tcp::{Connection, Events, Segment};

use super::core::Core;
use super::socket::{Followed, Kind, Socket, Tcp};
use super::thread::{Return, SocketId, ThreadId, Wait};
use super::{Cx, Host};
use crate::journey::{JourneyId, Stage};
use crate::packet::{Body, Ecn, Endpoint, Host as HostId, LISTENING, Packet};
use crate::part::Event;
use crate::records::Drop;

/// The events after which a connection is over.
const OVER: [Events; 3] = [Events::CLOSED, Events::RESET, Events::TIMED_OUT];
/// The events after which there may be something to read.
const READABLE: [Events; 3] = [Events::READABLE, Events::MESSAGE, Events::PEER_CLOSED];
/// Followed requests that have come, and were not read; older ones are forgotten.
const MOST_ARRIVED: usize = 8;
/// Picoseconds of a nanosecond: TCP counts nanoseconds.
const PS_OF_NS: u64 = 1_000;

impl Cx<'_, '_> {
    /// The instant at which the next effect happens, in nanoseconds.
    fn nanos(&self) -> u64 {
        self.time() / PS_OF_NS
    }
}

impl Host {
    fn tcp(&mut self, socket: SocketId) -> Option<&mut Tcp> {
        match &mut self.sockets.get_mut(socket as usize)?.kind {
            Kind::Tcp(tcp) => Some(tcp),
            Kind::Udp(_) | Kind::Listener(_) | Kind::Closed => None,
        }
    }

    pub(super) fn open_socket(&mut self, kind: Kind) -> SocketId {
        match self.free_sockets.pop() {
            Some(number) => {
                self.sockets[number as usize] = Socket::new(kind);
                number
            }
            None => {
                self.sockets.push(Socket::new(kind));
                self.sockets.len() as SocketId - 1
            }
        }
    }

    /// The first sequence number of a new connection.
    fn first_sequence(&mut self, cx: &Cx<'_, '_>) -> u32 {
        self.opened = self.opened.wrapping_add(1);
        let number = u64::from(cx.host) << 32 | u64::from(self.opened);
        mix(number) as u32
    }

    /// Passes a segment to its connection.
    pub(super) fn deliver_segment(
        &mut self,
        packet: &Packet,
        segment: &Segment,
        cx: &mut Cx<'_, '_>,
    ) {
        let mut socket = packet.to.port & !LISTENING;
        if packet.to.port & LISTENING != 0 {
            match self.listen(socket, packet.from, segment, cx) {
                Ok(connection) => socket = connection,
                Err(cause) => return cx.lose(packet, cause),
            }
        } else {
            let now = cx.nanos();
            let config = &cx.shared.tcp;
            let Some(tcp) = self.tcp(socket).filter(|tcp| {
                tcp.peer.host == packet.from.host
                    && (tcp.peer.port == packet.from.port || tcp.peer.port & LISTENING != 0)
            }) else {
                return cx.lose(packet, Drop::NoSocket);
            };
            // The other end has a socket of its own for this connection.
            tcp.peer.port = packet.from.port;
            tcp.connection.handle_segment(now, config, segment, packet.ecn == Ecn::Marked);
            if let Some((message, journey)) = segment.message.zip(packet.journey) {
                tcp.followed.push(Followed { message, journey, has_come: true });
                // What came twice, or was read long ago.
                let arrived = tcp.followed.iter().filter(|followed| followed.has_come).count();
                for _ in MOST_ARRIVED..arrived {
                    let old = tcp.followed.take(|followed| followed.has_come);
                    cx.forget(old.map(|followed| followed.journey));
                }
            }
        }
        cx.records.deliver_packet();
        self.go_on_with(socket, cx);
    }

    /// A listening socket gets a segment. Returns the socket of a new connection, or why there is none.
    fn listen(
        &mut self,
        listener: SocketId,
        from: Endpoint,
        segment: &Segment,
        cx: &Cx<'_, '_>,
    ) -> Result<SocketId, Drop> {
        let backlog = cx.shared.server.kernel.values.sockets.backlog as usize;
        let Kind::Listener(state) = &self.sockets[listener as usize].kind else {
            return Err(Drop::NoSocket);
        };
        if let Some((_, socket)) = state.opening.iter().find(|(peer, _)| *peer == from) {
            let socket = *socket;
            let now = cx.nanos();
            let tcp = self.tcp(socket).expect("it is being opened");
            tcp.connection.handle_segment(now, &cx.shared.tcp, segment, false);
            return Ok(socket);
        }
        if state.opening.len() + state.waiting.len() >= backlog {
            return Err(Drop::Backlog);
        }
        let first = self.first_sequence(cx);
        let connection = Connection::accept(first, &cx.shared.tcp, segment);
        let connection = connection.ok_or(Drop::NoSocket)?;
        let socket = self.open_socket(Kind::Tcp(Tcp::new(connection, from, Some(listener))));
        if let Kind::Listener(state) = &mut self.sockets[listener as usize].kind {
            state.opening.push((from, socket));
        }
        Ok(socket)
    }

    /// Does what a connection wants after each change: sends, wakes, sets its timer.
    pub(super) fn go_on_with(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        self.send_segments(socket, cx);
        let Some(tcp) = self.tcp(socket) else { return };
        if tcp.connection.unacknowledged() == 0 {
            while let Some(followed) = tcp.followed.take(|followed| !followed.has_come) {
                cx.forget(Some(followed.journey));
            }
        }
        let events = tcp.connection.take_events();
        let is_over = tcp.connection.is_closed();
        let has_any = |set: &[Events]| set.iter().any(|event| events.has(*event));
        let is_new = events.has(Events::CONNECTED) || has_any(&OVER);
        if let Some(listener) = is_new.then(|| tcp.opened_by.take()).flatten() {
            self.leave_opening(listener, socket, is_over, cx);
        }
        if is_new || events.has(Events::WRITABLE) {
            self.wake_writer(socket, cx);
        }
        if is_new || has_any(&READABLE) {
            self.wake_readers(socket, cx);
        }
        match is_over && self.tcp(socket).is_some_and(|tcp| tcp.is_closed) {
            true => self.free(socket, cx),
            false => self.set_timer(socket, cx),
        }
    }

    fn wake_writer(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        if let Some(writer) = self.tcp(socket).and_then(|tcp| tcp.writer.take()) {
            self.wake(writer, cx);
        }
    }

    /// A connection is open, or has failed to open: its listening socket gets it, or forgets it.
    fn leave_opening(
        &mut self,
        listener: SocketId,
        socket: SocketId,
        has_failed: bool,
        cx: &mut Cx<'_, '_>,
    ) {
        let Kind::Listener(state) = &mut self.sockets[listener as usize].kind else { return };
        state.opening.retain(|(_, opening)| *opening != socket);
        if has_failed {
            // Nobody has its number: it ends here.
            if let Some(tcp) = self.tcp(socket) {
                tcp.is_closed = true;
            }
            return;
        }
        state.waiting.push_back(socket);
        self.wake_readers(listener, cx);
    }

    /// Sends all segments that a connection may send now.
    fn send_segments(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        let kernel = &cx.shared.server.kernel.values;
        loop {
            let now = cx.nanos();
            let Some(tcp) = self.tcp(socket) else { return };
            let Some(segment) = tcp.connection.poll_transmit(now, &cx.shared.tcp) else { return };
            cx.charge(if segment.len > 0 { kernel.tcp_send } else { kernel.tcp_send_ack });
            let is_capable = segment.flags.has(venice_tcp::Flags::ECT);
            let ecn = if is_capable { Ecn::Capable } else { Ecn::NotCapable };
            let from = Endpoint { host: cx.host, port: socket };
            let mut packet = Packet::new(from, tcp.peer, ecn, Body::Tcp(segment));
            packet.is_servers = tcp.is_server;
            let leaving = tcp
                .followed
                .iter()
                .find(|followed| !followed.has_come && segment.message == Some(followed.message));
            if let Some(followed) = leaving {
                // Another one leaves if it has to be sent again.
                let journey = *cx.journeys.get_mut(followed.journey);
                packet.journey = Some(cx.journeys.insert(journey));
                cx.end_stage(packet.journey, Stage::Transport);
            }
            self.transmit(packet, cx);
        }
    }

    /// Sets the timer of a connection, unless an earlier one is set.
    fn set_timer(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        let Some(tcp) = self.tcp(socket).filter(|tcp| !tcp.is_due) else { return };
        let Some(due) = tcp.connection.poll_timeout() else { return };
        let at = due.saturating_mul(PS_OF_NS).max(cx.now);
        if tcp.timer <= at {
            return;
        }
        tcp.timer = at;
        cx.send_at(at, Event::SocketTimer { socket });
    }

    /// A timer of a connection is due: the kernel gets work.
    pub(super) fn socket_timer_due(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        let now = cx.now;
        let Some(tcp) = self.tcp(socket).filter(|tcp| tcp.timer == now) else { return };
        tcp.timer = u64::MAX;
        // The time-out has moved since the timer was set.
        if tcp.connection.poll_timeout().is_none_or(|due| due.saturating_mul(PS_OF_NS) > now) {
            return self.set_timer(socket, cx);
        }
        tcp.is_due = true;
        let core = cx.shared.server.nic.interrupt_core;
        let state: &mut Core = &mut self.cores[usize::from(core)];
        state.timers.push_back(socket);
        if state.kernel.is_none() {
            self.begin_kernel_work(core, cx);
        }
    }

    /// The kernel handles the timer of a connection.
    pub(super) fn socket_timer(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        let now = cx.nanos();
        let Some(tcp) = self.tcp(socket) else { return };
        tcp.is_due = false;
        tcp.connection.handle_timeout(now, &cx.shared.tcp);
        self.go_on_with(socket, cx);
    }

    pub(super) fn connect(
        &mut self,
        thread: ThreadId,
        host: HostId,
        listener: SocketId,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        let Some(socket) = self.threads[usize::from(thread)].opening else {
            let peer = Endpoint { host, port: listener | LISTENING };
            let first = self.first_sequence(cx);
            let connection = Connection::connect(first, &cx.shared.tcp);
            let mut tcp = Tcp::new(connection, peer, None);
            tcp.writer = Some(thread);
            let socket = self.open_socket(Kind::Tcp(tcp));
            self.threads[usize::from(thread)].opening = Some(socket);
            self.sleep(thread);
            self.go_on_with(socket, cx);
            return None;
        };
        let is_open = self.tcp(socket).is_some_and(|tcp| tcp.connection.is_connected());
        self.threads[usize::from(thread)].opening = None;
        match is_open {
            true => Some(Return::Socket(socket)),
            false => {
                self.free(socket, cx);
                Some(Return::Closed)
            }
        }
    }

    pub(super) fn accept(
        &mut self,
        thread: ThreadId,
        listener: SocketId,
        wait: Wait,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        let Kind::Listener(state) = &mut self.sockets[listener as usize].kind else {
            return Some(Return::Closed);
        };
        match state.waiting.pop_front() {
            Some(socket) => Some(Return::Socket(socket)),
            None => self.wait_to_read(thread, listener, wait, cx),
        }
    }

    /// Writes a message, as far as there is room; goes on when there is more.
    pub(super) fn send(
        &mut self,
        thread: ThreadId,
        socket: SocketId,
        bytes: u32,
        message: u64,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        let written = self.threads[usize::from(thread)].written;
        let Some(tcp) = self.tcp(socket).filter(|tcp| !tcp.connection.is_closed()) else {
            self.threads[usize::from(thread)].written = 0;
            return Some(Return::Closed);
        };
        let part = tcp.connection.write(bytes - written, message, &cx.shared.tcp);
        if written == 0
            && let Some(journey) = self.leave_program(thread, cx)
        {
            let tcp = self.tcp(socket).expect("it was there");
            tcp.followed.push(Followed { message, journey, has_come: false });
        }
        let is_all = written + part == bytes;
        if !is_all {
            self.tcp(socket).expect("it was there").writer = Some(thread);
            self.sleep(thread);
        }
        self.threads[usize::from(thread)].written = if is_all { 0 } else { written + part };
        self.copy(part, !cx.shared.server.nic.zero_copy, cx);
        self.go_on_with(socket, cx);
        is_all.then_some(Return::Done)
    }

    /// Reads bytes of a connection; `None`: there are none.
    pub(super) fn read(
        &mut self,
        socket: SocketId,
        most: u32,
        journey: &mut Option<JourneyId>,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        let tcp = self.tcp(socket).expect("checked by the caller");
        let from = (tcp.peer.host, tcp.peer.port);
        let bytes = tcp.connection.read(most, &cx.shared.tcp);
        let message = tcp.connection.next_message();
        let followed =
            tcp.followed.take(|followed| followed.has_come && Some(followed.message) == message);
        *journey = followed.map(|followed| followed.journey);
        if bytes == 0 && message.is_none() {
            return tcp.has_ended().then_some(Return::Closed);
        }
        self.go_on_with(socket, cx);
        Some(Return::Received { bytes, message, from })
    }

    pub(super) fn close(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        let Some(tcp) = self.tcp(socket) else { return };
        tcp.is_closed = true;
        tcp.connection.close();
        for epoll in &mut self.epolls {
            epoll.ready.retain(|ready| *ready != socket);
        }
        self.sockets[socket as usize].watched_by = 0;
        self.go_on_with(socket, cx);
    }

    /// Makes the number of a socket free.
    fn free(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        if let Some(tcp) = self.tcp(socket) {
            while let Some(followed) = tcp.followed.pop() {
                cx.forget(Some(followed.journey));
            }
        }
        self.sockets[socket as usize] = Socket::new(Kind::Closed);
        self.free_sockets.push(socket);
    }
}
