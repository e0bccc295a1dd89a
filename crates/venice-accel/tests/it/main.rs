//! Tests of OpenCL devices in the confinement of their hosts. They need an ICD loader and PoCL.

mod confined;
