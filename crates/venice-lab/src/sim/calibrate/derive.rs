//! From measured times to the costs of the model: each is a difference of times.

use venice_simkernel::units::Picos;
use venice_warehouse::host::kernel::Kernel;
use venice_warehouse::host::profile::Measured;
use venice_warehouse::traffic::Distribution;

use super::calls::READY;
use super::noise::NoiseFound;
use super::raw::Raws;
use super::sample::Cost;
use super::sockets::{LARGE, SMALL};

/// A cost of the model.
#[derive(Clone, Debug)]
pub(super) struct Derived {
    /// Its key below the kernel.
    pub key: &'static str,
    /// The time, or the reason why there is none.
    pub cost: Result<Cost, String>,
    /// The way to it.
    pub how: &'static str,
}

/// Packets without data of a handshake.
const HANDSHAKE: f64 = 3.0;

type Formula = fn(&Raws) -> Result<Cost, String>;

/// Costs in instructions: key, description, formula.
const COSTS: &[(&str, &str, Formula)] = &[
    ("system-call", "getppid(2)", |raws| raws.get("getppid")),
    (
        "context-switch",
        "one way between two threads of a processor by pipes, less its calls",
        |raws| Ok(raws.get("turn")? - raws.get("write-wakes")? - raws.get("read")?),
    ),
    ("wake-up", "write(2) that wakes a thread, less one that wakes none", wake_up),
    ("udp-receive", "send(2) over loopback, from the packet's time stamp on", |raws| {
        Ok(raws.get("udp-in")? - half_call(raws)?)
    }),
    ("udp-send", "send(2) over loopback up to the stamp, less the call", |raws| {
        Ok(raws.get("udp-out")? - half_call(raws)? - send_call(raws)?)
    }),
    ("tcp-receive", "as udp-receive, of a segment whose acknowledgment is delayed", tcp_receive),
    ("tcp-send", "as udp-send, of a segment", tcp_send),
    (
        "tcp-ack",
        "setsockopt(2) that sends the delayed acknowledgment: the receiver's share",
        |raws| Ok(acknowledgment(raws)? * (1.0 - sending_share(raws)?)),
    ),
    (
        "tcp-send-ack",
        "setsockopt(2) that sends the delayed acknowledgment: the sender's share",
        |raws| Ok(acknowledgment(raws)? * sending_share(raws)?),
    ),
    ("receive-call", "recv(2) of a datagram that waits, less the system call", |raws| {
        Ok(raws.get("udp-recv")? - raws.get("getppid")?)
    }),
    ("send-call", "send(2) with MSG_MORE on TCP, less the system call", send_call),
    ("copy-kilobyte", "recv(2) of 32 KiB beside one of 1 KiB", |raws| {
        let bytes = raws.get("udp-recv-32k")? - raws.get("udp-recv-1k")?;
        Ok(bytes * (1000.0 / (LARGE - SMALL) as f64))
    }),
    ("epoll-wait", "epoll_wait(2) with one ready socket, less that and the system call", |raws| {
        Ok(raws.get("epoll-wait-1")? - ready(raws)? - raws.get("getppid")?)
    }),
    ("epoll-ready", "epoll_wait(2) with 33 ready sockets beside one with one", ready),
    ("epoll-control", "epoll_ctl(2), adding and removing a socket in turn", |raws| {
        Ok(raws.get("epoll-ctl")? - raws.get("getppid")?)
    }),
    ("connect", "connect(2) over loopback, less three packets without data", |raws| {
        let packets = acknowledgment(raws)? * HANDSHAKE;
        Ok(raws.get("connect")? - packets - raws.get("getppid")?)
    }),
    ("accept", "accept4(2) of a connection that waits, less the system call", |raws| {
        Ok(raws.get("accept4")? - raws.get("getppid")?)
    }),
    ("file-control", "fcntl(2) that sets O_NONBLOCK, less the system call", |raws| {
        Ok(raws.get("fcntl")? - raws.get("getppid")?)
    }),
    ("futex", "futex(2), a wait and a wake that return at once, less the system call", |raws| {
        Ok((raws.get("futex-wait")? + raws.get("futex-wake")?) * 0.5 - raws.get("getppid")?)
    }),
    ("timer", "time that a running thread loses to a timer of timerfd_create(2)", |raws| {
        raws.get("timer")
    }),
];

/// Settings that are times.
const TIMES: &[(&str, &str, Formula)] = &[
    ("idle-exit", "write(2) until another, sleeping processor's read(2) ends, less both", |raws| {
        Ok(raws.get("other-core")? - raws.get("write-wakes")? - raws.get("read")?)
    }),
    ("timer-slack", "excess of short sleeps, less that with a slack of 1 ns", |raws| {
        Ok(raws.get("nap")? - raws.get("nap-exact")?)
    }),
    ("time-slice", "runs of two threads that share a processor", |raws| raws.get("slice")),
];

