//! Quotas and their use.

use super::rows::same_fields;
use crate::proto;
use venice_rack::quota::{Limit, Limits};
use venice_rack::rows::{QuotaRow, QuotaTable};

pub(crate) fn limits_in(request: &proto::SetQuotaRequest) -> Limits {
    let of = |limit: Option<proto::QuotaLimit>| {
        limit.map(|limit| limit.at_most.map_or(Limit::Unlimited, Limit::AtMost))
    };
    match request.limits {
        None => Limits::of_memory(request.bytes),
        Some(limits) => Limits {
            memory_bytes: of(limits.memory_bytes),
            accelerators: of(limits.accelerators),
            nics: of(limits.nics),
            storage_bytes: of(limits.storage_bytes),
        },
    }
}

pub(crate) fn limits_out(limits: Limits) -> proto::QuotaLimits {
    let of =
        |limit: Option<Limit>| limit.map(|limit| proto::QuotaLimit { at_most: limit.at_most() });
    proto::QuotaLimits {
        memory_bytes: of(limits.memory_bytes),
        accelerators: of(limits.accelerators),
        nics: of(limits.nics),
        storage_bytes: of(limits.storage_bytes),
    }
}

pub(crate) fn quota_table_out(table: QuotaTable) -> proto::ListQuotasResponse {
    proto::ListQuotasResponse {
        default_bytes: table.default_bytes,
        users: table.users.into_iter().map(row_out).collect(),
        default_accelerators: table.default_accelerators,
        default_nics: table.default_nics,
        default_storage_bytes: table.default_storage_bytes,
    }
}

pub(crate) fn quota_table_in(table: proto::ListQuotasResponse) -> QuotaTable {
    QuotaTable {
        default_bytes: table.default_bytes,
        default_accelerators: table.default_accelerators,
        default_nics: table.default_nics,
        default_storage_bytes: table.default_storage_bytes,
        users: table.users.into_iter().map(row_in).collect(),
    }
}

same_fields!(
    row_out,
    row_in,
    QuotaRow {
        user,
        used_bytes,
        quota_bytes,
        is_own,
        used_accelerators,
        quota_accelerators,
        used_nics,
        quota_nics,
        used_storage_bytes,
        quota_storage_bytes,
    }
);
