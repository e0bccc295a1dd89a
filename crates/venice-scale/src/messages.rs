//! Messages of the control plane.

use venice_rack::agent_member::ReportCall;
use venice_rack::monitor::CallError;
use venice_rack::monitor_node::{Call, DonorAnswer, DonorCall, Reply};
use venice_rack::types::{HeartbeatAck, HeartbeatReport, LeaseState, RackError, Registered};
use venice_wire::{GrantId, GrantKey};

/// The number of a program's loan on its node.
pub type LoanNumber = u32;

/// The purpose of a call to the Monitor Node; its reply comes back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An agent registers, once its report was not known.
    Register(ReportCall),
    /// A program asks for memory.
    Ask(LoanNumber),
    /// A program gives memory back.
    GiveBack(LoanNumber),
}

/// A message between programs of two nodes.
#[derive(Debug)]
pub enum Message {
    /// To the Monitor Node: an agent reports.
    Report(ReportCall, Box<HeartbeatReport>),
    /// To the Monitor Node: a call.
    Call(Purpose, Box<Call>),
    /// To the Monitor Node: a donor's answer to its call of that number.
    Result(u64, Result<DonorAnswer, CallError>),
    /// To an agent: the answer to its report.
    Acknowledged(ReportCall, Result<Box<HeartbeatAck>, RackError>),
    /// To an agent: the answer to its registration.
    Registered(ReportCall, Option<Registered>),
    /// To an agent: a call of the Monitor Node.
    DonorCall(u64, Box<DonorCall>),
    /// To an agent: a program renews.
    Renew(LoanNumber, GrantId, GrantKey),
    /// To a program: the reply to its call.
    Reply(Purpose, Box<Reply>),
    /// To a program: the state of its lease.
    Renewed(LoanNumber, GrantId, LeaseState),
}
