//! The rows of the tables.

use crate::proto;
use venice_rack::queueing::Standing;
use venice_rack::rows::{
    DevicePlan, DevicePlanRow, ForecastRow, GrantRow, LinkRow, NodeRow, PlacementPlan,
    PlacementRow, QueueRow, ResourceForecast, ResourceRow,
};

/// Rows have the same fields on both sides; some fields are converted themselves.
macro_rules! same_fields {
    (
        $to_proto:ident, $from_proto:ident, $row:ident { $($field:ident),+ $(,)? }
        $(, by ($field_out:ident, $field_in:ident) $converted:tt)?
    ) => {
        same_fields!(@one $to_proto, ($row), (proto::$row), { $($field),+ } $(, $field_out $converted)?);
        same_fields!(@one $from_proto, (proto::$row), ($row), { $($field),+ } $(, $field_in $converted)?);
    };
    (
        @one $name:ident, ($($from:tt)+), ($($to:tt)+), { $($field:ident),+ }
        $(, $convert:ident { $($converted:ident),+ $(,)? })?
    ) => {
        pub(crate) fn $name(row: $($from)+) -> $($to)+ {
            let $($from)+ { $($field,)+ $($($converted),+)? } = row;
            $($to)+ { $($field,)+ $($($converted: $convert($converted)),+)? }
        }
    };
}

pub(super) use same_fields;

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
    ResourceRow {
        node,
        kind,
        address,
        bytes,
        free_bytes,
        slab_bytes,
        capabilities,
        health,
        available,
    }
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
        kind,
        address,
        bytes,
        bandwidth_bps,
        state,
        lease_s,
        age_s,
        purpose,
        priority,
        preempted_in_s,
    }
);
same_fields!(
    standing_out,
    standing_in,
    Standing {
        rank,
        asked_bytes,
        free_bytes,
        waited_ms,
        preempting_bytes,
        is_over_quota,
        device,
        preempting_devices,
    }
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
        kind,
        capabilities,
        bytes,
        copies,
        donors,
        priority,
        waited_s,
        left_s,
        free_bytes,
        backfilled_bytes,
        preempting_bytes,
        free_devices,
        backfilled_devices,
        preempting_devices,
        needs,
    }
);
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
        replayed,
        forged,
        unsealed,
        unknown_key,
        via,
        hops,
        emulated,
        reported_by,
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

pub(crate) fn device_plan_out(plan: DevicePlan) -> proto::PlanDeviceResponse {
    let DevicePlan { wanted, refusal, would_wait, devices } = plan;
    let devices = devices.into_iter().map(device_plan_row_out).collect();
    proto::PlanDeviceResponse { wanted, refusal, would_wait, devices }
}

pub(crate) fn device_plan_in(plan: proto::PlanDeviceResponse) -> DevicePlan {
    let proto::PlanDeviceResponse { wanted, refusal, would_wait, devices } = plan;
    let devices = devices.into_iter().map(device_plan_row_in).collect();
    DevicePlan { wanted, refusal, would_wait, devices }
}

pub(crate) fn plan_out(plan: PlacementPlan) -> proto::PlanMemoryResponse {
    let PlacementPlan { policy, slab_bytes, slabs, copies, refusal, would_wait, nodes } = plan;
    let nodes = nodes.into_iter().map(placement_row_out).collect();
    proto::PlanMemoryResponse { policy, slab_bytes, slabs, copies, refusal, would_wait, nodes }
}

pub(crate) fn plan_in(plan: proto::PlanMemoryResponse) -> PlacementPlan {
    let proto::PlanMemoryResponse { policy, slab_bytes, slabs, copies, refusal, would_wait, nodes } =
        plan;
    let nodes = nodes.into_iter().map(placement_row_in).collect();
    PlacementPlan { policy, slab_bytes, slabs, copies, refusal, would_wait, nodes }
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
    by (resource_out, resource_in) { memory_bytes, accelerators, nics, storage_bytes }
);

fn resource_out(resource: ResourceForecast) -> Option<proto::ResourceForecast> {
    let ResourceForecast { in_use, forecast, persistence } = resource;
    Some(proto::ResourceForecast { in_use, forecast, persistence })
}

fn resource_in(resource: Option<proto::ResourceForecast>) -> ResourceForecast {
    let proto::ResourceForecast { in_use, forecast, persistence } = resource.unwrap_or_default();
    ResourceForecast { in_use, forecast, persistence }
}
