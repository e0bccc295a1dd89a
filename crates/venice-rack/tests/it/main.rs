//! The Monitor Node's and the donor's logic, without I/O.

mod admission;
mod agent_member;
mod agreement;
mod ahead;
mod bandwidth;
mod common;
mod devices;
mod distance;
mod drain;
mod model;
mod monitor;
mod monitor_node;
mod nearest;
mod peers;
mod pool;
mod pressure;
