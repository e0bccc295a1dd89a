//! Both stores, as the Monitor Node uses them.

mod conformance;
mod killed_store;
mod several_members;
mod suite;