/// Keys that no program can measure, with the reason.
const NEVER: [(&str, &str); 2] = [
    ("interrupt", "loopback has no network card"),
    ("wake-up-granularity", "the kernel has no such constant since Linux 6.6"),
];

fn half_call(raws: &Raws) -> Result<Cost, String> {
    Ok(raws.get("getppid")? * 0.5)
}

fn wake_up(raws: &Raws) -> Result<Cost, String> {
    Ok(raws.get("write-wakes")? - raws.get("write")?)
}

fn send_call(raws: &Raws) -> Result<Cost, String> {
    Ok(raws.get("tcp-more")? - raws.get("getppid")?)
}

fn tcp_send(raws: &Raws) -> Result<Cost, String> {
    Ok(raws.get("tcp-out")? - half_call(raws)? - send_call(raws)?)
}

fn tcp_receive(raws: &Raws) -> Result<Cost, String> {
    Ok(raws.get("tcp-in")? - half_call(raws)?)
}

/// An acknowledgment from one end to the other.
fn acknowledgment(raws: &Raws) -> Result<Cost, String> {
    Ok(raws.get("quickack-sends")? - raws.get("quickack")?)
}

/// The sender's share of a packet: that of a segment with data.
fn sending_share(raws: &Raws) -> Result<f64, String> {
    let (send, receive) = (tcp_send(raws)?.ns, tcp_receive(raws)?.ns);
    if send + receive > 0.0 { Ok(send / (send + receive)) } else { Ok(0.5) }
}

fn ready(raws: &Raws) -> Result<Cost, String> {
    let more = raws.get("epoll-wait-33")? - raws.get("epoll-wait-1")?;
    Ok(more * (1.0 / (READY - 1) as f64))
}

/// Returns all costs.
pub(super) fn derive(raws: &Raws) -> Vec<Derived> {
    let row = |(key, how, formula): &(&'static str, &'static str, Formula)| Derived {
        key,
        cost: formula(raws),
        how,
    };
    COSTS.iter().chain(TIMES).map(row).collect()
}

/// Sets the kernel's costs by the clock in hertz. Returns the keys that were left out, with the reasons.
pub(super) fn set_costs(kernel: &mut Kernel, derived: &[Derived], clock: f64) -> Vec<String> {
    let mut left_out: Vec<String> =
        NEVER.iter().map(|(key, why)| format!("{key}: {why}")).collect();
    for Derived { key, cost, .. } in derived {
        match cost {
            Err(why) => left_out.push(format!("{key}: {why}")),
            Ok(cost) => set(kernel, key, *cost, clock),
        }
    }
    left_out
}

fn set(kernel: &mut Kernel, key: &str, cost: Cost, clock: f64) {
    let time = match key {
        "idle-exit" => &mut kernel.idle_exit,
        "timer-slack" => &mut kernel.timer_slack,
        "time-slice" => &mut kernel.time_slice,
        cost_key => {
            let mut costs = kernel.costs_mut();
            let found = costs.iter_mut().find(|(known, _)| *known == cost_key);
            let (_, slot) = found.expect("a key of the kernel: a test sees to it");
            **slot = instructions(cost.ns, clock) as u32;
            return;
        }
    };
    *time = picos(cost.ns);
}

/// Sets the kernel's noise.
pub(super) fn set_noise(kernel: &mut Kernel, found: &NoiseFound, clock: f64) {
    let scale = |ns: f64| instructions(ns, clock);
    kernel.noise.tick = found.tick;
    kernel.noise.tick_instructions = scale(found.tick_cost.ns) as u32;
    kernel.noise.gap = found.gap_us;
    kernel.noise.instructions = match found.run_ns {
        Distribution::Constant { value } => Distribution::Constant { value: scale(value) },
        Distribution::Exponential { mean } => Distribution::Exponential { mean: scale(mean) },
        Distribution::Pareto { location, scale: width, shape } => {
            Distribution::Pareto { location: scale(location), scale: scale(width), shape }
        }
        Distribution::ExtremeValue { location, scale: width, shape } => {
            Distribution::ExtremeValue { location: scale(location), scale: scale(width), shape }
        }
    };
}

/// Returns the instructions of a time, at one cycle each.
fn instructions(ns: f64, clock: f64) -> f64 {
    (ns * clock / 1e9).round()
}

fn picos(ns: f64) -> Picos {
    // A profile is read by people: a tenth of a nanosecond is fine enough.
    Picos((ns.max(0.0) * 10.0).round() as u64 * Picos::NANO / 10)
}

/// Returns the row of a profile for a cost.
pub(super) fn measured(cost: Cost, how: &str) -> Measured {
    Measured { time: picos(cost.ns), spread: picos(cost.spread), how: how.to_owned() }
}

#[cfg(test)]
mod tests {
    use venice_simkernel::units::Hertz;
    use venice_warehouse::host::config::Server;

    use super::super::noise::{Gap, Watched, analyse};
    use super::*;

