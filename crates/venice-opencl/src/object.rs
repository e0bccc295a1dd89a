//! Handles: reference-counted objects whose first word is the dispatch table, as loaders want it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use opencl_sys::cl_int;

use crate::dispatch::{Dispatch, dispatch};

/// An object that programs have handles of.
pub trait Body: Send + Sync + Sized + 'static {
    /// Error for a handle that is none.
    const INVALID: cl_int;

    /// Returns the table of living objects.
    fn table() -> &'static Table<Self>;
}

/// Living objects by address: a handle that is not here is none.
pub type Table<T> = RwLock<HashMap<usize, Weak<Object<T>>>>;

/// A shared reference to an object.
pub type Shared<T> = Arc<Object<T>>;

/// An object with its dispatch table.
#[repr(C)]
pub struct Object<T: Body> {
    dispatch: &'static Dispatch,
    /// References of the program; while there are some, they own one of the object.
    references: AtomicU32,
    body: T,
}

impl<T: Body> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.body
    }
}

impl<T: Body> Drop for Object<T> {
    fn drop(&mut self) {
        let address = std::ptr::from_ref(self).addr();
        T::table().write().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }
}

impl<T: Body> Object<T> {
    /// Makes an object without a handle.
    pub fn new(body: T) -> Shared<T> {
        let made = Arc::new(Self { dispatch: dispatch(), references: AtomicU32::new(0), body });
        let address = Arc::as_ptr(&made).addr();
        let mut table = T::table().write().unwrap_or_else(PoisonError::into_inner);
        table.insert(address, Arc::downgrade(&made));
        made
    }

    /// Gives the program a reference, and returns its handle.
    pub fn hand_out(object: Shared<T>) -> *mut c_void {
        object.retain();
        Arc::as_ptr(&object).cast_mut().cast()
    }

    /// Returns the handle without a reference for the program.
    pub fn handle(object: &Shared<T>) -> *mut c_void {
        Arc::as_ptr(object).cast_mut().cast()
    }

    /// Returns the object of a handle.
    ///
    /// # Errors
    /// [`Body::INVALID`] for one that is none.
    pub fn get(handle: *mut c_void) -> Result<Shared<T>, cl_int> {
        let table = T::table().read().unwrap_or_else(PoisonError::into_inner);
        table.get(&handle.addr()).and_then(Weak::upgrade).ok_or(T::INVALID)
    }

    /// Returns the references of the program.
    pub fn references(&self) -> u32 {
        self.references.load(Ordering::Relaxed)
    }

    /// Adds a reference of the program.
    pub fn retain(self: &Arc<Self>) {
        if self.references.fetch_add(1, Ordering::Relaxed) == 0 {
            std::mem::forget(Arc::clone(self));
        }
    }

    /// Takes a reference of the program back.
    ///
    /// # Errors
    /// [`Body::INVALID`] if it has none.
    pub fn release(self: Arc<Self>) -> Result<(), cl_int> {
        let taken = self
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| count.checked_sub(1));
        match taken {
            Ok(1) => {
                // SAFETY: `retain` leaked one count, which the references of the program owned.
                unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self)) };
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(_) => Err(T::INVALID),
        }
    }
}

/// Declares the tables of the kinds of objects.
macro_rules! bodies {
    ($($body:ty: $invalid:ident;)*) => {
        $(impl $crate::object::Body for $body {
            const INVALID: opencl_sys::cl_int = opencl_sys::$invalid;

            fn table() -> &'static $crate::object::Table<Self> {
                static TABLE: std::sync::LazyLock<$crate::object::Table<$body>> =
                    std::sync::LazyLock::new(Default::default);
                &TABLE
            }
        })*
    };
}
pub(crate) use bodies;

/// Returns the living objects of a kind.
pub fn living<T: Body>() -> Vec<Shared<T>> {
    let table = T::table().read().unwrap_or_else(PoisonError::into_inner);
    table.values().filter_map(Weak::upgrade).collect()
}

/// Returns an id that no object at any donor has.
pub fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
