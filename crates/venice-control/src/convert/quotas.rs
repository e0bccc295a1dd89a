//! Quotas and their use.

use super::{kind_in, kind_out};
use crate::proto;
use tonic::Status;
use venice_rack::quota::{Limit, Limits};
use venice_rack::rows::{AmountsByKind, QuotaRow, QuotaTable};

pub(crate) fn limits_in(limits: Vec<proto::KindLimit>) -> Result<Limits, Status> {
    let limit = |proto::KindLimit { kind, at_most }| {
        Ok((kind_in(kind)?, at_most.map_or(Limit::Unlimited, Limit::AtMost)))
    };
    limits.into_iter().map(limit).collect()
}

pub(crate) fn limits_out(limits: &Limits) -> Vec<proto::KindLimit> {
    let limit = |(kind, limit): (_, Limit)| proto::KindLimit {
        kind: kind_out(kind),
        at_most: limit.at_most(),
    };
    limits.iter().map(limit).collect()
}

pub(crate) fn quota_table_out(table: QuotaTable) -> proto::ListQuotasResponse {
    let QuotaTable { default, users } = table;
    let row = |QuotaRow { user, is_own, used, quota }| proto::QuotaRow {
        user,
        is_own,
        used: amounts_out(used),
        quota: amounts_out(quota),
    };
    let users = users.into_iter().map(row).collect();
    proto::ListQuotasResponse { users, default: amounts_out(default) }
}

pub(crate) fn quota_table_in(table: proto::ListQuotasResponse) -> Result<QuotaTable, Status> {
    let proto::ListQuotasResponse { users, default } = table;
    let row = |proto::QuotaRow { user, is_own, used, quota }| {
        Ok(QuotaRow { user, is_own, used: amounts_in(used)?, quota: amounts_in(quota)? })
    };
    let users = users.into_iter().map(row).collect::<Result<_, Status>>()?;
    Ok(QuotaTable { default: amounts_in(default)?, users })
}

fn amounts_in(amounts: Vec<proto::KindAmount>) -> Result<AmountsByKind, Status> {
    let amounts = amounts.into_iter();
    amounts.map(|proto::KindAmount { kind, amount }| Ok((kind_in(kind)?, amount))).collect()
}

fn amounts_out(amounts: AmountsByKind) -> Vec<proto::KindAmount> {
    let amounts = amounts.into_iter();
    amounts.map(|(kind, amount)| proto::KindAmount { kind: kind_out(kind), amount }).collect()
}
