//! Examples at the end of each `--help`.

pub(super) const HELP_BENCH: &str = "\
EXAMPLES:
  venice bench accel
  venice bench channels --quick --plots plots
  venice bench memory --quick
  venice bench fault
  venice bench fault --size 512MiB --local 128MiB --json fault.json
  venice bench forecast --plots plots         fetches public traces with pip, once
  venice bench forecast --trace usage.csv --columns memory,io --window 96 --ahead 4
  venice bench incast --quick
  venice bench monitor --agents 1000 --store file,etcd
  venice bench placement --plots plots
  venice bench shares --json shares.json
  venice bench sim --quick --json sim.json";

pub(super) const HELP_ACCEL: &str = "\
EXAMPLES:
  venice bench accel
  venice bench accel --turns 9 --json accel.json
  venice bench accel --peer PoCL-Remote=/opt/pocl/vendors,POCL_DEVICES=remote,POCL_REMOTE0_PARAMETERS=node2:10998/0

The same program uses the first device of the local driver, and by `venice run` one that another node of
a local rack lends: over shm, and with root over udp between network namespaces.";

pub(super) const HELP_FORECAST: &str = "\
EXAMPLES:
  venice bench forecast --plots plots         fetches public traces with pip, once
  venice bench forecast --trace usage.csv --columns memory,io --window 96 --ahead 4";

pub(super) const HELP_MONITOR_LOAD: &str = "\
EXAMPLES:
  venice bench monitor
  venice bench monitor --store file,etcd      beside etcd, where etcd-server is installed
  venice bench monitor --agents 1000 --requests 200 --seconds 10 --json monitor.json

A Monitor Node of its own is started; each agent has a certificate, a connection over TLS and a service
of its own, all real; only the lent memory is missing. 10000 agents with 2000 donors among them
take about 15000 open files.";

pub(super) const HELP_PLACEMENT: &str = "\
EXAMPLES:
  venice bench placement
  venice bench placement --seeds 200 --nodes 4,8,16 --json - --plots plots

Each rack is drawn from a seed: a row or a ring of nodes with some memory left, some links busy, and two
to five requests. An interrupted run prints the figures so far.";

pub(super) const HELP_SHARES: &str = "\
EXAMPLES:
  venice bench shares
  venice bench shares --seconds 5 --repetitions 5 --json shares.json

Programs are processes with links of their own at one donor of one thread: with root over a veth pair
between two network namespaces, else over loopback. A link has up to 64 pages outstanding, like a
pager's.";

pub(super) const HELP_PAPER: &str = "\
EXAMPLES:
  venice paper 3 --quick
  venice paper 14 --quick --plots plots
  venice paper 14 --modes venice-shm --queries 2000 --json figure14.json
  venice paper 15 --quick --plots plots
  venice paper 16a --repetitions 3 --plots plots
  venice paper rack-9 --quick --plots plots
  venice paper rack-9 --scale 1 --modes victim-shm,victim-udp --json rack-9.json
  venice paper rack-11 --quick --plots plots
  venice paper 15 --only pagerank,redis --json figure15.json
  venice paper 15 --graph paper --scale 22 --fft 512MiB --limit 1800
                                              as large as the paper's: hours

All modes run in one run, with the paper's figures beside them. Figures 17
and 18 are in `venice bench channels`.";

pub(super) const HELP_MODEL: &str = "\
EXAMPLES:
  venice model cost --sweep utilization=30%..90%
  venice model cost --memory-modules 384 --memory-cost 90 --gpu-modules 8 --gpu-cost 9000
  venice model latency --software 2us --local 95%
  venice model latency --sweep software=0..10us --plots plots
  venice model network --fabric 20us --crossings 2
  venice model network --sweep fabric=150ns..10us:50 --json network.json

The models of the composable-rack paper. Every figure is the paper's unless a flag gives another, and
every figure can be swept. The paper's own numbers stand beside the equations' results.";

pub(super) const HELP_MAIN: &str = "\
EXAMPLES:
  venice bench fault                  cost of a page fault
  venice paper 15 --quick             figure 15 of the Venice paper
  venice sim rack --loss 1%           a rack in virtual time
  venice sim run incast-1g --quick    an experiment in a simulated warehouse
  venice model cost                   cost model of the composable-rack paper

`venice bench|paper|sim|model` run this binary. It finds `venice` beside itself, or by VENICE_BIN.

EXIT CODES: 0 done, 1 failed, 2 usage or configuration error.";

pub(super) const HELP_COMPLETIONS: &str = "\
EXAMPLES:
  venice-lab completions bash > /etc/bash_completion.d/venice-lab";

pub(super) const HELP_MAN: &str = "\
EXAMPLES:
  venice-lab man --out man1
  man man1/venice-bench-fault.1";
