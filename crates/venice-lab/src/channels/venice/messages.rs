//! QPair messages through rings: round trips, and one way without end.

use anyhow::{Result, bail};
use venice_fabric::{CreditMode, EndConfig, LinkModel, MAX_MESSAGE_BYTES, QPairConfig, QPairKind};
use venice_memory::donor::SharedGrants;
use venice_ports::monotonic_ns;

use super::frames::{Driver, pump_until};
use super::half;
use super::rings::RingBed;
use super::talk::{Role, Talker};
use crate::channels::measure::{Effort, Ends, on_cpu};
use crate::channels::raw::Waiting;
use crate::channels::series::{Medium, Operation, Point, Series, System};

/// Settings of a QPair.
#[derive(Debug, Clone, Copy)]
pub(in crate::channels) struct Setting {
    pub(in crate::channels) credit: CreditMode,
    pub(in crate::channels) end: EndConfig,
}

impl Setting {
    /// Settings for messages of `len` bytes, the default if that suffices.
    pub(in crate::channels) fn roomy(len: usize) -> Self {
        let mut end = EndConfig::default();
        let bytes = (4 * len as u64).clamp(256 << 10, 8 << 20) as u32;
        (end.send_bytes, end.recv_bytes) = (bytes, bytes);
        Self { credit: CreditMode::default(), end }
    }

    fn config(&self) -> QPairConfig {
        QPairConfig { kind: QPairKind::Messages, credit: self.credit, end: self.end }
    }
}

/// Measures messages by size, up to the largest possible.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn messages(
    effort: &Effort,
    ends: Ends,
    medium: Medium,
    model: Option<LinkModel>,
    sizes: &[u64],
    mut done: impl FnMut(),
) -> Result<Series> {
    let mut series = Series::new(System::Venice, medium, Operation::Message, "");
    if ends.near_cpu == ends.far_cpu {
        return Ok(series.absent("needs two processors"));
    }
    for &size_bytes in sizes {
        let len = size_bytes as usize;
        if len > MAX_MESSAGE_BYTES {
            series.absent = Some("messages have at most 1 MiB".to_owned());
            continue;
        }
        let setting = Setting::roomy(len);
        let latency = there_and_back(effort, ends, model, setting, len)?;
        let bandwidth = one_way(effort, ends, model, setting, len)?;
        series.points.push(Point {
            size_bytes,
            latency: Some(half(latency)),
            bandwidth_bytes_per_s: Some(bandwidth),
        });
        done();
    }
    Ok(series)
}

fn there_and_back(
    effort: &Effort,
    ends: Ends,
    model: Option<LinkModel>,
    setting: Setting,
    len: usize,
) -> Result<crate::channels::series::Latency> {
    on_cpu(ends.near_cpu, || {
        let far = Talker::new(Role::Echo, setting.end, len);
        let mut bed = RingBed::lay(ends, model, far, Waiting::Spin)?;
        let mut near = Talker::new(Role::Idle, setting.end, len);
        bed.connect(&mut near, setting.config())?;
        let driver = bed.driver();
        effort.latency(|| {
            if !near.send(monotonic_ns(), driver.initiator().qpairs_mut(), len)? {
                bail!("an idle QPair takes no message");
            }
            pump_until(driver, Waiting::Spin, |driver, _| {
                near.receive(driver.initiator().qpairs_mut())
            })
            .map(drop)
        })
    })
}

/// Measures the bytes per second that arrive.
///
/// # Errors
/// When an end fails, and on an interrupt.
fn one_way(
    effort: &Effort,
    ends: Ends,
    model: Option<LinkModel>,
    setting: Setting,
    len: usize,
) -> Result<f64> {
    on_cpu(ends.near_cpu, || {
        let far = Talker::new(Role::Sink, setting.end, len);
        stream(effort, ends, model, setting, far, Role::Source(len), len)
    })
}

/// Measures the bytes per second that arrive at the far end while as many go the other way.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn both_ways(
    effort: &Effort,
    ends: Ends,
    model: Option<LinkModel>,
    setting: Setting,
    len: usize,
) -> Result<f64> {
    on_cpu(ends.near_cpu, || {
        let far = Talker::new(Role::Exchange(len), setting.end, len);
        stream(effort, ends, model, setting, far, Role::Exchange(len), len)
    })
}

fn stream(
    effort: &Effort,
    ends: Ends,
    model: Option<LinkModel>,
    setting: Setting,
    far: Talker,
    near: Role,
    len: usize,
) -> Result<f64> {
    let mut bed = RingBed::lay(ends, model, far, Waiting::Spin)?;
    let mut near = Talker::new(near, setting.end, len);
    bed.connect(&mut near, setting.config())?;
    let mut nothing = SharedGrants::default();
    let mut before = bed.arrived_bytes();
    effort.bandwidth(|| {
        let driver = bed.driver();
        let now_ns = monotonic_ns();
        near.act(now_ns, driver.initiator().qpairs_mut(), &mut nothing)?;
        Driver::pump(driver, now_ns)?;
        let arrived = bed.arrived_bytes();
        let bytes = arrived - std::mem::replace(&mut before, arrived);
        Ok(bytes)
    })
}
