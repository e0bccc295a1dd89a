//! What `--help` of each command ends with: examples first.

pub(super) const HELP_RUN: &str = "\
EXAMPLES:
  venice run --local 256MiB -- redis-server --save ''
  venice run --local 1GiB --remote 6GiB --stats -- python3 job.py
  venice run --local 512MiB --port udp --donor node2 --donor node3 -- sort big.txt
  venice run --local 1GiB --faults in-thread -- ./simulate
                                              numbers in large arrays: no switch at a fault
  venice run --local 1GiB --coding 4+2 -- ./simulate
                                              two nodes may die, for half as much memory again
  venice run --local 1GiB --page-size 64k -- ./stencil
                                              pages of 64 KiB: long runs, wherever they begin
  venice run --local 4GiB --page-size 2m -- ./simulate
                                              pages of 2 MiB: large arrays, most of them local
  venice run --local 1GiB --reclaim-to donors,local,disk:/srv/tmp -- redis-server
  venice run --local 1GiB --placement spread -- ./simulate
                                              something on every node, for their bandwidth together
  venice run --local 1GiB --remote 4GiB --wait 10m -- ./simulate
                                              wait in line where the rack is full (`venice queue`)
  venice run --local 512MiB --node node3 -- sort big.txt
                                              in a mesh: as a program of node3

The program keeps at most --local of its anonymous memory resident; the rest is on the donors.
Its exit code is this command's. With --stats a summary is printed on stderr at the end.";

pub(super) const HELP_MAIN: &str = "\
EXAMPLES:
  venice up                                   a rack of four nodes on this machine
  venice run --local 1GiB -- redis-server     Redis with 1 GiB of its memory here, the rest there
  venice ps                                   how the programs on borrowed memory do
  venice nodes                                who lends how much
  venice down                                 the end of it

EXIT CODES: 0 done, 1 failed, 2 the command line or a configuration file makes no sense.
ENVIRONMENT: VENICE_MONITOR, VENICE_RUN_DIR, VENICE_LOG (for example venice_agent=debug).";

pub(super) const HELP_UP: &str = "\
EXAMPLES:
  venice up                                   four nodes that lend 512 MiB each
  venice up --nodes 2 --lend 2GiB             two larger ones
  sudo venice up --port udp --netns           each node behind a virtual wire of its own
  venice up --topology mesh:2x2x2             eight nodes in a cube, which relay for each other
  venice up --topology torus:3x3 --source-routes
                                              nine, whose packets carry their whole way
  venice up --nodes 6 --pool 2                the last two lend and borrow nothing
  venice up --offer node2/storage:/srv/pool=10GiB
                                              node2 lends storage too, for `venice get io`
  venice up --nodes 2 --lend-dax node2/dax0.0
                                              node2 lends CXL memory or an NVDIMM
  venice up --reserve-ahead 20%               keep up to a fifth of it for who is foretold to need it
  VENICE_RUN_DIR=/tmp/lab venice up --monitor-port 7480
                                              a second rack beside the first

On a rack that is up it does nothing; on one with dead processes it starts just those again, with
their names, addresses and tables. To change its shape, `venice down` first.";

pub(super) const HELP_STATUS: &str = "\
EXAMPLES:
  venice status
  venice status --json | jq '.agents[] | {name, pid, state}'

States: up, dead (no such process), starting (not registered yet), silent (the agent runs and is not
heard of), turned out (`venice node revoke`), unresponsive (the Monitor Node runs but does not
answer), unknown (there is no Monitor Node to ask). Exit code 1 without a rack.";

pub(super) const HELP_DOWN: &str = "\
EXAMPLES:
  venice down
  VENICE_RUN_DIR=/tmp/lab venice down

Programs that hold memory of the rack lose it. Without a rack there is nothing to do: exit code 0.";

pub(super) const HELP_NODES: &str = "\
EXAMPLES:
  venice nodes
  venice nodes --json | jq 'map(.free_bytes) | add'
  venice nodes --json | jq '.[] | select(.pressure != \"none\") | {name, available_bytes}'
  venice nodes --monitor 10.0.0.1:7470

Columns that say nothing are left out: role, where no node is a pool node; pressure, where no node
is short of memory itself. A node under pressure is lent nothing from: low means that it has given
what it had not lent back to its machine, high that this was not enough. A node that is to be empty
is draining, and drained once it is (`venice drain`). Of one that is down nothing is heard; one that is
stopped has said that its agent ends.";

pub(super) const HELP_RESOURCES: &str = "\
EXAMPLES:
  venice resources
  venice resources --json | jq '.[] | {node, bytes, capabilities}'
  venice resources --json | jq '.[] | select(.kind == \"accelerator\" and .available)'

