//! Threads: change from one to another, wake-ups, time slices, timers.

use std::io::{Read, Write};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::thread::{current_timer_slack, sched_yield, set_current_timer_slack};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use venice_measure::{cpus, interrupt};

use super::noise;
use super::raw::Raws;
use super::sample::{Cost, Effort};

/// Round trips of a sample.
const TURNS: usize = 16;
/// A processor without work sleeps after this time, surely.
const QUIET: Duration = Duration::from_micros(300);
/// A sleep of which the excess is measured.
const NAP: Duration = Duration::from_micros(300);
/// Time between two timers that interrupt a thread.
const TIMER_NS: i64 = 200_000;
/// A run of another thread is longer; a tick is shorter.
const LEAST_SLICE_NS: u64 = 200_000;

/// Measures all of them, on the first of the processors; what needs a second one on that.
pub(super) fn measure(effort: &Effort, allowed: &[usize], raws: &mut Raws) -> Result<()> {
    raws.note("turn", turns(effort, allowed[0]))?;
    raws.note("write-wakes", waking_writes(effort, allowed[0]))?;
    match allowed {
        [first, second, ..] => raws.note("other-core", other_core(effort, *first, *second))?,
        _ => raws.leave_out(&["other-core"], "needs two processors: allow another one (taskset)"),
    }
    raws.note("nap", naps(effort, None))?;
    raws.note("nap-exact", naps(effort, NonZeroU64::new(1)))?;
    raws.note("timer", timers(effort))?;
    raws.note("slice", slices(effort, allowed[0]))
}

fn pipe() -> Result<(std::fs::File, std::fs::File)> {
    let (reader, writer): (OwnedFd, OwnedFd) = rustix::pipe::pipe().context("pipe(2)")?;
    Ok((reader.into(), writer.into()))
}

/// Two threads on one processor wake each other in turn. Returns the time of one way.
fn turns(effort: &Effort, cpu: usize) -> Result<Cost> {
    let ((mut from_far, mut to_near), (mut from_near, mut to_far)) = (pipe()?, pipe()?);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Its end is the end of its pipe.
            if cpus::pin_to(cpu).is_ok() {
                let mut byte = [0];
                while from_near.read_exact(&mut byte).is_ok() && to_near.write_all(&byte).is_ok() {}
            }
        });
        let trips = effort.repeat(TURNS, || {
            to_far.write_all(&[0]).context("write(2)")?;
            from_far.read_exact(&mut [0]).context("read(2)")
        });
        drop(to_far);
        Ok(trips? * 0.5)
    })
}

/// Writes that wake a thread of the same processor, which runs only later.
fn waking_writes(effort: &Effort, cpu: usize) -> Result<Cost> {
    let (mut reader, mut writer) = pipe()?;
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A batch thread never takes the processor from the one that wakes it (sched(7)).
            if cpus::pin_to(cpu).and_then(|()| become_batch()).is_ok() {
                loop {
                    reads.fetch_add(1, Ordering::Release);
                    if reader.read_exact(&mut [0]).is_err() {
                        break;
                    }
                }
            }
            reads.store(u64::MAX, Ordering::Release);
        });
        let mut writes = 0;
        let mut samples = Vec::new();
        while samples.len() < effort.samples {
            interrupt::check()?;
            let start = Instant::now();
            while reads.load(Ordering::Acquire) <= writes {
                sched_yield();
                if start.elapsed() > Duration::from_secs(5) {
                    bail!("a thread does not run within 5 s");
                }
            }
            if reads.load(Ordering::Acquire) == u64::MAX {
                bail!("a thread cannot be made one of SCHED_BATCH");
            }
            // It has its turn once more, to get from the counter to its sleep.
            sched_yield();
            let before = Instant::now();
            writer.write_all(&[0]).context("write(2)")?;
            samples.push((before.elapsed().as_nanos() as f64 - effort.clock_ns).max(0.0));
            writes += 1;
        }
        drop(writer);
        Cost::of(samples)
    })
}

fn become_batch() -> Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter lives through the call; 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const none) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("SCHED_BATCH") }
}

/// Wakes a thread of a processor that sleeps. Returns the time from the write to the end of the read.
fn other_core(effort: &Effort, near: usize, far: usize) -> Result<Cost> {
    let (mut reader, mut writer) = pipe()?;
    let (base, woken) = (Instant::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            cpus::pin_to(far)?;
            while reader.read_exact(&mut [0]).is_ok() {
                woken.store(base.elapsed().as_nanos() as u64, Ordering::Release);
            }
            Ok(())
        });
        let one = || -> Result<f64> {
            interrupt::check()?;
            spin_for(QUIET);
            woken.store(0, Ordering::Release);
            let before = base.elapsed().as_nanos() as u64;
            writer.write_all(&[0]).context("write(2)")?;
            loop {
                match woken.load(Ordering::Acquire) {
                    0 if base.elapsed().as_secs() > 600 => bail!("a thread does not wake"),
                    0 => std::hint::spin_loop(),
                    at => return Ok(at.saturating_sub(before) as f64 - effort.clock_ns),
                }
            }
        };
        cpus::pin_to(near)?;
        let samples: Result<Vec<f64>> = std::iter::repeat_with(one).take(effort.samples).collect();
        drop(writer);
        sleeper.join().unwrap_or_else(|_| bail!("a measuring thread panicked"))?;
        Cost::of(samples?)
    })
}

fn spin_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Returns the excess of short sleeps, with a slack of its own or that of the thread.
fn naps(effort: &Effort, slack: Option<NonZeroU64>) -> Result<Cost> {
    let usual = current_timer_slack().context("PR_GET_TIMERSLACK")?;
    if slack.is_some() {
        set_current_timer_slack(slack).context("PR_SET_TIMERSLACK")?;
    }
    let naps = effort.repeat(1, || {
        std::thread::sleep(NAP);
        Ok(())
    });
    set_current_timer_slack(NonZeroU64::new(usual)).context("PR_SET_TIMERSLACK")?;
    Ok(naps? - Cost::exact(NAP.as_nanos() as f64))
}

/// Timers that expire while a thread runs, and for which nobody waits: the time that it loses.
fn timers(effort: &Effort) -> Result<Cost> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)
        .context("timerfd_create(2)")?;
    let time = Timespec { tv_sec: 0, tv_nsec: TIMER_NS };
    let spec = Itimerspec { it_interval: time, it_value: time };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &spec).context("timerfd_settime(2)")?;
    let watched = Duration::from_nanos(TIMER_NS as u64 * effort.samples as u64);
    let gaps = noise::watch(watched)?.gaps;
    // Ticks and daemons are a small part of them.
    Cost::of(gaps.iter().map(|gap| gap.ns as f64).collect())
}

/// Two threads that never sleep share a processor: the runs of each.
fn slices(effort: &Effort, cpu: usize) -> Result<Cost> {
    let watched = Duration::from_millis(2 * effort.samples as u64);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            cpus::pin_to(cpu)?;
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            Ok(())
        });
        let gaps = noise::watch(watched);
        is_over.store(true, Ordering::Relaxed);
        other.join().unwrap_or_else(|_| bail!("a measuring thread panicked"))?;
        let long = gaps?.gaps.into_iter().map(|gap| gap.ns).filter(|ns| *ns > LEAST_SLICE_NS);
        Cost::of(long.map(|ns| ns as f64).collect()).context("no other thread took the processor")
    })
}
