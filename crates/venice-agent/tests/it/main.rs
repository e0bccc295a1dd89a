//! Agents with a Monitor Node in one process.

mod common;
mod farewell;
mod pressure;
mod rack;
mod renewal;
mod revoked;
mod transfer;
