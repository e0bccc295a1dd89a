//! The rows of the tables.

use super::shares::{kind_in, kind_name_in, kind_name_out, kind_out};
use crate::proto;
use std::collections::BTreeMap;
use tonic::Status;
use venice_rack::event::EventRow;
use venice_rack::queueing::Standing;
use venice_rack::rows::{
    AllocationPlan, DevicePlan, DevicePlanRow, ForecastRow, GrantRow, LinkRow, NodeRow,
    PlacementPlan, PlacementRow, QueueRow, QueuedWant, ResourceForecast, ResourceRow,
};
use venice_rack::types::ResourceKind;

/// Rows have the same fields on both sides; some fields are converted themselves.
macro_rules! same_fields {
    (
        $to_proto:ident, $from_proto:ident, $row:ident { $($field:ident),+ $(,)? }
        $(, by ($field_out:ident, $field_in:ident) $converted:ident)?
    ) => {
        same_fields!(@one $to_proto, ($row), (proto::$row), { $($field),+ } $(, $field_out $converted)?);
        same_fields!(@back $from_proto, (proto::$row), ($row), { $($field),+ } $(, $field_in $converted)?);
    };
    (
        @one $name:ident, ($($from:tt)+), ($($to:tt)+), { $($field:ident),+ }
        $(, $convert:ident $converted:ident)?
    ) => {
        pub(crate) fn $name(row: $($from)+) -> $($to)+ {
            let $($from)+ { $($field,)+ $($converted)? } = row;
            $($to)+ { $($field,)+ $($converted: $convert($converted))? }
        }
    };
    // A field that is converted may have a value that this release does not know.
    (
        @back $name:ident, ($($from:tt)+), ($($to:tt)+), { $($field:ident),+ },
        $convert:ident $converted:ident
    ) => {
        pub(crate) fn $name(row: $($from)+) -> Result<$($to)+, Status> {
            let $($from)+ { $($field,)+ $converted } = row;
            Ok($($to)+ { $($field,)+ $converted: $convert($converted)? })
        }
    };
    (@back $($rest:tt)+) => {
        same_fields!(@one $($rest)+);
    };
}

same_fields!(
    node_row_out,
    node_row_in,
    NodeRow {
        name,
        node_id,
        pid,
        state,
        lent_bytes,
        free_bytes,
        granted_bytes,
        epoch,
        control_addr,
        udp_addr,
        shm_socket,
        last_heartbeat_ms,
        protection,
        replayed,
        forged,
        unsealed,
        unknown_key,
        xdp_received,
        xdp_sent,
        xdp_lost,
        topology,
        position,
        relay_addr,
        link,
        role,
        pressure,
        available_bytes,
        stall_ratio,
        draining,
        certificate_expires_s,
        refused,
    }
);
same_fields!(
    resource_row_out,
    resource_row_in,
    ResourceRow { node, address, bytes, free_bytes, slab_bytes, capabilities, health, available },
    by (kind_name_out, kind_name_in) kind
);
same_fields!(
    grant_row_out,
    grant_row_in,
    GrantRow {
        id,
        donor,
        donor_epoch,
        owner_user,
        owner_node,
        recipient,
        home,
        hops,
        address,
        bytes,
        bandwidth_bps,
        state,
        lease_s,
        age_s,
        purpose,
        priority,
        preempted_in_s,
        ownership,
        busy_ratio,
        in_bytes,
        out_bytes,
        commands,
    },
    by (kind_name_out, kind_name_in) kind
);
same_fields!(
    standing_out,
    standing_in,
    Standing { rank, waited_ms, is_over_quota },
    by (wants_out, wants_in) wants
);
same_fields!(
    queue_row_out,
    queue_row_in,
    QueueRow {
        id,
        rank,
        owner_user,
        owner_node,
        recipient,
        purpose,
        donors,
        priority,
        waited_s,
        left_s,
        needs,
    },
    by (wants_out, wants_in) wants
);
same_fields!(
    queued_want_out,
    queued_want_in,
    QueuedWant { capabilities, bytes, count, wanted, free, backfilled, preempting },
    by (kind_out, kind_in) kind
);

