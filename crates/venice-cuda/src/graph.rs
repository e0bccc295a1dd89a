//! Graphs. What a graph does on the device is kept at the donor, and repeated there by one command;
//! what the program has a part in is done from here. Nodes run one after the other, in an order that
//! their dependencies allow.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use venice_accel::cuda::wire::{Command, Field};

use crate::call::*;
use crate::context::current;
use crate::device::{Device, owner};
use crate::gates::{HostFunction, call_in_order};
use crate::handle::{self, Object};
use crate::launch::{Config, Launch, prepare};
use crate::rows::{Copy3, commands_within, copy};
use crate::stream::{id_of, id_on};

/// Longest piece of a sequence in a command, in bytes.
const PIECE_BYTES: usize = 32 << 10;

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

/// `CUDA_KERNEL_NODE_PARAMS`, of the first version.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelParameters {
    function: usize,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    pointers: *mut *mut u8,
    extra: *mut *mut c_void,
}

/// `CUDA_KERNEL_NODE_PARAMS`, of the second version.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelParameters2 {
    first: KernelParameters,
    kernel: usize,
    context: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HostParameters {
    function: Option<HostFunction>,
    data: usize,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
struct InstantiateParameters {
    flags: u64,
    upload: usize,
    failed: usize,
    result: c_int,
}

/// Work of a node.
#[derive(Clone)]
enum Work {
    Kernel(Launch),
    Copy(Copy3),
    Fill(Fill),
    Host(HostFunction, usize),
    Child(Vec<(usize, Work)>),
    Nothing,
}

impl Work {
    /// Returns the `CUgraphNodeType`.
    fn kind(&self) -> c_int {
        match self {
            Self::Kernel(_) => 0,
            Self::Copy(_) => 1,
            Self::Fill(_) => 2,
            Self::Host(..) => 3,
            Self::Child(_) => 4,
            Self::Nothing => 5,
        }
    }
}

/// A node.
pub struct Node {
    graph: usize,
    work: Mutex<Work>,
}

impl Node {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Default)]
struct Nodes {
    all: Vec<usize>,
    /// Pairs of a node and one that depends on it.
    edges: Vec<(usize, usize)>,
}

/// A graph.
#[derive(Default)]
pub struct Graph {
    nodes: Mutex<Nodes>,
}

impl Graph {
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the nodes with their work, each behind those that it depends on.
    ///
    /// # Errors
    /// The dependencies go round in a circle.
    fn in_order(&self) -> Done<Vec<(usize, Work)>> {
        let Nodes { mut all, mut edges } = self.lock().clone();
        let mut ordered = Vec::new();
        while !all.is_empty() {
            let is_free = |node: &usize| !edges.iter().any(|edge| edge.1 == *node);
            let at = all.iter().position(is_free).ok_or(INVALID_VALUE)?;
            let node = all.remove(at);
            edges.retain(|edge| edge.0 != node);
            ordered.push((node, handle::node(node)?.lock().clone()));
        }
        Ok(ordered)
    }

    /// Adds dependencies of nodes of this graph.
    fn add_edges(&self, edges: &[(usize, usize)]) -> Done {
        let mut nodes = self.lock();
        if edges.iter().any(|(a, b)| !nodes.all.contains(a) || !nodes.all.contains(b)) {
            return Err(INVALID_VALUE);
        }
        nodes.edges.extend_from_slice(edges);
        Ok(())
    }
}

/// Something to do at a launch.
enum Step {
    /// A sequence at the donor: its id, and its commands until the donor has them.
    Sequence(u64, Option<Vec<u8>>),
    Copy(Copy3),
    Host(HostFunction, usize),
}

/// A graph that can be launched.
pub struct Exec {
    device: &'static Device,
    work: Mutex<Vec<(usize, Work)>>,
    /// `None`: the work has changed.
    steps: Mutex<Option<Vec<Step>>>,
}

impl Exec {
    fn make(graph: &Graph) -> Done<usize> {
        let (device, work) = (current()?.device, Mutex::new(graph.in_order()?));
        let exec = Self { device, work, steps: Mutex::default() };
        // What is wrong with it is told now.
        let steps = exec.make_steps()?;
        *exec.steps() = Some(steps);
        Ok(handle::add(Object::Exec(Arc::new(exec))))
    }

