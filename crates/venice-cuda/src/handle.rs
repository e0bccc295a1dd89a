//! Handles of the program.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::call::{Done, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};
use crate::context::Context;
use crate::graph::{Exec, Graph, Node};
use crate::library::{Kernel, Library};
use crate::link_images::Linker;
use crate::module::{Function, Module};
use crate::pool::Pool;
use crate::stream::{Event, Stream};

/// An object with a handle.
#[derive(Clone)]
pub enum Object {
    Context(Arc<Context>),
    Module(Arc<Module>),
    Function(Arc<Function>),
    Stream(Arc<Stream>),
    Event(Arc<Event>),
    Library(Arc<Library>),
    Kernel(Arc<Kernel>),
    Linker(Arc<Linker>),
    Pool(Arc<Pool>),
    Graph(Arc<Graph>),
    Node(Arc<Node>),
    Exec(Arc<Exec>),
}

static OBJECTS: LazyLock<RwLock<HashMap<usize, Object>>> = LazyLock::new(RwLock::default);
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// Gives an object a handle.
pub fn add(object: Object) -> usize {
    let handle = NEXT.fetch_add(16, Ordering::Relaxed);
    OBJECTS.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    handle
}

/// Takes a handle's object away.
pub fn remove(handle: usize) {
    OBJECTS.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
}

/// Returns the object of a handle.
pub fn get(handle: usize) -> Option<Object> {
    OBJECTS.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
}

/// Takes away, and returns, the objects that are made in a context.
pub fn remove_of(context: usize) -> Vec<Object> {
    let is_its = |object: &Object| match object {
        Object::Context(_)
        | Object::Library(_)
        | Object::Kernel(_)
        | Object::Linker(_)
        | Object::Pool(_)
        | Object::Graph(_)
        | Object::Node(_)
        | Object::Exec(_) => false,
        Object::Module(module) => module.context == context,
        Object::Function(function) => function.context == context,
        Object::Stream(stream) => stream.context == context,
        Object::Event(event) => event.context == context,
    };
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    objects.extract_if(|_, object| is_its(object)).map(|(_, object)| object).collect()
}

macro_rules! finders {
    ($($(#[$doc:meta])* $name:ident: $kind:ident, $error:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(handle: usize) -> Done<Arc<$kind>> {
                if let Some(Object::$kind(object)) = get(handle) { Ok(object) } else { Err($error) }
            }
        )*
    };
}

finders! {
    /// Finds a context.
    context: Context, INVALID_CONTEXT;
    /// Finds a module.
    module: Module, INVALID_HANDLE;
    /// Finds a stream that was made.
    stream: Stream, INVALID_HANDLE;
    /// Finds an event.
    event: Event, INVALID_HANDLE;
    /// Finds a library.
    library: Library, INVALID_HANDLE;
    /// Finds a kernel of a library.
    kernel: Kernel, INVALID_HANDLE;
    /// Finds a linker.
    linker: Linker, INVALID_HANDLE;
    /// Finds a pool.
    pool: Pool, INVALID_VALUE;
    /// Finds a graph.
    graph: Graph, INVALID_VALUE;
    /// Finds a node of a graph.
    node: Node, INVALID_VALUE;
    /// Finds a graph that can be launched.
    exec: Exec, INVALID_VALUE;
}