    /// Times in which each cost of the model is another number.
    fn raws() -> Raws {
        let mut raws = Raws::default();
        for (name, ns) in [
            ("getppid", 100.0),
            ("write", 300.0),
            ("read", 250.0),
            ("write-wakes", 900.0),
            ("turn", 2650.0),
            ("udp-out", 1250.0),
            ("udp-in", 950.0),
            ("tcp-out", 2250.0),
            ("tcp-in", 1050.0),
            ("tcp-more", 300.0),
            ("quickack", 200.0),
            ("quickack-sends", 1700.0),
            ("udp-recv", 350.0),
            ("udp-recv-1k", 400.0),
            ("udp-recv-32k", 400.0 + 31.0 * 1024.0 / 10.0),
            ("epoll-wait-1", 540.0),
            ("epoll-wait-33", 540.0 + 32.0 * 40.0),
            ("epoll-ctl", 360.0),
            ("connect", 12_600.0),
            ("accept4", 1600.0),
            ("fcntl", 130.0),
            ("futex-wait", 160.0),
            ("futex-wake", 140.0),
            ("timer", 1900.0),
            ("other-core", 31_150.0),
            ("nap", 110_000.0),
            ("nap-exact", 60_000.0),
            ("slice", 2_800_000.0),
        ] {
            raws.note(name, Ok(Cost::exact(ns))).unwrap();
        }
        raws
    }

    #[test]
    fn costs_are_differences() {
        let mut kernel = Kernel::default();
        let left_out = set_costs(&mut kernel, &derive(&raws()), 2e9);
        assert_eq!(left_out.len(), NEVER.len(), "{left_out:?}");
        let interrupt = kernel.interrupt;
        let costs = kernel.costs_mut().map(|(key, cost)| (key, *cost));
        let expected = [
            ("system-call", 200),
            ("context-switch", 3000),
            ("wake-up", 1200),
            ("interrupt", interrupt),
            ("udp-receive", 1800),
            ("tcp-receive", 2000),
            ("tcp-ack", 1000),
            ("udp-send", 2000),
            ("tcp-send", 4000),
            ("tcp-send-ack", 2000),
            ("receive-call", 500),
            ("send-call", 400),
            ("copy-kilobyte", 200),
            ("epoll-wait", 800),
            ("epoll-ready", 80),
            ("epoll-control", 520),
            ("connect", 16_000),
            ("accept", 3000),
            ("file-control", 60),
            ("futex", 100),
            ("timer", 3800),
        ];
        assert_eq!(costs, expected);
        assert_eq!(kernel.idle_exit, Picos(30 * Picos::MICRO));
        assert_eq!(kernel.timer_slack, Picos(50 * Picos::MICRO));
        assert_eq!(kernel.time_slice, Picos(2_800 * Picos::MICRO));
    }

    #[test]
    fn missing_time_leaves_keys_out() {
        let mut raws = raws();
        raws.leave_out(&["tcp-out", "other-core"], "not here");
        let mut kernel = Kernel::linux_3_5_7();
        let left_out = set_costs(&mut kernel, &derive(&raws), 2e9);
        let base = Kernel::linux_3_5_7();
        assert_eq!((kernel.tcp_send, kernel.idle_exit), (base.tcp_send, base.idle_exit));
        for key in ["tcp-send", "tcp-ack", "tcp-send-ack", "idle-exit"] {
            assert!(left_out.contains(&format!("{key}: not here")), "{left_out:?}");
        }
        assert_eq!(left_out.len(), NEVER.len() + 4);
    }

    #[test]
    fn noise_is_in_instructions() {
        let mut kernel = Kernel::default();
        let found = NoiseFound {
            tick: Hertz(250),
            tick_cost: Cost::exact(2000.0),
            gap_us: Distribution::Exponential { mean: 9000.0 },
            run_ns: Distribution::Pareto { location: 1000.0, scale: 500.0, shape: 0.3 },
            runs: 30,
            share: 0.01,
        };
        set_noise(&mut kernel, &found, 3e9);
        assert_eq!(kernel.noise.tick_instructions, 6000);
        assert_eq!(kernel.noise.gap, found.gap_us);
        let expected = Distribution::Pareto { location: 3000.0, scale: 1500.0, shape: 0.3 };
        assert_eq!(kernel.noise.instructions, expected);
    }

    #[test]
    fn noise_suits_slower_servers() {
        for share in 1..15 {
            let gaps = (0..100).map(|at| Gap { at_ns: at * 10_000_000, ns: share * 100_000 });
            let watched = Watched { ns: 1_000_000_000, gaps: gaps.collect() };
            let found = analyse(&watched, Hertz(0)).unwrap();
            assert_eq!(found.runs, 100);
            let mut server = Server { frequency: Hertz(1_500_000_000), ..Server::default() };
            set_noise(&mut server.kernel.values, &found, 3e9);
            assert_eq!(server.check(), Ok(()), "{share} %");
        }
    }
}