    fn steps(&self) -> MutexGuard<'_, Option<Vec<Step>>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_steps(&self) -> Done<Vec<Step>> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut steps, mut commands) = (Vec::new(), Vec::new());
        self.add_steps(&work, &mut steps, &mut commands)?;
        self.add_sequence(&mut steps, &mut commands);
        Ok(steps)
    }

    fn add_sequence(&self, steps: &mut Vec<Step>, commands: &mut Vec<u8>) {
        if !commands.is_empty() {
            let commands = std::mem::take(commands);
            steps.push(Step::Sequence(self.device.link.new_id(), Some(commands)));
        }
    }

    fn add_steps(
        &self,
        work: &[(usize, Work)],
        steps: &mut Vec<Step>,
        commands: &mut Vec<u8>,
    ) -> Done {
        for (_, work) in work {
            match work {
                Work::Kernel(launch) => launch.command(0).put(commands),
                Work::Copy(it) => match commands_within(it)? {
                    Some(all) => all.iter().for_each(|command| command.put(commands)),
                    None => {
                        self.add_sequence(steps, commands);
                        steps.push(Step::Copy(*it));
                    }
                },
                Work::Fill(fill) => fill_commands(fill, commands)?,
                Work::Host(function, data) => {
                    self.add_sequence(steps, commands);
                    steps.push(Step::Host(*function, *data));
                }
                Work::Child(work) => self.add_steps(work, steps, commands)?,
                Work::Nothing => {}
            }
        }
        Ok(())
    }

    /// Gives other work to a node.
    fn replace(&self, node: usize, new: Work) -> Done {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let its = work.iter_mut().find(|it| it.0 == node).ok_or(INVALID_VALUE)?;
        if its.1.kind() != new.kind() {
            return Err(INVALID_VALUE);
        }
        its.1 = new;
        drop(work);
        let new = self.make_steps()?;
        let former = self.steps().replace(new);
        self.release(former);
        Ok(())
    }

    fn release(&self, steps: Option<Vec<Step>>) {
        for step in steps.into_iter().flatten() {
            if let Step::Sequence(id, None) = step {
                self.device.link.stream.release(id);
            }
        }
    }

    fn launch(&self, stream: usize) -> Done {
        let (device, id) = id_on(stream)?;
        if device.number != self.device.number {
            return Err(INVALID_VALUE);
        }
        let link = &device.link;
        for step in self.steps().iter_mut().flatten() {
            match step {
                Step::Sequence(sequence, commands) => {
                    if let Some(new) = commands.take() {
                        define(device, *sequence, &new)?;
                    }
                    link.submit(&Command::Replay { sequence: *sequence, stream: id })?;
                }
                Step::Copy(it) => copy(it, stream, false)?,
                Step::Host(function, data) => call_in_order(stream, *function, *data)?,
            }
        }
        Ok(())
    }
}

/// Has the donor keep commands, in pieces of whole ones.
fn define(device: &Device, sequence: u64, mut commands: &[u8]) -> Done {
    let mut is_first = true;
    while !commands.is_empty() {
        let mut reader = venice_accel::cuda::wire::Reader::new(commands);
        let mut len = 0;
        while !reader.is_at_end() {
            let before = reader.left();
            reader.take::<Command<'_>>().map_err(|_| UNKNOWN)?;
            let next = len + before - reader.left();
            if len > 0 && next > PIECE_BYTES {
                break;
            }
            len = next;
        }
        let (piece, rest) = commands.split_at(len);
        device.link.submit(&Command::Define { sequence, is_first, commands: piece })?;
        (is_first, commands) = (false, rest);
    }
    Ok(())
}

/// Appends the commands of a fill: one for each row.
fn fill_commands(fill: &Fill, commands: &mut Vec<u8>) -> Done {
    let bytes = fill.width.checked_mul(fill.unit as usize).ok_or(INVALID_VALUE)?;
    if !matches!(fill.unit, 1 | 2 | 4) || (fill.height > 1 && fill.pitch < bytes) {
        return Err(INVALID_VALUE);
    }
    for row in 0..fill.height {
        let offset = row.checked_mul(fill.pitch).ok_or(INVALID_VALUE)? as u64;
        let to = fill.to.checked_add(offset).ok_or(INVALID_VALUE)?;
        owner(to, bytes as u64).ok_or(INVALID_VALUE)?;
        let (width, value, count) = (fill.unit, fill.value, fill.width as u64);
        Command::Fill { stream: 0, to, width, value, count }.put(commands);
    }
    Ok(())
}

/// Adds a node.
///
/// # Safety
/// The program passes room for the handle, and so many dependencies.
unsafe fn add(
    node: *mut usize,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    work: Work,
) -> Done {
    let its = handle::graph(graph)?;
    if node.is_null() || (count > 0 && dependencies.is_null()) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: promised by the caller.
    let before: Vec<usize> = (0..count).map(|at| unsafe { *dependencies.add(at) }).collect();
    if before.iter().any(|it| !its.lock().all.contains(it)) {
        return Err(INVALID_VALUE);
    }
    let made = handle::add(Object::Node(Arc::new(Node { graph, work: Mutex::new(work) })));
    its.lock().all.push(made);
    its.add_edges(&before.into_iter().map(|it| (it, made)).collect::<Vec<_>>())?;
    // SAFETY: promised by the caller.
    unsafe { put(node, made) }
}

