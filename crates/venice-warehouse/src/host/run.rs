//! Cores at work: the kernel first, then threads in turn.

use super::core::KernelWork;
use super::thread::{Return, State, ThreadId};
use super::{Cx, Host};
use crate::application::Environment;
use crate::packet::Body;
use crate::part::Event;

impl Host {
    /// Returns the kernel's next work on a core.
    fn next_kernel_work(&self, core: u16, cx: &Cx<'_, '_>) -> Option<KernelWork> {
        let state = &self.cores[usize::from(core)];
        if let Some(socket) = state.timers.front() {
            return Some(KernelWork::Timer(*socket));
        }
        let is_here = cx.shared.server.nic.interrupt_core == core && self.nic.is_polled;
        (is_here && state.deferred.is_none() && !self.nic.received.is_empty())
            .then_some(KernelWork::Packet)
    }

    /// Begins the kernel's next work on a core that does none; `false`: there is none.
    pub(super) fn begin_kernel_work(&mut self, core: u16, cx: &mut Cx<'_, '_>) -> bool {
        let Some(work) = self.next_kernel_work(core, cx) else { return false };
        let is_idle = self.cores[usize::from(core)].thread.is_none();
        let cost = self.price_of(work, cx);
        let state = &mut self.cores[usize::from(core)];
        let mut begins = cx.now.max(state.free_at);
        if is_idle && state.free_at < cx.now && cx.core != Some(core) {
            begins += cx.shared.server.kernel.values.idle_exit.0;
        }
        if let KernelWork::Timer(_) = work {
            state.timers.pop_front();
        }
        let cost = cost + state.background.delay(begins, cost, cx.host, cx.shared);
        state.kernel = Some(work);
        state.delay_thread(cost);
        cx.send_at(begins + cost, Event::KernelDone { core });
        true
    }

    /// Time of a work of the kernel.
    fn price_of(&mut self, work: KernelWork, cx: &Cx<'_, '_>) -> u64 {
        let kernel = &cx.shared.server.kernel.values;
        let instructions = match work {
            KernelWork::Timer(_) => kernel.timer,
            KernelWork::Packet => {
                let packet = *self.nic.received.front().expect("checked by the caller");
                let receive = match &cx.packets.get(packet).body {
                    Body::Udp(_) => kernel.udp_receive,
                    Body::Tcp(segment) if segment.len > 0 => kernel.tcp_receive,
                    Body::Tcp(_) => kernel.tcp_ack,
                };
                let is_interrupted = std::mem::take(&mut self.nic.is_interrupted);
                receive + if is_interrupted { kernel.interrupt } else { 0 }
            }
        };
        cx.shared.time_of(instructions)
    }

    /// A work of the kernel ends: it takes effect.
    pub(super) fn kernel_done(&mut self, core: u16, cx: &mut Cx<'_, '_>) {
        cx.core = Some(core);
        let state = &mut self.cores[usize::from(core)];
        match state.kernel.take().expect("the event is that of a work") {
            KernelWork::Packet => {
                state.polled += 1;
                let packet = self.nic.received.pop_front().expect("only the kernel takes packets");
                self.deliver(packet, cx);
                self.end_poll(core, cx);
            }
            KernelWork::Timer(socket) => self.socket_timer(socket, cx),
        }
        let state = &mut self.cores[usize::from(core)];
        state.free_at = cx.time();
        state.delay_thread(cx.charged);
        self.go_on(core, cx);
    }

    /// Ends the poll if the ring is empty; lets threads run if the budget is used up.
    fn end_poll(&mut self, core: u16, cx: &Cx<'_, '_>) {
        let state = &mut self.cores[usize::from(core)];
        if self.nic.received.is_empty() {
            self.nic.is_polled = false;
            state.polled = 0;
        } else if state.polled >= cx.shared.server.nic.poll_budget {
            let is_wanted = state.thread.is_some() || !state.queue.is_empty();
            state.deferred = is_wanted.then_some(cx.now);
            state.polled = 0;
        }
    }

    /// Does what comes next on a core whose work has just ended.
    fn go_on(&mut self, core: u16, cx: &mut Cx<'_, '_>) {
        if !self.begin_kernel_work(core, cx) && self.cores[usize::from(core)].thread.is_none() {
            self.run_next(core, cx);
        }
    }

    /// Gives a core without a thread to the next one that waits.
    pub(super) fn run_next(&mut self, core: u16, cx: &mut Cx<'_, '_>) {
        let state = &mut self.cores[usize::from(core)];
        let Some(thread) = state.queue.pop_front() else {
            // Packets wait for no thread any more.
            if state.deferred.take().is_some() {
                self.begin_kernel_work(core, cx);
            }
            return;
        };
        let is_other = state.last != Some(thread);
        let switch = if is_other { cx.shared.server.kernel.values.context_switch } else { 0 };
        (state.thread, state.last) = (Some(thread), Some(thread));
        let State::Ready { left } = self.threads[usize::from(thread)].state else {
            panic!("a thread that waits for a core is ready");
        };
        self.threads[usize::from(thread)].core = core;
        self.cores[usize::from(core)].thread_since = cx.time();
        self.begin_step(core, cx.shared.time_of(switch) + left, cx);
    }

