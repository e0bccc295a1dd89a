//! A host's side of command streams.

pub(crate) mod activity;
mod extents;
mod inbox;
mod mail;
mod opened;

pub(crate) use self::activity::Activity;
pub(crate) use self::extents::Extents;
pub(crate) use self::inbox::Inbox;
pub(crate) use self::mail::Mail;
pub(crate) use self::opened::Opened;
