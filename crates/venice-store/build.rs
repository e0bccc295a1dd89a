//! Generates the client of etcd's API, without a `protoc` binary.

use std::error::Error;

const PROTO_ROOT: &str = "proto";
const PROTO_FILE: &str = "etcd.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO_ROOT}");
    let descriptors = protox::compile([PROTO_FILE], [PROTO_ROOT])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