/// Reads the parameters of a kernel.
///
/// # Safety
/// They are what the API asks for.
unsafe fn kernel(it: *const KernelParameters, kernel: usize) -> Done<Work> {
    // SAFETY: promised by the caller.
    let it = unsafe { it.as_ref() }.ok_or(INVALID_VALUE)?;
    let function = if it.function == 0 { kernel } else { it.function };
    let config = Config::new(it.grid, it.block, it.shared, 0);
    // SAFETY: promised by the caller.
    let launch = unsafe { prepare(function, &config, Vec::new(), it.pointers, it.extra) }?;
    Ok(Work::Kernel(launch))
}

/// Reads the parameters of a kernel, of the second version.
///
/// # Safety
/// The promise of [`kernel`].
unsafe fn kernel2(it: *const KernelParameters2) -> Done<Work> {
    // SAFETY: promised by the caller, here and below.
    let its = unsafe { it.as_ref() }.ok_or(INVALID_VALUE)?;
    // SAFETY: as above.
    unsafe { kernel(&raw const its.first, its.kernel) }
}

/// Reads a description that the program passes.
///
/// # Safety
/// It is null, or what the API asks for.
unsafe fn read<T: Copy>(it: *const T) -> Done<T> {
    // SAFETY: promised by the caller.
    unsafe { it.as_ref() }.copied().ok_or(INVALID_VALUE)
}

fn host(it: HostParameters) -> Done<Work> {
    Ok(Work::Host(it.function.ok_or(INVALID_VALUE)?, it.data))
}

fn instantiate(exec: *mut usize, graph: usize) -> Done {
    let made = Exec::make(&*handle::graph(graph)?)?;
    // SAFETY: the program passes room for a handle.
    unsafe { put(exec, made) }
}

/// Stores handles as far as there is room, and tells how many there are.
///
/// # Safety
/// The program passes so much room.
unsafe fn put_all(found: &[usize], at: *mut usize, count: *mut usize) -> Done {
    if count.is_null() {
        return Err(INVALID_VALUE);
    }
    if !at.is_null() {
        // SAFETY: promised by the caller, here and below.
        let room = unsafe { *count };
        for (place, handle) in found.iter().take(room).enumerate() {
            // SAFETY: as above.
            unsafe { at.add(place).write(*handle) };
        }
    }
    // SAFETY: as above.
    unsafe { put(count, found.len()) }
}