    /// Begins a step of the core's thread.
    fn begin_step(&mut self, core: u16, time: u64, cx: &mut Cx<'_, '_>) {
        let state = &mut self.cores[usize::from(core)];
        let begins = cx.time().max(state.free_at);
        state.step_ends = begins + time + state.background.delay(begins, time, cx.host, cx.shared);
        state.step_event = state.step_event.wrapping_add(1);
        let number = state.step_event;
        cx.send_at(state.step_ends, Event::StepDone { core, number });
    }

    /// The step of a thread ends, unless the kernel has delayed it: its call takes effect.
    pub(super) fn step_done(&mut self, core: u16, number: u32, cx: &mut Cx<'_, '_>) {
        let state = &mut self.cores[usize::from(core)];
        if number != state.step_event {
            return;
        }
        let Some(thread) = state.thread else { return };
        if state.step_ends > cx.now {
            return cx.send_at(state.step_ends, Event::StepDone { core, number });
        }
        cx.core = Some(core);
        let call = self.threads[usize::from(thread)].call;
        match self.perform(thread, call, cx) {
            Some(returned) => self.resume(thread, returned, cx),
            None => self.cores[usize::from(core)].thread = None,
        }
        self.cores[usize::from(core)].free_at = cx.time();
        self.yield_core(core, cx);
        let Some(thread) = self.cores[usize::from(core)].thread else {
            return self.go_on(core, cx);
        };
        let State::Ready { left } = self.threads[usize::from(thread)].state else {
            panic!("a thread that runs is ready");
        };
        self.begin_step(core, left, cx);
        // Packets that have waited for the thread come now.
        self.begin_kernel_work(core, cx);
    }

    /// Asks the program for its next step.
    fn resume(&mut self, thread: ThreadId, returned: Return, cx: &mut Cx<'_, '_>) {
        let state = &mut self.threads[usize::from(thread)];
        let mut environment = Environment {
            host: cx.host,
            now: cx.time(),
            ready: &self.ready,
            random: &mut state.random,
            journey: &mut state.journey,
            journeys: &mut *cx.journeys,
            explains: cx.shared.explains,
            records: &mut *cx.records,
            topology: &cx.shared.topology,
        };
        let step = state.program.resume(returned, &mut environment);
        state.call = step.call;
        let left =
            cx.shared.time_of(step.instructions.saturating_add(cx.shared.price_of(step.call)));
        state.state = State::Ready { left };
    }

    /// Takes the core from a thread that has had its time while others wait.
    fn yield_core(&mut self, core: u16, cx: &mut Cx<'_, '_>) {
        let kernel = &cx.shared.server.kernel.values;
        let state = &mut self.cores[usize::from(core)];
        if state.deferred.is_some_and(|since| cx.now - since >= kernel.time_slice.0) {
            state.deferred = None;
        }
        let Some(thread) = state.thread else { return };
        let ran = cx.time().saturating_sub(state.thread_since);
        if ran >= kernel.time_slice.0 && !state.queue.is_empty() {
            state.thread = None;
            state.queue.push_back(thread);
        }
    }

    /// Makes a sleeping thread ready, on its last core or on an idle one.
    pub(super) fn wake(&mut self, thread: ThreadId, cx: &mut Cx<'_, '_>) {
        let kernel = &cx.shared.server.kernel.values;
        cx.charge(kernel.wake_up);
        let state = &mut self.threads[usize::from(thread)];
        assert_eq!(state.state, State::Asleep, "only a thread that sleeps is woken");
        // Its call is tried again when it runs.
        state.state = State::Ready { left: cx.shared.time_of(kernel.system_call) };
        let last = state.core;
        let idle = |core: &u16| self.cores[usize::from(*core)].is_idle() && cx.core != Some(*core);
        let core = Some(last).filter(idle).or_else(|| (0..self.cores.len() as u16).find(idle));
        let Some(core) = core else { return self.queue_thread(last, thread, cx) };
        self.cores[usize::from(core)].queue.push_back(thread);
        let state = &mut self.cores[usize::from(core)];
        state.free_at = state.free_at.max(cx.time() + kernel.idle_exit.0);
        self.run_next(core, cx);
    }

    /// Puts a thread into the queue of a busy core, and takes the core for it if the running thread has
    /// had it for long.
    fn queue_thread(&mut self, core: u16, thread: ThreadId, cx: &mut Cx<'_, '_>) {
        let granularity = cx.shared.server.kernel.values.wake_up_granularity.0;
        let is_own = cx.core == Some(core);
        let state = &mut self.cores[usize::from(core)];
        let has_run = cx.time().saturating_sub(state.thread_since);
        let begins = cx.now.max(state.free_at);
        let is_running = state.kernel.is_none() && state.step_ends > begins;
        match state.thread.filter(|_| is_running && has_run >= granularity) {
            Some(running) => {
                let left = state.step_ends - begins;
                self.threads[usize::from(running)].state = State::Ready { left };
                state.queue.push_front(running);
                state.queue.push_front(thread);
                state.thread = None;
                if !is_own {
                    self.run_next(core, cx);
                }
            }
            None => state.queue.push_back(thread),
        }
    }
}