Kinds: memory; window, blocks of physical memory; accelerator, nic and storage, devices that the
operators of nodes have named (`venice agent --offer`). Free of a device that is lent whole is whole
or -; health is ok, or what is wrong with it.";

pub(super) const HELP_GRANTS: &str = "\
EXAMPLES:
  venice grants
  venice grants --json | jq '.[] | select(.donor == \"node1\") | .bytes'
  venice grants --json | jq 'map(select(.owner_user == \"alice\") | .bytes) | add'

Owner is the user whose program borrowed, and the node that says so; recipient is what the program
says of itself, priority what its request had (`venice run --priority`). A grant is leaving
that is called back for a request of higher priority (`--preempt`). Where nodes relay for each other, home is the recipient's node and hops the distance to the donor;
near donors lend first.";

pub(super) const HELP_LINKS: &str = "\
EXAMPLES:
  venice links
  venice links --json | jq 'max_by(.latency_us)'
  venice links --json | jq '.[] | select(.forged + .replayed + .unsealed > 0)'

Latency is a round trip, traffic what goes to and fro at present. Port hop is a link between the
relays of two neighbours. The last lines are the recipients of grants, as their donors see them;
over shm (protection: a descriptor that nobody else has) their traffic cannot be counted.
Columns without anything in them are left out: bandwidth; emulated, the link asked for by --link;
hops; via, the relays on the short way. Bandwidth is the most that one program has been seen to have
of the link, in bursts of 50 ms at most, made seldom and never while programs use it.";

pub(super) const HELP_WINDOW: &str = "\
EXAMPLES:
  venice window list
  venice window attach dax0.0
  venice window detach dax0.0

The recipient's side of memory that is reached by hardware. The donor's is
`venice agent --lend-blocks SIZE`.";

pub(super) const HELP_DOCTOR: &str = "\
EXAMPLES:
  venice doctor
  venice doctor --json | jq '.[] | select(.state != \"ok\")'
  venice doctor --json | jq '.[] | select(.needed_by | index(\"swap\"))'

The first rows say of each mode of `venice run` (--mode paged, window, swap) whether it works here. Exit
code 1 when none does.";

pub(super) const HELP_MONITOR: &str = "\
EXAMPLES:
  venice monitor --listen 10.0.0.1:7470 --state-dir /var/lib/venice/monitor
  venice monitor --config /etc/venice/monitor.toml
  venice monitor --reserve-ahead 20%          keep memory for workloads that are foretold to need it

A flag comes before the environment, that before the file, and that before the default. In the file
the keys are the flags' names with underscores (state_dir = \"...\"); unknown keys are errors.
SIGTERM and SIGINT end it in an orderly way.";

pub(super) const HELP_AGENT: &str = "\
EXAMPLES:
  venice agent --name node7 --monitor 10.0.0.1:7470 --lend 64GiB --listen 10.0.0.7:7471
  venice agent --name pool1 --monitor 10.0.0.1:7470 --lend 500GiB --listen 10.0.0.8:7471 --pool
  venice agent --lend 16GiB --lend-blocks 64GiB
                                              and memory blocks, for machines on the same CXL fabric
  venice agent --lend 16GiB --offer accelerator:/dev/nvidia0 --offer storage:/srv/pool=100GiB
                                              and these devices, for `venice get`
  venice agent --return-blocks                bring back what a killed agent took
  venice agent --name cxl1 --lend-dax dax0.0  CXL memory or an NVDIMM, as `venice window list` has it
  venice agent --lend 16GiB --keep-free 4GiB --take-back-after-s 30
  venice agent --config /etc/venice/agent.toml

A flag comes before the environment, that before the file, and that before the default. In the file
the keys are the flags' names with underscores (lend = \"64GiB\"); unknown keys are errors.
SIGTERM and SIGINT end it in an orderly way: what it lent is taken back.";

pub(super) const HELP_ROUTER: &str = "\
EXAMPLES:
  venice router --name router --monitor 10.0.0.1:7470 --listen 10.0.0.9:7471 --topology router:8

It lends nothing and passes on what the nodes around it send each other. Its flags and its file are
an agent's; the nodes are started with `venice agent --topology router:8 --position 0` to 7.";

pub(super) const HELP_COMPLETIONS: &str = "\
EXAMPLES:
  venice completions bash > /usr/share/bash-completion/completions/venice
  venice completions zsh > ~/.zfunc/_venice";

pub(super) const HELP_MAN: &str = "\
EXAMPLES:
  venice man | man -l -
  venice man --out /usr/local/share/man/man1";
