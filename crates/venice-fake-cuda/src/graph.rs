//! Graphs: their nodes run one after the other.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::device::{current, current_device};
use crate::engine::{enqueue, handle};
use crate::kernel::{Function, collect};
use crate::module::function;
use crate::rows::{Copy3, copy3, fill_rows};
use crate::*;

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fill {
    to: u64,
    pitch: usize,
    value: c_uint,
    unit: c_uint,
    width: usize,
    height: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Kernel {
    function: usize,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    pointers: *mut *mut u8,
    extra: *mut *mut u8,
    kernel: usize,
    context: usize,
}

type HostFunction = unsafe extern "C" fn(*mut c_void);

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Host {
    function: HostFunction,
    data: usize,
}

#[derive(Clone)]
enum Work {
    Kernel(Function, Vec<u8>, u64),
    Copy(Copy3),
    Fill(Fill),
    Host(HostFunction, usize),
    Child(Vec<usize>),
    Nothing,
}

/// Nodes, and pairs of a node and one that depends on it.
type Graph = (Vec<usize>, Vec<(usize, usize)>);

#[derive(Default)]
struct Graphs {
    graphs: HashMap<usize, Graph>,
    nodes: HashMap<usize, Work>,
    execs: HashMap<usize, Vec<(usize, Work)>>,
}

// SAFETY: addresses of the program, which streams use.
unsafe impl Send for Graphs {}

static GRAPHS: LazyLock<Mutex<Graphs>> = LazyLock::new(Mutex::default);

fn graphs() -> MutexGuard<'static, Graphs> {
    GRAPHS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graphs {
    fn in_order(&self, graph: usize) -> Result<Vec<usize>, Code> {
        let (mut all, mut edges) = self.graphs.get(&graph).cloned().ok_or(INVALID_VALUE)?;
        let mut ordered = Vec::new();
        while !all.is_empty() {
            let is_free = |node: &usize| !edges.iter().any(|edge| edge.1 == *node);
            let at = all.iter().position(is_free).ok_or(INVALID_VALUE)?;
            let node = all.remove(at);
            edges.retain(|edge| edge.0 != node);
            ordered.push(node);
        }
        Ok(ordered)
    }
}

unsafe fn add(
    node: *mut usize,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    work: Work,
) -> Result<(), Code> {
    let mut all = graphs();
    let made = handle();
    let (nodes, edges) = all.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
    for at in 0..count {
        // SAFETY: the program passes so many.
        edges.push((unsafe { *dependencies.add(at) }, made));
    }
    nodes.push(made);
    all.nodes.insert(made, work);
    // SAFETY: as in `put`.
    unsafe { put(node, made) }
}

unsafe fn kernel(it: *const Kernel) -> Result<Work, Code> {
    current()?;
    // SAFETY: the program passes it.
    let it = unsafe { *it };
    let its = function(it.function)?;
    let product = |all: [c_uint; 3]| all.iter().map(|it| u64::from(*it)).product::<u64>();
    // SAFETY: as above.
    let parameters = unsafe { collect(its, it.pointers, it.extra) }?;
    Ok(Work::Kernel(its, parameters, product(it.grid) * product(it.block)))
}

fn run(work: &Work, stream: usize) -> Result<(), Code> {
    let device = current_device()?;
    match work.clone() {
        Work::Kernel(function, parameters, threads) => {
            enqueue(device, stream, move || function.run(&parameters, threads)).map(drop)
        }
        Work::Copy(it) => copy3(&raw const it, stream),
        Work::Fill(Fill { to, pitch, value, unit, width, height }) => {
            let bytes = value.to_ne_bytes();
            fill_rows(stream, (to, pitch), &bytes[..unit as usize], (width, height))
        }
        Work::Host(function, data) => enqueue(device, stream, move || {
            // SAFETY: the program passes both for this call.
            unsafe { function(data as *mut c_void) };
            Ok(())
        })
        .map(drop),
        Work::Child(nodes) => {
            let all: Vec<_> =
                nodes.iter().filter_map(|node| graphs().nodes.get(node).cloned()).collect();
            all.iter().try_for_each(|work| run(work, stream))
        }
        Work::Nothing => Ok(()),
    }
}

exported! {
    fn cuGraphCreate(graph: *mut usize, _flags: c_uint) {
        current()?;
        let made = handle();
        graphs().graphs.insert(made, Default::default());
        // SAFETY: as in `put`, here and below.
        unsafe { put(graph, made) }
    }

    fn cuGraphDestroy(graph: usize) {
        graphs().graphs.remove(&graph).map(drop).ok_or(INVALID_VALUE)
    }

    fn cuGraphAddKernelNode_v2(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        parameters: *const Kernel,
    ) {
        // SAFETY: the program passes what the API asks for, here and below.
        unsafe { add(node, graph, dependencies, count, kernel(parameters)?) }
    }

    fn cuGraphAddMemcpyNode(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        parameters: *const Copy3,
        _context: usize,
    ) {
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, Work::Copy(*parameters)) }
    }

    fn cuGraphAddMemsetNode(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        parameters: *const Fill,
        _context: usize,
    ) {
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, Work::Fill(*parameters)) }
    }

    fn cuGraphAddHostNode(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        parameters: *const Host,
    ) {
        // SAFETY: as above.
        let Host { function, data } = unsafe { *parameters };
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, Work::Host(function, data)) }
    }

    fn cuGraphAddEmptyNode(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
    ) {
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, Work::Nothing) }
    }

    fn cuGraphAddChildGraphNode(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        child: usize,
    ) {
        let work = Work::Child(graphs().in_order(child)?);
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, work) }
    }

    fn cuGraphAddDependencies(
        graph: usize,
        from: *const usize,
        to: *const usize,
        count: usize,
    ) {
        let mut all = graphs();
        let (_, edges) = all.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        edges.extend((0..count).map(|at| unsafe { (*from.add(at), *to.add(at)) }));
        Ok(())
    }

    fn cuGraphGetNodes(graph: usize, _nodes: *mut usize, count: *mut usize) {
        let all = graphs();
        // SAFETY: as above.
        unsafe { put(count, all.graphs.get(&graph).ok_or(INVALID_VALUE)?.0.len()) }
    }

    fn cuGraphNodeGetType(node: usize, kind: *mut c_int) {
        let all = graphs();
        let told = match all.nodes.get(&node).ok_or(INVALID_VALUE)? {
            Work::Kernel(..) => 0,
            Work::Copy(_) => 1,
            Work::Fill(_) => 2,
            Work::Host(..) => 3,
            Work::Child(_) => 4,
            Work::Nothing => 5,
        };
        // SAFETY: as above.
        unsafe { put(kind, told) }
    }

    fn cuGraphInstantiate_v2(
        exec: *mut usize,
        graph: usize,
        _failed: *mut usize,
        _log: *mut c_char,
        _room: usize,
    ) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, _flags: u64) {
        instantiate(exec, graph)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: usize, node: usize, parameters: *const Kernel) {
        // SAFETY: as above.
        let new = unsafe { kernel(parameters) }?;
        let mut all = graphs();
        let its = all.execs.get_mut(&exec).ok_or(INVALID_VALUE)?;
        its.iter_mut().find(|it| it.0 == node).ok_or(INVALID_VALUE)?.1 = new;
        Ok(())
    }

    fn cuGraphLaunch(exec: usize, stream: usize) {
        let work = graphs().execs.get(&exec).cloned().ok_or(INVALID_VALUE)?;
        work.iter().try_for_each(|(_, work)| run(work, stream))
    }

    fn cuGraphExecDestroy(exec: usize) {
        graphs().execs.remove(&exec).map(drop).ok_or(INVALID_VALUE)
    }
}

fn instantiate(exec: *mut usize, graph: usize) -> Result<(), Code> {
    let mut all = graphs();
    let ordered = all.in_order(graph)?;
    let work = ordered.into_iter().map(|node| (node, all.nodes[&node].clone())).collect();
    let made = handle();
    all.execs.insert(made, work);
    // SAFETY: as in `put`.
    unsafe { put(exec, made) }
}
