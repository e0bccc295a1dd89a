//! The generated gRPC types of `proto/venice/v1`.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("venice.v1");
