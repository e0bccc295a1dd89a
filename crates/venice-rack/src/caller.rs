//! Authenticated callers. The TLS servers check certificates; the logic gets a [`Caller`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A caller, as proved by its certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// The Monitor Node.
    Monitor,
    /// A node's agent, by the node's name.
    Node(String),
    /// A program on a node.
    User(User),
}

/// A program's user, vouched for by the node it runs on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// The node.
    pub node: String,
    /// The user id on that node.
    pub uid: u32,
    /// The user name on that node; the user id where there is no name.
    pub name: String,
    /// True for a caller on the Monitor Node's own socket that is root or the Monitor Node's own
    /// user. It may enrol and revoke others.
    pub is_admin: bool,
}

/// The owner of a grant: a user, on the node its program runs on. Equal user names mean one user,
/// on all nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The node that vouches for the user.
    pub node: String,
    /// The user name on that node.
    pub user: String,
    /// True if a process of root's requested it for the user: a swap device, where pages of any
    /// program may lie. It counts as the user's, who may neither transfer it nor have it preempted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_bound: bool,
}

fn is_false(it: &bool) -> bool {
    !it
}

impl Owner {
    /// True if this is the user, who may do with the grant as he likes.
    pub fn is(&self, user: &User) -> bool {
        !self.is_bound && (&self.node, &self.user) == (&user.node, &user.name)
    }
}

impl From<User> for Owner {
    fn from(User { node, name, .. }: User) -> Self {
        Self { node, user: name, is_bound: false }
    }
}

impl Caller {
    /// True if the caller may enrol and revoke others, and drain any node.
    pub fn is_admin(&self) -> bool {
        matches!(self, Caller::User(User { is_admin: true, .. }))
    }

    /// Returns the caller's node, or the node that vouches for the caller.
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

/// The error for a text that is no `USER@NODE`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no owner: write USER@NODE")]
pub struct InvalidOwner(String);

/// Parses `USER@NODE`, as [`Display`](fmt::Display) writes it.
impl FromStr for Owner {
    type Err = InvalidOwner;

    fn from_str(text: &str) -> Result<Self, InvalidOwner> {
        match text.rsplit_once('@') {
            Some((user, node)) if !user.is_empty() && !node.is_empty() => {
                Ok(Self { node: node.to_owned(), user: user.to_owned(), is_bound: false })
            }
            Some(_) | None => Err(InvalidOwner(text.to_owned())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_reads_as_written() {
        for (text, user, node) in [("bob@n2", "bob", "n2"), ("b@c@n2", "b@c", "n2")] {
            let owner: Owner = text.parse().unwrap();
            assert_eq!((&*owner.user, &*owner.node, &*owner.to_string()), (user, node, text));
        }
        for wrong in ["", "bob", "@n2", "bob@"] {
            assert!(wrong.parse::<Owner>().is_err(), "{wrong}");
        }
    }
}
