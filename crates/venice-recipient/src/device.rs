//! What device is wished for, and how it is asked for.

use std::time::Instant;

use venice_control::client::{Access, MonitorClient};
use venice_control::{DevicePlan, DeviceRequest, Grant, ResourceKind};
use venice_wire::ByteSize;

use crate::error::RecipientError;
use crate::loan::{drawn, runtime, who_borrows};
use crate::waiting::{InLine, Told, Waiting, ask_in_line};

/// What device is wanted.
#[derive(Clone, Debug)]
pub struct DeviceWish {
    /// An accelerator, a network card, or storage.
    pub kind: ResourceKind,
    /// How much storage, rounded up to whole MiB; how large an accelerator is to be at least.
    pub bytes: u64,
    /// What it has to be able to do, all of it.
    pub capabilities: Vec<String>,
    /// The donors to ask; empty: any.
    pub donors: Vec<String>,
    /// How it waits where there is none.
    pub waiting: Waiting,
    /// What for, for the tables.
    pub purpose: String,
}

impl DeviceWish {
    fn request(&self) -> Result<DeviceRequest, RecipientError> {
        Ok(DeviceRequest {
            client_id: u128::from(drawn()?) << 64 | u128::from(drawn()?),
            recipient: who_borrows(),
            kind: self.kind,
            bytes: ByteSize(self.bytes),
            capabilities: self.capabilities.clone(),
            donors: self.donors.clone(),
            purpose: self.purpose.clone(),
            queueing: self.waiting.queueing(),
        })
    }
}

/// Which device [`Held::device`](crate::Held::device) would get at this moment, and why no other.
/// Nothing is granted.
///
/// # Errors
/// [`RecipientError`]: nobody answers, or what is wished for makes no sense.
pub fn plan_device(access: &Access, wish: &DeviceWish) -> Result<DevicePlan, RecipientError> {
    let request = wish.request()?;
    runtime()?
        .block_on(async { Ok(MonitorClient::connect(access).await?.plan_device(request).await?) })
}

/// A grant of such a device, and a moment before it was asked for.
pub(crate) fn ask_for_device(
    access: &Access,
    wish: &DeviceWish,
    told: &mut Told<'_>,
) -> Result<(Vec<Grant>, Instant), RecipientError> {
    let request = wish.request()?;
    let asked = Instant::now();
    let granted = runtime()?.block_on(async {
        let mut client = MonitorClient::connect(access).await?;
        match wish.waiting.at_most.is_zero() {
            true => Ok(vec![client.request_device(request).await?]),
            false => ask_in_line(&mut client, InLine::Device(request), told).await,
        }
    });
    Ok((granted?, asked))
}
