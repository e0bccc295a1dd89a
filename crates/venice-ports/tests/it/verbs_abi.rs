//! Compares the structures of `venice_ports::verbs::abi` with those of the header installed here.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;

use venice_ports::verbs::abi;

/// Fills the table and writes the C program that prints the same one.
macro_rules! layouts {
    ($($rust:ident = $c:literal { $($field:ident $(. $inner:ident)? = $member:literal),* $(,)? })*) => {{
        let mut ours = BTreeMap::new();
        let mut program = String::from(
            "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
        );
        $(
            $(
                ours.insert(concat!($c, ".", $member), offset_of!(abi::$rust, $field $(. $inner)?));
                program += &format!(
                    "printf(\"{}.{} %zu\\n\", offsetof({}, {}));\n", $c, $member, $c, $member
                );
            )*
            // The size of a structure with only its front declared has no meaning.
            if !["Context", "Cq", "Qp"].contains(&stringify!($rust)) {
                ours.insert(concat!($c, " size"), size_of::<abi::$rust>());
                program += &format!("printf(\"{} size %zu\\n\", sizeof({}));\n", $c, $c);
            }
        )*
        (ours, program + "return 0; }\n")
    }};
}

#[test]
fn structures_match_installed_header() {
    let (ours, program) = layouts! {
        ContextOps = "struct ibv_context_ops" {
            poll_cq = "poll_cq", req_notify_cq = "req_notify_cq",
            post_send = "post_send", post_recv = "post_recv",
        }
        Context = "struct ibv_context" {
            device = "device", ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd",
        }
        CompChannel = "struct ibv_comp_channel" { fd = "fd" }
        Cq = "struct ibv_cq" { context = "context" }
        Qp = "struct ibv_qp" { context = "context", qp_num = "qp_num" }
        Mr = "struct ibv_mr" { lkey = "lkey", rkey = "rkey" }
        Gid = "union ibv_gid" {}
        GidEntry = "struct ibv_gid_entry" {
            gid = "gid", gid_index = "gid_index", port_num = "port_num", gid_type = "gid_type",
        }
        DeviceAttr = "struct ibv_device_attr" {
            max_qp_wr = "max_qp_wr", max_cqe = "max_cqe", max_qp_rd_atom = "max_qp_rd_atom",
            max_qp_init_rd_atom = "max_qp_init_rd_atom", atomic_cap = "atomic_cap",
            max_pkeys = "max_pkeys", phys_port_cnt = "phys_port_cnt",
        }
        PortAttr = "struct ibv_port_attr" {
            state = "state", active_mtu = "active_mtu", gid_tbl_len = "gid_tbl_len", lid = "lid",
            link_layer = "link_layer", port_cap_flags2 = "port_cap_flags2",
        }
        GlobalRoute = "struct ibv_global_route" {
            dgid = "dgid", sgid_index = "sgid_index", hop_limit = "hop_limit",
        }
        AhAttr = "struct ibv_ah_attr" {
            grh = "grh", dlid = "dlid", is_global = "is_global", port_num = "port_num",
        }
        QpCap = "struct ibv_qp_cap" {
            max_send_wr = "max_send_wr", max_recv_wr = "max_recv_wr",
            max_inline_data = "max_inline_data",
        }
        QpInitAttr = "struct ibv_qp_init_attr" {
            send_cq = "send_cq", recv_cq = "recv_cq", cap = "cap", qp_type = "qp_type",
            sq_sig_all = "sq_sig_all",
        }
        QpAttr = "struct ibv_qp_attr" {
            qp_state = "qp_state", path_mtu = "path_mtu", rq_psn = "rq_psn", sq_psn = "sq_psn",
            dest_qp_num = "dest_qp_num", qp_access_flags = "qp_access_flags", ah_attr = "ah_attr",
            pkey_index = "pkey_index", max_rd_atomic = "max_rd_atomic",
            max_dest_rd_atomic = "max_dest_rd_atomic", min_rnr_timer = "min_rnr_timer",
            port_num = "port_num", timeout = "timeout", retry_cnt = "retry_cnt",
            rnr_retry = "rnr_retry", rate_limit = "rate_limit",
        }
        Sge = "struct ibv_sge" { addr = "addr", length = "length", lkey = "lkey" }
        SendWr = "struct ibv_send_wr" {
            wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge",
            opcode = "opcode", send_flags = "send_flags", imm_data = "imm_data",
            remote_addr = "wr.rdma.remote_addr", compare_add = "wr.rdma.rkey",
            swap = "wr.atomic.swap", atomic_rkey = "wr.atomic.rkey",
        }
        RecvWr = "struct ibv_recv_wr" { wr_id = "wr_id", sg_list = "sg_list", num_sge = "num_sge" }
        Wc = "struct ibv_wc" {
            wr_id = "wr_id", status = "status", opcode = "opcode", byte_len = "byte_len",
            imm_data = "imm_data", qp_num = "qp_num", wc_flags = "wc_flags", sl = "sl",
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("gcc").arg(&source).arg("-o").arg(&binary).output().unwrap();
    let complaints = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "is libibverbs-dev installed? {complaints}");
    let printed = Command::new(&binary).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let theirs: BTreeMap<&str, usize> = printed
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(what, value)| (what, value.parse().unwrap()))
        .collect();
    let other: Vec<_> =
        ours.iter().filter(|(what, value)| theirs.get(*what) != Some(value)).collect();
    assert!(other.is_empty(), "ours differ from the header's: {other:?}");
    assert_eq!(ours.len(), theirs.len());
}
