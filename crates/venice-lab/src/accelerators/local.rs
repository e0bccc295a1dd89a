//! The same accelerators in this program: what remote ones are compared with.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use venice_accel::mailbox::{
    EmulatedAccelerator, EmulatedModel, MailboxDevice, PrivateMemory, Shape, Task,
};
use venice_ports::monotonic_ns;

use super::report::RunReport;
use super::work::{Arrays, executable};

/// Runs all tasks on `count` accelerators in threads of this process, through mailboxes in their own
/// memory.
///
/// # Errors
/// When a task fails.
pub(super) fn run(model: &EmulatedModel, count: u32, arrays: &mut Arrays) -> Result<RunReport> {
    let (inputs, outputs) = arrays.tasks();
    let outputs: Vec<_> = outputs.into_iter().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let late = std::thread::scope(|scope| {
        let one = || scope.spawn(|| serve(model, &inputs, &outputs, &next));
        let threads: Vec<_> = (0..count).map(|_| one()).collect();
        let joined = threads.into_iter().map(|it| it.join().expect("no thread panics"));
        joined.sum::<Result<u64>>()
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let (checked, wrong) = arrays.check();
    Ok(RunReport { seconds, late, checked, wrong })
}

/// Runs tasks on one accelerator until none is left; returns how many were late.
fn serve(
    model: &EmulatedModel,
    inputs: &[&[u8]],
    outputs: &[Mutex<&mut [u8]>],
    next: &AtomicUsize,
) -> Result<u64> {
    let longest = inputs.iter().map(|input| input.len() as u64).max().unwrap_or(0);
    let buffer_bytes = longest.next_multiple_of(4096).max(4096);
    let shape = Shape {
        request_bytes: 4096,
        input_bytes: buffer_bytes,
        return_bytes: buffer_bytes,
        ..Shape::default()
    };
    let memory = PrivateMemory::new(shape.region_bytes() as usize);
    let accelerator = Box::new(EmulatedAccelerator::new(model.clone()));
    let mut device =
        MailboxDevice::new(memory, shape, accelerator, 1).map_err(anyhow::Error::msg)?;
    let mut free: Vec<u32> = (0..shape.mailboxes).collect();
    let mut in_flight = VecDeque::new();
    loop {
        while let Some(mailbox) = free.pop() {
            let task = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.get(task) else { break };
            let len = input.len() as u64;
            let request = Task { executable: executable(), input_bytes: len, output_bytes: len };
            if !device.start(mailbox, &request, input)? {
                bail!("a task of {len} bytes does not fit its mailbox");
            }
            device.look(monotonic_ns());
            in_flight.push_back((mailbox, task));
        }
        let Some((mailbox, task)) = in_flight.pop_front() else { return Ok(device.counts().late) };
        let completion = loop {
            device.compute(monotonic_ns);
            let now_ns = monotonic_ns();
            if let Some(completion) = device.flag(now_ns) {
                break completion;
            }
            let due_ns = device.poll_timeout().unwrap_or(now_ns);
            sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        };
        // The next one is computed while the output is read, as by a host's thread.
        completion.result.outcome?;
        let mut output = outputs[task].lock().expect("no thread panics");
        if !device.read_output(mailbox, &mut output) {
            bail!("an output outside its mailbox");
        }
        free.push(mailbox);
    }
}
