//! The data plane in simulated networks.

mod accesses;
mod adaptive_stream;
mod allocation;
mod atomics_and_posts;
mod bulk;
mod deadlock;
mod faulty_network;
mod garbage;
mod lent_answers;
mod links;
mod mappings;
mod port_modes;
mod qpair_allocation;
mod qpair_garbage;
mod qpair_model;
mod qpair_restarts;
mod qpair_room;
mod qpairs;
mod shares;
mod switch_net;
mod switch_shares;
mod switches;
mod world;
