//! Who calls, as a certificate proves it. The doors look at certificates; the logic gets this value.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// The Monitor Node.
    Monitor,
    /// A node's agent, by the node's name.
    Node(String),
    /// A program on a node.
    User(User),
}

/// The user of a program, vouched for by the node it runs on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// The node.
    pub node: String,
    /// The user's number there.
    pub uid: u32,
    /// The user's name there; the number where there is no name.
    pub name: String,
    /// It came in by the Monitor Node's own socket, as root or as the Monitor Node's own user: it
    /// may admit and turn out others.
    pub is_admin: bool,
}

/// Who has borrowed: whose program, on which node. Users of one name are one user, wherever they
/// are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The node that vouches for it.
    pub node: String,
    /// The user's name there.
    pub user: String,
}

impl From<User> for Owner {
    fn from(User { node, name, .. }: User) -> Self {
        Self { node, user: name }
    }
}

impl Caller {
    /// Whether it may admit and turn out others, and drain any node.
    pub fn is_admin(&self) -> bool {
        matches!(self, Caller::User(User { is_admin: true, .. }))
    }

    /// The node it is, or the node that vouches for it.
    pub fn node(&self) -> Option<&str> {
        match self {
            Caller::Monitor => None,
            Caller::Node(name) => Some(name),
            Caller::User(user) => Some(&user.node),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Monitor => f.write_str("the Monitor Node"),
            Caller::Node(name) => write!(f, "node {name}"),
            Caller::User(user) => user.fmt(f),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.node)
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.node)
    }
}
