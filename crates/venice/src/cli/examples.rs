//! Examples and notes below `--help` of each command.

pub(super) const HELP_RUN: &str = "\
EXAMPLES:
  venice run --local 256MiB -- redis-server --save ''
  venice run --local 1GiB --remote 6GiB --stats -- python3 job.py
  venice run --local 512MiB --port udp --donor node2 --donor node3 -- sort big.txt
  venice run --local 1GiB --faults in-thread -- ./simulate
                                              large numeric arrays: no thread switch per fault
  venice run --local 1GiB --coding 4+2 -- ./simulate
                                              tolerates two dead nodes at 1.5 times the memory
  venice run --local 1GiB --page-size 64k -- ./stencil
                                              64 KiB pages, for sequential access
  venice run --local 4GiB --page-size 2m -- ./simulate
                                              pages of 2 MiB: large arrays, most of them local
  venice run --local 1GiB --reclaim-to donors,local,disk:/srv/tmp -- redis-server
  venice run --local 1GiB --placement spread -- ./simulate
                                              spread over every node, for their joint bandwidth
  venice run --local 1GiB --remote 4GiB --wait 10m -- ./simulate
                                              queue if the rack is full (`venice queue`)
  venice run --local 512MiB --node node3 -- sort big.txt
                                              in a mesh: as a program of node3
  venice run --accelerators 2 --accel-needs opencl,fp64 -- ./train
                                              two OpenCL devices of the rack, no memory
  venice run --accelerators 1 --accel-needs cuda -- python3 cuda_saxpy.py
                                              a CUDA device of the rack
  venice run --accelerators 1 --local 4GiB --remote 16GiB -- ./train
                                              memory too, near the device

The program keeps at most --local of its anonymous memory resident; the rest is at the donors. With
devices and without any option of memory no memory is borrowed. OpenCL devices are the program's
first platform, Venice; CUDA devices those of the driver API (libcuda.so.1). If one is lost its
calls fail, and the program goes on. The exit code is the program's. --stats prints a summary on
stderr at the end.";

pub(super) const HELP_MAIN: &str = "\
EXAMPLES:
  venice up                                   a rack of four nodes on this machine
  venice run --local 1GiB -- redis-server     Redis with 1 GiB local, the rest at donors
  venice ps                                   programs that run on borrowed memory
  venice nodes                                the nodes and what they lend
  venice down                                 stop the rack

EXIT CODES: 0: success, 1: failure, 2: usage or configuration error.
ENVIRONMENT: VENICE_MONITOR, VENICE_RUN_DIR, VENICE_LOG (for example venice_agent=debug),
VENICE_LOG_FORMAT (text, json, journald).";

pub(super) const HELP_UP: &str = "\
EXAMPLES:
  venice up                                   four nodes that lend 512 MiB each
  venice up --nodes 2 --lend 2GiB             two larger nodes
  sudo venice up --port udp --netns           each node in its own network namespace
  venice up --topology mesh:2x2x2             eight nodes in a cube that relay packets
  venice up --topology torus:3x3 --source-routes
                                              nine nodes, packets with source routes
  venice up --nodes 6 --pool 2                the last two only lend
  venice up --offer node2/storage:/srv/pool=10GiB
                                              node2 also lends storage (`venice get storage=SIZE`)
  venice up --offer accelerator:opencl        node1 also lends an OpenCL device
  venice up --nodes 2 --lend-dax node2/dax0.0
                                              node2 lends CXL memory or an NVDIMM
  venice up --reserve-ahead 20%               reserve up to a fifth for forecast needs
  VENICE_RUN_DIR=/tmp/lab venice up --monitor-port 7480
                                              a second rack beside the first

On a running rack it does nothing. On a rack with dead processes it restarts those, with their
names, addresses and tables. To change the shape of a rack, run `venice down` first.";

pub(super) const HELP_STATUS: &str = "\
EXAMPLES:
  venice status
  venice status --json | jq '.agents[] | {name, pid, state}'

States: up; dead (no such process); starting (not registered yet); silent (the agent runs but does
not report); revoked (`venice node revoke`); unresponsive (the Monitor Node runs but does not
answer); unknown (no Monitor Node to ask). Exit code 1 without a rack.";

pub(super) const HELP_DOWN: &str = "\
EXAMPLES:
  venice down
  VENICE_RUN_DIR=/tmp/lab venice down

Programs that use memory of the rack lose it. Without a rack it does nothing: exit code 0.";

pub(super) const HELP_NODES: &str = "\
EXAMPLES:
  venice nodes
  venice nodes --json | jq 'map(.free_bytes) | add'
  venice nodes --json | jq '.[] | select(.pressure != \"none\") | {name, available_bytes}'
  venice nodes --json | jq '.[] | select(.forged + .replayed + .unsealed > 0)'
  venice nodes --monitor 10.0.0.1:7470

Empty columns are omitted: role without pool nodes; pressure unless a node is short of memory. A
node under pressure gets no new grants: low means that it has returned its unlent memory to its
machine, high that this was not enough. draining: the node is being emptied; drained: it is empty
(`venice drain`). down: the Monitor Node receives no heartbeats. stopped: the agent ended in an
orderly way.";