fn wants_out(wants: Vec<QueuedWant>) -> Vec<proto::QueuedWant> {
    wants.into_iter().map(queued_want_out).collect()
}

fn wants_in(wants: Vec<proto::QueuedWant>) -> Result<Vec<QueuedWant>, Status> {
    wants.into_iter().map(queued_want_in).collect()
}

same_fields!(
    link_row_out,
    link_row_in,
    LinkRow {
        from,
        to,
        port,
        state,
        latency_us,
        loss_ratio,
        bandwidth_mbps,
        bytes_per_s,
        protection,
        via,
        hops,
        emulated,
        reported_by,
    }
);
same_fields!(
    event_row_out,
    event_row_in,
    EventRow {
        number,
        time_ms,
        kind,
        node,
        grant,
        owner_user,
        owner_node,
        resource,
        address,
        bytes,
        recipient,
        purpose,
        by,
        reason,
        detail,
    }
);
same_fields!(
    placement_row_out,
    placement_row_in,
    PlacementRow {
        node,
        slabs,
        free_slabs,
        hops,
        distance_slabs,
        traffic_slabs,
        stall_slabs,
        score_slabs,
        link_left_bps,
        why,
    }
);

same_fields!(
    device_plan_row_out,
    device_plan_row_in,
    DevicePlanRow { node, address, bytes, free_bytes, capabilities, is_chosen, why }
);

pub(crate) fn plan_out(plan: AllocationPlan) -> proto::PlanAllocationResponse {
    let AllocationPlan { refusal, would_wait, memory, devices } = plan;
    let device = |DevicePlan { wanted, devices }| proto::DevicePlan {
        wanted,
        devices: devices.into_iter().map(device_plan_row_out).collect(),
    };
    let (memory, devices) = (memory.map(placement_out), devices.into_iter().map(device).collect());
    proto::PlanAllocationResponse { refusal, would_wait, memory, devices }
}

pub(crate) fn plan_in(plan: proto::PlanAllocationResponse) -> AllocationPlan {
    let proto::PlanAllocationResponse { refusal, would_wait, memory, devices } = plan;
    let device = |proto::DevicePlan { wanted, devices }| DevicePlan {
        wanted,
        devices: devices.into_iter().map(device_plan_row_in).collect(),
    };
    let (memory, devices) = (memory.map(placement_in), devices.into_iter().map(device).collect());
    AllocationPlan { refusal, would_wait, memory, devices }
}

fn placement_out(plan: PlacementPlan) -> proto::PlacementPlan {
    let PlacementPlan { policy, slab_bytes, slabs, copies, nodes } = plan;
    let nodes = nodes.into_iter().map(placement_row_out).collect();
    proto::PlacementPlan { policy, slab_bytes, slabs, copies, nodes }
}

fn placement_in(plan: proto::PlacementPlan) -> PlacementPlan {
    let proto::PlacementPlan { policy, slab_bytes, slabs, copies, nodes } = plan;
    let nodes = nodes.into_iter().map(placement_row_in).collect();
    PlacementPlan { policy, slab_bytes, slabs, copies, nodes }
}

same_fields!(
    forecast_out,
    forecast_in,
    ForecastRow {
        user,
        purpose,
        reserved_bytes,
        windows,
        under_windows,
        persistence_under_windows,
        mean_error_bytes,
        persistence_mean_error_bytes,
    },
    by (resources_out, resources_in) resources
);

type Forecasts = BTreeMap<ResourceKind, ResourceForecast>;

fn resources_out(resources: Forecasts) -> Vec<proto::ResourceForecast> {
    let resource = |(kind, resource)| {
        let ResourceForecast { in_use, forecast, persistence } = resource;
        proto::ResourceForecast { kind: kind_out(kind), in_use, forecast, persistence }
    };
    resources.into_iter().map(resource).collect()
}

fn resources_in(resources: Vec<proto::ResourceForecast>) -> Result<Forecasts, Status> {
    let resource = |proto::ResourceForecast { kind, in_use, forecast, persistence }| {
        Ok((kind_in(kind)?, ResourceForecast { in_use, forecast, persistence }))
    };
    resources.into_iter().map(resource).collect()
}
