//! OpenCL client driver (ICD) that forwards to granted accelerators.