pub(super) const HELP_RESOURCES: &str = "\
EXAMPLES:
  venice resources
  venice resources --json | jq '.[] | {node, bytes, capabilities}'
  venice resources --json | jq '.[] | select(.kind == \"accelerator\" and .available)'

Kinds: memory; window (blocks of physical memory); accelerator, nic and storage (devices that
operators offer with `venice agent --offer`). FREE of a device lent as a whole is whole or -. HEALTH
is ok or the problem.";

pub(super) const HELP_GRANTS: &str = "\
EXAMPLES:
  venice grants
  venice grants --json | jq '.[] | select(.donor == \"node1\") | .bytes'
  venice grants --json | jq 'map(select(.owner_user == \"alice\") | .bytes) | add'
  venice grants transfer 7 8 --to bob         change hands while in use
  venice grants claim --wait 5m -- ./job      the new owner

OWNER is the borrowing user and the node that vouches for it; RECIPIENT is the program's own name
for itself; PRIORITY is the request's (`venice run --priority`). STATE shows a grant that is being
preempted for a request of higher priority (`--preempt`) and the time left. Where nodes relay, HOME
is the recipient's node and HOPS the distance to the donor; near donors lend first.";

pub(super) const HELP_LINKS: &str = "\
EXAMPLES:
  venice links
  venice links --json | jq 'max_by(.latency_us)'
  venice links --json | jq '.[] | select(.loss_ratio > 0)'

LATENCY is a round trip, TRAFFIC the present rate in both directions. Port hop is a link between the
relays of two neighbours. The last lines are the recipients of grants, as their donors see them;
over shm (protection: descriptor) their traffic is not counted. Empty columns are omitted:
BANDWIDTH; EMULATED, the link set with --link; HOPS; VIA, the relays on the shortest route.
BANDWIDTH is the highest measured, in rare bursts of at most 50 ms that wait until no program uses
the link.";

pub(super) const HELP_WINDOW: &str = "\
EXAMPLES:
  venice window list
  venice window attach dax0.0
  venice window detach dax0.0

The recipient's side of memory reached by hardware. The donor's side is
`venice agent --lend-blocks SIZE`.";

pub(super) const HELP_DOCTOR: &str = "\
EXAMPLES:
  venice doctor
  venice doctor --json | jq '.[] | select(.state != \"ok\")'
  venice doctor --json | jq '.[] | select(.needed_by | index(\"swap\"))'

The first rows show which modes of `venice run` (--mode paged, window, swap) work here. Exit code 1
if none does.";

pub(super) const HELP_MONITOR: &str = "\
EXAMPLES:
  venice monitor --listen 10.0.0.1:7470 --state-dir /var/lib/venice/monitor
  venice monitor --config /etc/venice/monitor.toml
  venice monitor --reserve-ahead 20%          reserve memory for forecast needs

Precedence: flag, environment, file, default. Keys of the file are the flags' names with
underscores (state_dir = \"...\"); unknown keys are errors.
SIGTERM and SIGINT stop it in an orderly way.";

pub(super) const HELP_AGENT: &str = "\
EXAMPLES:
  venice agent --name node7 --monitor 10.0.0.1:7470 --lend 64GiB --listen 10.0.0.7:7471
  venice agent --name pool1 --monitor 10.0.0.1:7470 --lend 500GiB --listen 10.0.0.8:7471 --pool
  venice agent --lend 16GiB --lend-blocks 64GiB
                                              also memory blocks, for the same CXL fabric
  venice agent --lend 16GiB --offer accelerator:/dev/nvidia0 --offer storage:/srv/pool=100GiB
                                              also these devices, for `venice get`
  venice agent --lend 16GiB --offer accelerator:opencl
                                              an OpenCL device, for unchanged programs
  venice agent --return-blocks                bring blocks of a killed agent online
  venice agent --name cxl1 --lend-dax dax0.0  CXL memory or an NVDIMM (`venice window list`)
  venice agent --lend 16GiB --keep-free 4GiB --take-back-after-s 30
  venice agent --config /etc/venice/agent.toml

Precedence: flag, environment, file, default. Keys of the file are the flags' names with
underscores (lend = \"64GiB\"); unknown keys are errors.
SIGTERM and SIGINT stop it in an orderly way: it takes lent memory back.";

pub(super) const HELP_ROUTER: &str = "\
EXAMPLES:
  venice router --name router --monitor 10.0.0.1:7470 --listen 10.0.0.9:7471 --topology router:8

It lends nothing and forwards packets between the nodes around it. Its flags and its file are those
of an agent; start the nodes with `venice agent --topology router:8 --position 0` to 7.";

pub(super) const HELP_HELPER: &str = "\
EXAMPLES:
  systemctl enable --now venice-helper        beside an agent that is not root
  venice helper --socket-group staff

The kernel lets only CAP_SYS_PTRACE serve page faults in system calls and follow forks. The helper
has it, and lets the members of the group page: it makes the userfaultfds of `venice run` and of
Python's arrays for them. An agent that runs as root is a helper too.";

pub(super) const HELP_COMPLETIONS: &str = "\
EXAMPLES:
  venice completions bash > /usr/share/bash-completion/completions/venice
  venice completions zsh > ~/.zfunc/_venice";

pub(super) const HELP_MAN: &str = "\
EXAMPLES:
  venice man | man -l -
  venice man --out /usr/local/share/man/man1";
