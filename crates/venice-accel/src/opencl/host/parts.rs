//! Parts of the device, which recipients use as devices of their own.

use std::ptr::null_mut;

use opencl_sys::{CL_INVALID_DEVICE, CL_INVALID_VALUE, cl_device_id, cl_uint};
use venice_service::{ConnectionId, Status};

use super::execute::done;
use super::objects::{Kind, Owned};
use super::{OpenCl, describe};
use crate::opencl::library::{Library, call};
use crate::opencl::wire::{PartInfo, PartitionRequest, PartitionResult, decode, encode};

impl OpenCl {
    /// Divides the device, or a part of it.
    pub(super) fn partition(
        &mut self,
        connection: ConnectionId,
        payload: &[u8],
    ) -> (Status, Vec<u8>) {
        let Ok(request) = decode::<PartitionRequest>(payload) else {
            return (Status::MALFORMED, Vec::new());
        };
        let result = match self.make_parts(connection, &request) {
            Ok(parts) => PartitionResult { status: 0, parts },
            Err(status) => PartitionResult { status, parts: Vec::new() },
        };
        (Status::OK, encode(&result))
    }

    fn make_parts(
        &mut self,
        connection: ConnectionId,
        request: &PartitionRequest,
    ) -> Result<Vec<PartInfo>, i32> {
        let library = self.donor.library;
        let state = self.connections.get_mut(&connection).ok_or(CL_INVALID_DEVICE)?;
        let device = match request.part {
            0 => self.donor.device,
            part => state.objects.get(part, Kind::Part)?,
        };
        let parts = divide(library, device, request.properties.clone(), request.ids.len())?;
        let mut told = Vec::new();
        for (id, part) in request.ids.iter().zip(parts) {
            told.push(describe::part(library, part.raw()));
            state.objects.add(*id, Kind::Part, Ok(part))?;
        }
        Ok(told)
    }
}

/// Makes at most so many parts.
fn divide(
    library: &'static Library,
    device: cl_device_id,
    mut properties: Vec<u64>,
    most: usize,
) -> Result<Vec<Owned>, i32> {
    // Drivers look for the 0 that ends a list of counts, and for the one that ends the properties.
    properties.extend([0; 2]);
    let properties = properties.as_ptr().cast();
    let mut count: cl_uint = 0;
    let null = null_mut();
    done(call!(library, clCreateSubDevices(device, properties, 0, null, &raw mut count)))?;
    if count as usize > most {
        return Err(CL_INVALID_VALUE);
    }
    let mut parts: Vec<cl_device_id> = vec![null_mut(); count as usize];
    let first = parts.as_mut_ptr();
    done(call!(library, clCreateSubDevices(device, properties, count, first, null_mut())))?;
    Ok(parts.into_iter().map(|raw| Owned::new(library, Kind::Part, raw)).collect())
}