exported! {
    fn cuGraphCreate(graph: *mut usize, flags: c_uint) {
        current()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program passes what the API asks for, here and below.
        unsafe { put(graph, handle::add(Object::Graph(Arc::default()))) }
    }

    fn cuGraphDestroy(graph: usize) {
        let its = handle::graph(graph)?;
        its.lock().all.iter().for_each(|node| handle::remove(*node));
        handle::remove(graph);
        Ok(())
    }

    fn cuGraphAddKernelNode(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        parameters: *const KernelParameters,
    ) {
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, kernel(parameters, 0)?) }
    }

    fn cuGraphAddKernelNode_v2(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        parameters: *const KernelParameters2,
    ) {
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, kernel2(parameters)?) }
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
        unsafe { add(node, graph, dependencies, count, Work::Copy(read(parameters)?)) }
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
        unsafe { add(node, graph, dependencies, count, Work::Fill(read(parameters)?)) }
    }

    fn cuGraphAddHostNode(
        node: *mut usize,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        parameters: *const HostParameters,
    ) {
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, host(read(parameters)?)?) }
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
        // The node has a copy of it.
        let work = Work::Child(handle::graph(child)?.in_order()?);
        // SAFETY: as above.
        unsafe { add(node, graph, dependencies, count, work) }
    }

    fn cuGraphAddDependencies(
        graph: usize,
        from: *const usize,
        to: *const usize,
        count: usize,
    ) {
        if count > 0 && (from.is_null() || to.is_null()) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        let edge = |at| unsafe { (*from.add(at), *to.add(at)) };
        handle::graph(graph)?.add_edges(&(0..count).map(edge).collect::<Vec<_>>())
    }

    fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        let its = handle::graph(graph)?;
        // SAFETY: as above.
        unsafe { put_all(&its.lock().all, nodes, count) }
    }

    fn cuGraphGetRootNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        let its = handle::graph(graph)?;
        let Nodes { all, edges } = its.lock().clone();
        let is_root = |node: &usize| !edges.iter().any(|edge| edge.1 == *node);
        let roots: Vec<_> = all.into_iter().filter(is_root).collect();
        // SAFETY: as above.
        unsafe { put_all(&roots, nodes, count) }
    }

    fn cuGraphNodeGetType(node: usize, kind: *mut c_int) {
        // SAFETY: as above.
        unsafe { put(kind, handle::node(node)?.lock().kind()) }
    }

    fn cuGraphNodeGetDependencies(node: usize, nodes: *mut usize, count: *mut usize) {
        let graph = handle::graph(handle::node(node)?.graph)?;
        let edges = graph.lock().edges.clone();
        let before: Vec<_> = edges.iter().filter(|it| it.1 == node).map(|it| it.0).collect();
        // SAFETY: as above.
        unsafe { put_all(&before, nodes, count) }
    }

    fn cuGraphKernelNodeSetParams(node: usize, parameters: *const KernelParameters) {
        // SAFETY: as above.
        *handle::node(node)?.lock() = unsafe { kernel(parameters, 0) }?;
        Ok(())
    }

    fn cuGraphKernelNodeSetParams_v2(node: usize, parameters: *const KernelParameters2) {
        // SAFETY: as above.
        *handle::node(node)?.lock() = unsafe { kernel2(parameters) }?;
        Ok(())
    }

    fn cuGraphMemcpyNodeSetParams(node: usize, parameters: *const Copy3) {
        // SAFETY: as above.
        *handle::node(node)?.lock() = Work::Copy(unsafe { read(parameters) }?);
        Ok(())
    }

    fn cuGraphMemsetNodeSetParams(node: usize, parameters: *const Fill) {
        // SAFETY: as above.
        *handle::node(node)?.lock() = Work::Fill(unsafe { read(parameters) }?);
        Ok(())
    }

    fn cuGraphInstantiate_v2(
        exec: *mut usize,
        graph: usize,
        failed: *mut usize,
        log: *mut c_char,
        room: usize,
    ) {
        // SAFETY: as above.
        unsafe { put_if(failed, 0) };
        // SAFETY: as above; without room nothing is said.
        let _ = unsafe { put_text("", log, room) };
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, _flags: u64) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithParams(
        exec: *mut usize,
        graph: usize,
        parameters: *mut InstantiateParameters,
    ) {
        let made = instantiate(exec, graph);
        // SAFETY: as above.
        if let Some(its) = unsafe { parameters.as_mut() } {
            its.failed = 0;
            its.result = made.err().map_or(0, |_| 1);
        }
        made
    }

    fn cuGraphExecKernelNodeSetParams(
        exec: usize,
        node: usize,
        parameters: *const KernelParameters,
    ) {
        // SAFETY: as above.
        handle::exec(exec)?.replace(node, unsafe { kernel(parameters, 0) }?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        exec: usize,
        node: usize,
        parameters: *const KernelParameters2,
    ) {
        // SAFETY: as above.
        handle::exec(exec)?.replace(node, unsafe { kernel2(parameters) }?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        exec: usize,
        node: usize,
        parameters: *const Copy3,
        _context: usize,
    ) {
        // SAFETY: as above.
        handle::exec(exec)?.replace(node, Work::Copy(unsafe { read(parameters) }?))
    }

    fn cuGraphExecMemsetNodeSetParams(
        exec: usize,
        node: usize,
        parameters: *const Fill,
        _context: usize,
    ) {
        // SAFETY: as above.
        handle::exec(exec)?.replace(node, Work::Fill(unsafe { read(parameters) }?))
    }

    fn cuGraphExecHostNodeSetParams(
        exec: usize,
        node: usize,
        parameters: *const HostParameters,
    ) {
        // SAFETY: as above.
        handle::exec(exec)?.replace(node, host(unsafe { read(parameters) }?)?)
    }

    fn cuGraphExecGetFlags(exec: usize, flags: *mut u64) {
        handle::exec(exec)?;
        // SAFETY: as above.
        unsafe { put(flags, 0) }
    }

    fn cuGraphUpload(exec: usize, stream: usize) {
        id_of(&current()?, stream)?;
        handle::exec(exec).map(drop)
    }

    fn cuGraphLaunch(exec: usize, stream: usize) {
        handle::exec(exec)?.launch(stream)
    }

    fn cuGraphExecDestroy(exec: usize) {
        let its = handle::exec(exec)?;
        handle::remove(exec);
        let steps = its.steps().take();
        its.release(steps);
        Ok(())
    }
}
